"""Styles of pieces of a line. Colours are distinct for colour-blind people and readable on black and on white; their
meaning is also given by characters, so that a terminal without colours loses nothing."""

import os

from rich.style import Style

_BLUE, _VERMILION, _PURPLE, _GREEN = "#0072b2", "#d55e00", "#b0558a", "#009e73"

_COLOURED = {
    "": Style(),
    "title": Style(bold=True),
    "sorted": Style(bold=True, underline=True),
    "guaranteed": Style(color=_BLUE),
    "borrowed": Style(color=_VERMILION),
    "switching": Style(color=_PURPLE),
    "idle": Style(dim=True),
    "memory": Style(color=_GREEN),
    "history": Style(color=_BLUE),
    "warning": Style(color=_VERMILION, bold=True),
    "quiet": Style(dim=True),
    "alarm": Style(reverse=True, bold=True),
}
STYLES = {name: look.without_color for name, look in _COLOURED.items()} if os.environ.get("NO_COLOR") else _COLOURED
CURSOR = Style(reverse=True)
MARKED = Style(bold=True)
"""The cursor's line while its table does not have the focus."""
DIMMED = Style(dim=True)
"""Old data, while the daemon is away."""
