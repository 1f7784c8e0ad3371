"""The table of grants: of `ps`, `grant list` and `top --plain`.

A terminal gets what fits: columns that say nothing are left out, then the least important ones, and the program is cut
to what is left. Anything else (a pipe, a file) gets every column of the default ones, uncut.
"""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from gpushare.cli.command import say
from gpushare.cli.look.columns import BY_NAME, DEFAULT, Column
from gpushare.text import reasons
from gpushare.text.rules import ENDED
from gpushare.text.width import columns as width_of
from gpushare.text.width import padded as filled

_LONG_MILLI = 500
"""A longer wait, in ms of the last second, is explained."""
_NOTICES = 4
"""Lines below the table; with more, the last one counts the rest."""
_TEXT_MAX, _TEXT_LEAST = 20, 14
"""Widest column of text on a terminal, and the least room for a column that is cut to what is left."""


def ordered(found: Sequence[Any], by: Column | None = None, reverse: bool = False) -> list[Any]:
    """Grants by a column (default GOT): numbers the most first, texts from A to Z; equal ones the oldest first. Those
    that have ended come last."""
    old_first = sorted(found, key=lambda grant: (grant["created_ns"], grant["id"]))
    by = by or BY_NAME["got"]
    if (value := by.value) is not None:
        old_first.sort(key=value, reverse=not reverse)
    else:
        old_first.sort(key=lambda grant: by.of(grant, grant["devices"][0]), reverse=reverse)
    return sorted(old_first, key=lambda grant: grant["phase"] in ENDED)


def show(found: Sequence[Any], chosen: Sequence[Column] | None = None, others: Sequence[Any] | None = None) -> None:
    """Prints the table of these grants in their order, a row for each device, and what owners have to know. `others`:
    all grants of their devices (default: these)."""
    if not found:
        say("no grants")
        return
    rows = [(grant, device) for grant in found for device in grant["devices"]]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    shown = [BY_NAME[name] for name in DEFAULT] if chosen is None else list(chosen)
    if chosen is None and any(grant["phase"] in ENDED for grant in found):
        shown.append(BY_NAME["reason"])
    if width is not None and chosen is None:
        shown = [column for column in shown if not column.says_nothing(rows)]
    texts = [[column.title, *(column.of(*row) for row in rows)] for column in shown]
    colours = [["", *(column.look(grant) if column.look else "" for grant, _ in rows)] for column in shown]
    idle = [False, *(_is_idle(*row) for row in rows)]
    for number, line in enumerate(_lines(shown, texts, colours, width, may_omit=chosen is None)):
        print(_dimmed(line) if idle[number] else line)
    notices(found, found if others is None else others)


def _lines(
    shown: list[Column], texts: list[list[str]], colours: list[list[str]], width: int | None, *, may_omit: bool
) -> list[str]:
    """Lines of the table. `texts`, `colours`: by column, its title and its cells. `width`: of the terminal, if it is
    one."""
    wide = [max(map(width_of, text)) for text in texts]
    if width is not None:
        for number, column in enumerate(shown):
            if column.is_text and column.rank:
                wide[number] = min(wide[number], max(_TEXT_MAX, len(column.title)))
        kept = _fitting(shown, wide, width) if may_omit else list(range(len(shown)))
        shown, texts, wide = [shown[at] for at in kept], [texts[at] for at in kept], [wide[at] for at in kept]
        colours = [colours[at] for at in kept]
        _narrow(shown, wide, width)
    padded = [
        [filled(_cut(cell, size), size, right=not column.is_text) for cell in text]
        for column, text, size in zip(shown, texts, wide, strict=True)
    ]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    if width is None:
        return lines
    coloured = zip(zip(*padded, strict=True), zip(*colours, strict=True), strict=True)
    rows = ["  ".join(map(_coloured, cells, looks)).rstrip() for cells, looks in coloured]
    return [row if width_of(line) <= width else _cut(line, width) for line, row in zip(lines, rows, strict=True)]


def _fitting(shown: list[Column], wide: list[int], width: int) -> list[int]:
    """Numbers of the columns that fit, the most important first, if those that are cut get the least that they need."""
    kept: set[int] = set()
    used = -2
    for at in sorted(range(len(shown)), key=lambda at: shown[at].rank):
        needed = 2 + (min(wide[at], _TEXT_LEAST) if shown[at].cut else wide[at])
        if used + needed <= width or not shown[at].rank:
            kept.add(at)
            used += needed
    return sorted(kept)


def _narrow(shown: list[Column], wide: list[int], width: int) -> None:
    """Cuts what may be cut to what is left of the line, each to the same width where none is short."""
    left = width - 2 * (len(shown) - 1) - sum(size for column, size in zip(shown, wide, strict=True) if not column.cut)
    cut = sorted((at for at, column in enumerate(shown) if column.cut), key=lambda at: wide[at])
    for done, at in enumerate(cut):
        wide[at] = max(1, min(wide[at], left // (len(cut) - done)))
        left -= wide[at]


def _cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    while text and width_of(text) > width - 1:
        text = text[:-1]
    return f"{text}…" if (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" else f"{text}+"


def _is_idle(grant: Any, device: Any) -> bool:
    return grant["phase"] in ENDED or not (device["used_milli"] or device["waiting"])


def _has_colour() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


def _dimmed(line: str) -> str:
    return f"\x1b[2m{line}\x1b[0m" if _has_colour() else line


_FOREGROUNDS = {"red": 31, "green": 32, "yellow": 33}


def _coloured(cell: str, colour: str) -> str:
    """Ends the colour alone, since the line may be dimmed."""
    return f"\x1b[{_FOREGROUNDS[colour]}m{cell}\x1b[39m" if colour and _has_colour() else cell


def notices(found: Sequence[Any], others: Sequence[Any]) -> None:
    """Prints what owners of grants have to know, what memory was refused them, and why they waited for long: a few
    lines. `others`: all grants of their devices."""
    now_ns = time.time_ns()
    lines = []
    for grant in found:
        lines += [f"{grant['id']}: {grant['notice']}"] if grant["notice"] else []
        for device in grant["devices"]:
            news = grant["phase"] in ENDED or _is_news(device, now_ns)
            refused = reasons.refused(grant, device, now_ns) if news else ""
            waited = reasons.waiting(grant, device, others, least_milli=_LONG_MILLI)
            lines += [f"{grant['id']}: {why}" for why in (refused, waited) if why]
    shown = lines if len(lines) <= _NOTICES + 1 else lines[:_NOTICES]
    for line in shown:
        say(line)
    if len(lines) > len(shown):
        say(f"and {len(lines) - len(shown)} more: `gpushare why`")


def _is_news(device: Any, now_ns: int) -> bool:
    last = device["memory_refused"]
    return last is not None and now_ns - last["at_ns"] < reasons.RECENT_NS
