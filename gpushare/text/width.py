"""How much room text takes on a terminal."""


def columns(text: str) -> int:
    """The columns that printable text takes: two for each wide character, as in Chinese or Japanese, none for marks
    that are shown on the one before."""
    if text.isascii():
        return len(text)
    import unicodedata  # 1 ms that most calls do not need

    def one(letter: str) -> int:
        if unicodedata.category(letter) in ("Mn", "Me"):
            return 0
        return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1

    return sum(map(one, text))


def padded(text: str, wide: int, *, right: bool = False) -> str:
    """The text with spaces after it, or before it, so that it takes at least `wide` columns."""
    space = " " * (wide - columns(text))
    return space + text if right else text + space
