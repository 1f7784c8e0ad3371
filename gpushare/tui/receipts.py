"""The pane with one grant's receipts."""

import textwrap

from textual.app import ComposeResult
from textual.containers import Vertical

from gpushare.text.printable import printable
from gpushare.tui.columns import Spans
from gpushare.tui.queries import Story
from gpushare.tui.sheet import Line, Sheet


class Receipts(Vertical):
    """The pane. Closed until `open` names a grant; then filled by `show`."""

    DEFAULT_CSS = "Receipts { height: 1fr; }"

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.head, self.body = Line(), Sheet(self._at, cursor=False)
        self.grant = ""
        self._story: Story | None = None
        self._lines: list[Spans] = []

    def compose(self) -> ComposeResult:
        """For Textual."""
        yield self.head
        yield self.body

    def open(self, grant: str) -> None:
        """Opens the pane for this grant."""
        self.grant, self._story = grant, None
        self.head.show(((f"RECEIPTS of {printable(grant)}, newest first", "title"), ("  Esc closes", "quiet")))
        self.display = True
        self._show()
        self.body.focus()

    def close(self) -> None:
        """Closes the pane."""
        self.grant, self._story = "", None
        self.display = False

    def show(self, story: Story) -> None:
        """Shows a story if it is of the open grant."""
        if story.grant == self.grant:
            self._story = story
            self._show()

    def on_resize(self) -> None:
        """Wraps the lines again."""
        self.call_after_refresh(self._show)

    def _at(self, y: int) -> Spans:
        return self._lines[y]

    def _show(self) -> None:
        if self._story is None:
            self._lines = [(("...", "quiet"),)] if self.grant else []
        else:
            width = max(20, self.size.width - 1)
            parts = [(line, "title") for line in self._story.now] + [(line, "") for line in self._story.lines]
            self._lines = [
                ((line, look),)
                for text, look in parts
                for line in textwrap.wrap(printable(text), width, subsequent_indent=" " * 4)
            ]
            if not self._story.lines:
                self._lines.append((("nothing is recorded of it yet", "quiet"),))
        self.body.again(len(self._lines))
