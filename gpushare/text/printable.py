"""Untrusted text made safe for a terminal."""


def printable(text: str) -> str:
    """The text with everything that a terminal could obey, or that is invisible, written as an escape: control
    characters as `\\x1b`, line ends as `\\n`, characters that change the direction of text as `\\u202e`, bytes that are
    not UTF-8 as `\\xe9`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def _escape(one: str) -> str:
    byte = ord(one) - 0xDC00  # of a character that stands for a byte (PEP 383)
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else one.encode("unicode_escape").decode()
