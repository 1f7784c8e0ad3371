"""Widgets that draw only lines of text. Only visible lines are made, and only those that differ from the screen are
drawn: with one refresh per second anything else would be most of the cost of `gpushare top`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gpushare.tui.columns import Column, Layout, Row, Spans, layout
from gpushare.tui.styles import CURSOR, DIMMED, MARKED, STYLES


def _strip(line: Spans, width: int, over: Style | None = None) -> Strip:
    if over is CURSOR:  # one bar, ignoring the cells' styles
        return Strip([Segment("".join(text for text, _ in line), over)]).adjust_cell_length(width, over)
    pieces = [Segment(text, STYLES[look] if over is None else STYLES[look] + over) for text, look in line]
    return Strip(pieces).adjust_cell_length(width, over)


class Drawn:
    """Base of widgets without borders and padding, drawn by `strip`: Textual's general rendering, which supports those,
    would take longer than everything else here."""

    ALLOW_SELECT = False

    def strip(self, y: int, width: int) -> Strip:
        """Returns line `y`, counted from the top of the visible part, in `width` cells."""
        raise NotImplementedError

    size: Any  # the widget's

    def render_lines(self, crop: Region) -> list[Strip]:
        """For Textual."""
        width = self.size.width
        return [self.strip(y, width).crop_extend(crop.x, crop.right, None) for y in crop.line_range]


class Line(Drawn, Widget):
    """One line, redrawn as a whole."""

    DEFAULT_CSS = "Line { height: 1; width: 1fr; }"

    class Clicked(Message):
        """A click on a line. `x`: the cell."""

        def __init__(self, line: "Line", x: int) -> None:
            super().__init__()
            self.line, self.x = line, x

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._line: Spans = ()

    def show(self, line: Spans) -> None:
        """Sets the line."""
        if line != self._line:
            self._line = line
            self.refresh()

    def strip(self, y: int, width: int) -> Strip:
        """Returns the line."""
        return _strip(self._line if y == 0 else (), width)

    def on_click(self, event: events.Click) -> None:
        """Posts Clicked."""
        self.post_message(self.Clicked(self, event.x))


class Sheet(Drawn, ScrollView, can_focus=True):
    """Any number of lines, made when they become visible. `cursor`: the line that keys apply to; None: no cursor."""

    DEFAULT_CSS = "Sheet { overflow-x: hidden; scrollbar-size-vertical: 1; height: 1fr; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "edge(False)", show=False),
        Binding("end", "edge(True)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Moved(Message):
        """The user has moved the cursor to another line."""

    class Chosen(Message):
        """Enter, or a second click, on the cursor's line."""

    def __init__(self, line: Callable[[int], Spans], *, cursor: bool) -> None:
        super().__init__()
        self._line = line
        self.cursor: int | None = 0 if cursor else None
        self._made: dict[int, Spans] = {}
        self._drawn: dict[int, tuple[tuple[Spans, Style | None], Strip]] = {}
        self._count = 0
        self.dimmed = False

    def again(self, count: int) -> None:
        """To be called when the lines may have changed. `count`: their new number."""
        self._made.clear()
        if count != self._count:
            self._count = count
            self.virtual_size = Size(0, count)
        if self.cursor is not None:
            self.cursor = max(0, min(self.cursor, count - 1))
        self.redraw()

    def redraw(self) -> None:
        """Redraws the visible lines that differ from the screen, one refresh per run of adjacent lines."""
        begin, focus = self.scroll_offset.y, self.has_focus
        end = begin + self.size.height
        first = None
        for y in range(begin, end + 1):
            if y < end and ((drawn := self._drawn.get(y)) is None or drawn[0] != self._now(y, focus)):
                first = y if first is None else first
            elif first is not None:
                self.refresh_lines(first, y - first)
                first = None

    def _now(self, y: int, focus: bool) -> tuple[Spans, Style | None]:
        if y >= self._count:
            return (), None
        if (line := self._made.get(y)) is None:
            line = self._made[y] = self._line(y)
        if y == self.cursor:
            return line, CURSOR if focus else MARKED
        return line, DIMMED if self.dimmed else None

    def strip(self, y: int, width: int) -> Strip:
        """Returns the line scrolled to `y`. Cached, since Textual asks for all lines between two that differ."""
        y += round(self.scroll_y)
        now, drawn = self._now(y, self.has_focus), self._drawn.get(y)
        if drawn is not None and drawn[0] == now and drawn[1].cell_length == width:
            return drawn[1]
        strip = _strip(now[0], width, now[1])
        self._drawn[y] = now, strip
        return strip

    def on_resize(self) -> None:
        """Forgets what is drawn: it is unknown after a resize."""
        self._drawn.clear()

    def on_focus(self) -> None:
        """Redraws the cursor's line in its other style."""
        self.redraw()

    def on_blur(self) -> None:
        """As `on_focus`."""
        self.redraw()

    def put(self, y: int, *, moved: bool = False) -> None:
        """Moves the cursor to line `y`, or the nearest existing one, and scrolls it into view. `moved`: by the user."""
        if self.cursor is None:
            return
        y = max(0, min(y, self._count - 1))
        if y != self.cursor:
            self.cursor = y
            self.redraw()
            if moved:
                self.post_message(self.Moved())
        begin, height = self.scroll_offset.y, self.size.height
        if not begin <= y < begin + height:
            self.scroll_to(y=y if y < begin else y - height + 1, animate=False, immediate=True)

    def _step(self, lines: int) -> None:
        if self.cursor is None:
            self.scroll_to(y=self.scroll_offset.y + lines, animate=False)
        else:
            self.put(self.cursor + lines, moved=True)

    def action_move(self, lines: int) -> None:
        """Moves by this number of lines."""
        self._step(lines)

    def action_page(self, way: int) -> None:
        """Moves a page up (-1) or down (1)."""
        self._step(way * max(1, self.size.height - 1))

    def action_edge(self, end: bool) -> None:
        """Moves to the first or the last line."""
        self._step(self._count if end else -self._count)

    def action_choose(self) -> None:
        """Chooses the cursor's line."""
        if self.cursor is not None and self._count:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        """Moves the cursor to the line, or chooses the line if the cursor is there."""
        y = event.y + self.scroll_offset.y
        if y == self.cursor:
            self.action_choose()
        elif y < self._count:
            self.put(y, moved=True)


@dataclass(frozen=True, slots=True)
class Below(Generic[Row]):
    """A line below a row, about a part of it. `line`: returns it for a width."""

    row: Row
    key: object
    line: Callable[[int], Spans]


class Table(Vertical, Generic[Row]):
    """Rows under titles, with the columns that fit. `body` draws the rows. `quiet`: returns whether a row is dimmed."""

    DEFAULT_CSS = "Table { height: 1fr; }"

    def __init__(
        self,
        columns: Sequence[Column[Row]],
        *,
        id: str,
        cursor: bool,
        quiet: Callable[[Row], bool] = lambda _: False,
    ) -> None:
        super().__init__(id=id)
        self._columns, self._quiet = columns, quiet
        self.head, self.body = Line(id=f"{id}-head"), Sheet(self._at, cursor=cursor)
        self.rows: Sequence[Row | Below[Row]] = []
        self.sorted_by, self.down = "", False
        self.layout_now: Layout[Row] = layout(columns, 80)

    def compose(self) -> ComposeResult:
        """For Textual."""
        yield self.head
        yield self.body

    def choose(self, columns: Sequence[Column[Row]]) -> None:
        """Sets the columns, of which those are shown that fit."""
        if list(columns) != list(self._columns):
            self._columns = columns
            self._lay()

    def show(self, rows: Sequence[Row | Below[Row]]) -> None:
        """Sets the rows."""
        self.rows = rows
        self._titled()
        self.body.again(len(rows))

    def dim(self, dimmed: bool) -> None:
        """Sets whether the rows are shown as old."""
        if dimmed != self.body.dimmed:
            self.body.dimmed = dimmed
            self.body.redraw()

    def _at(self, y: int) -> Spans:
        row = self.rows[y]
        if isinstance(row, Below):
            line, quiet = row.line(max(1, self.size.width - 1)), self._quiet(row.row)
        else:
            line, quiet = self.layout_now.line(row), self._quiet(row)
        return (("".join(text for text, _ in line), "idle"),) if quiet else line

    def _titled(self) -> None:
        self.head.show(self.layout_now.titles(self.sorted_by, down=self.down))

    def on_resize(self) -> None:
        """Chooses the columns again."""
        self.call_after_refresh(self._lay)

    def _lay(self) -> None:
        # A scroll bar's width is always reserved, so that columns do not move when one appears.
        found = layout(self._columns, max(1, self.size.width - 1))
        if found != self.layout_now:
            self.layout_now = found
            self.show(self.rows)

    @property
    def current(self) -> Row | None:
        """The row under the cursor, or above the line that is; None if there is none."""
        row = self.row
        return row.row if isinstance(row, Below) else row

    @property
    def row(self) -> Row | Below[Row] | None:
        """The row, or the line below one, that the cursor is on; None if there is none."""
        at = self.body.cursor
        return self.rows[at] if at is not None and at < len(self.rows) else None

    @property
    def seen(self) -> Sequence[Row | Below[Row]]:
        """What is on the screen."""
        first = self.body.scroll_offset.y
        return self.rows[first : first + self.body.size.height]
