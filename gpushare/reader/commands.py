"""Command lines of processes: a file of /proc that is read from the process's own memory, and can be made slow."""

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
    """The text with a question mark for every character that is not printable ASCII."""
    return "".join(one if one.isascii() and one.isprintable() else "?" for one in text)
