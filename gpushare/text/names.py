"""What a tenant may be called: letters and digits of any script. What a carrier may be called."""

import re

from gpushare.errors import UsageError

CARRIER = r"[a-z0-9][a-z0-9-]{0,31}"
"""A pattern: the name of a carrier, and of its file."""
LEVEL_BYTES = 63
"""Most bytes of UTF-8 between two slashes."""
_MARKS = 3
"""Most marks on one letter, such as accents and vowels: more of them run into the lines around."""
_ASCII = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,62}){0,7}", re.ASCII)
_KINDS = {"Ll", "Lo", "Lm", "Mn", "Mc", "Nd"}
# Letters and marks that show nothing: fillers, joiners, selectors of variants.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_ALIKE = {"LATIN", "CYRILLIC", "GREEK", "CHEROKEE"}
"""Scripts with letters that look the same: no word mixes them."""
_FORM = "write letters of any script, in lower case where there is one, digits, '.', '_', '-', and '/' between levels"


def tenant(name: str) -> str:
    """The name itself. Raises UsageError for one that no tenant can have, with the reason."""
    if not _ASCII.fullmatch(name) and (why := _wrong(name)):
        raise UsageError(f"tenant {name[:80]!r} is not a name: {why}")
    return name


def composed(name: str) -> str:
    """What was typed, with each accented letter as one character (Unicode's form NFC), as names are kept."""
    if name.isascii():
        return name
    import unicodedata  # 1 ms that most calls do not need

    return unicodedata.normalize("NFC", name)


def _wrong(name: str) -> str:
    levels = name.split("/")
    if name.isascii() or len(levels) > 8 or not all(levels):
        return _FORM
    if name != composed(name):
        return "it has letters and accents apart (Unicode's form NFC has them as one)"
    return next(filter(None, map(_wrong_level, levels)), "")


def _wrong_level(text: str) -> str:
    import unicodedata

    marks, scripts = 0, set()
    for at, one in enumerate(text):
        kind = unicodedata.category(one)
        marks = marks + 1 if kind in ("Mn", "Mc") else 0
        plain = one in "._-" or (kind in _KINDS and not _INVISIBLE.match(one) and one == one.lower())
        if not plain or marks > _MARKS or (at == 0 and (one in "._-" or marks)):
            return f"{_FORM}; not U+{ord(one):04X}"
        if one > "\x7f" and re.search("[A-Za-z0-9]", unicodedata.normalize("NFKC", one)):
            return f"U+{ord(one):04X} looks like another character"
        scripts |= {unicodedata.name(one, "").partition(" ")[0]} & _ALIKE if kind[0] == "L" else set()
    if len(scripts) > 1:
        return f"it mixes {' and '.join(one.title() for one in sorted(scripts))} letters, which look the same"
    size = len(text.encode())
    return f"{size} bytes between slashes, {LEVEL_BYTES} at most" if size > LEVEL_BYTES else ""
