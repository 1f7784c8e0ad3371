"""What a process was started as: a file of /proc that is read from the process's own memory, and can be made slow."""

_READ_MAX = 1024
_SHOWN_MAX = 200


def command(pid: int) -> str:
    """Its command line: printable ASCII, at most 200 characters; empty where it has none, or has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_READ_MAX)
    except OSError:
        return ""
    text = words.rstrip(b"\0").replace(b"\0", b" ").decode("ascii", "replace")
    return printable(text)[:_SHOWN_MAX]


def printable(text: str) -> str:
    """The same with a question mark for all that a terminal might obey."""
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in text)
