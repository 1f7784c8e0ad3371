"""Untrusted text made safe for a terminal."""


def printable(text: str) -> str:
    """The text with everything that a terminal could obey, or that is invisible, written as an escape: control
    characters as `\\x1b`, line ends as `\\n`, characters that change the direction of text as `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
