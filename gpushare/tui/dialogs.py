"""Dialogs that ask before a change, and the help page."""

from collections.abc import Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static
from textual.worker import Worker

from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.text.printable import printable
from gpushare.text.units import format_size, format_time
from gpushare.tui.model import GrantRow
from gpushare.tui.queries import aside

HELP = """\
↑ ↓ PgUp PgDn Home End   move          Tab   the next table
s S   sort by the next, the last column; a click on a title sorts by it
i     the other way round              /     only grants with these words
g t   grants, tenants                  Enter of a grant: why, its receipts (w)
Space its processes; p: of all               of a tenant: its grants only
r     resize the grant                 z     suspend, pause or resume it
x     release it                       Esc   close them, drop the words
? this page                            q     end

Of a device's last second: █ guaranteed: used by grants within what they
are guaranteed; ▒ borrowed: used beyond that; / switching: from one grant to
the next; · idle: had by nobody. GOT, BORROWED, LENT and WAITED are of the
last second too. GUARANTEED: what a grant gets whenever it wants it;
ENTITLED: what a tenant should get now. HISTORY: what it got at each look,
the newest at the right; full: its guarantee, or the most it got; · nothing.
A grant that neither works nor waits is dim. Of a process: device time and
memory on the device, then its processor (100%: one core) and host memory."""


class Dialog(ModalScreen[str]):
    """A box over the tables. Its result is shown in the bottom line; empty: nothing was done."""

    DEFAULT_CSS = """
    Dialog { align: center middle; }
    Dialog > Vertical { width: 80; max-width: 100%; height: auto; max-height: 100%; border: round ansi_default;
                        padding: 0 1; background: ansi_default; overflow-y: auto; }
    Dialog Static { width: 1fr; height: auto; }
    Dialog .title { text-style: bold; }
    Dialog .refusal { text-style: bold; color: #d55e00; }
    Dialog Horizontal { height: 1; }
    Dialog #buttons { margin: 1 0 0 0; }
    Dialog Button { margin: 0 2 0 0; min-width: 8; background: ansi_default; color: ansi_default; }
    Dialog Button:focus { text-style: reverse bold; }
    Dialog Input { width: 24; background: ansi_default; color: ansi_default; }
    Dialog Input:focus { text-style: underline; }
    Dialog .name { width: 14; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", show=False)]

    def action_close(self) -> None:
        """Closes the dialog without a change."""
        self.dismiss("")


def _text(text: str, classes: str = "") -> Static:
    return Static(printable(text), markup=False, classes=classes)


class Help(Dialog):
    """The keys, and what the columns mean. Every key closes it."""

    DEFAULT_CSS = "Help > Vertical { padding: 0; }"

    def compose(self) -> ComposeResult:
        """For Textual."""
        with Vertical():
            yield Static(HELP, markup=False)

    def on_key(self, event: events.Key) -> None:
        """Closes at any key."""
        event.stop()
        self.action_close()


class Ask(Dialog):
    """A dialog that changes a grant. If the daemon refuses, it stays open and shows the reason."""

    def __init__(self, client: Client, row: GrantRow) -> None:
        super().__init__()
        self._client, self._row = client, row
        self._reply = _text("", "refusal")
        self._doing: Worker[None] | None = None

    def do(self, work: Callable[[], object], done: str) -> None:
        """Runs `work` off the event loop, then closes with the result `done`, or shows the refusal. Ignored while
        another call runs."""
        if self._doing is None or self._doing.is_finished:
            self._show_reply("...")
            self._doing = self.run_worker(self._do(work, done))

    async def _do(self, work: Callable[[], object], done: str) -> None:
        try:
            await aside(work)
        except GpushareError as error:
            self._show_reply(str(error))
        else:
            if self.is_current:
                self.dismiss(done)

    def _show_reply(self, text: str) -> None:
        self._reply.update(printable(text))


class Release(Ask):
    """Asks whether to release a grant."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "release", show=False),
        Binding("n", "close", show=False),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def compose(self) -> ComposeResult:
        """For Textual."""
        row = self._row
        processes = f"{len(row.pids)} process{'es' * (len(row.pids) != 1)}"
        with Vertical():
            yield _text(f"Release {row.id} of {row.tenant}?", "title")
            yield _text(f"The grant ends, and what runs in it is killed: {processes}.")
            yield self._reply
            with Horizontal(id="buttons"):
                yield Button("n  keep it", id="keep", compact=True)
                yield Button("y  release it", id="release", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Handles both buttons."""
        if event.button.id == "release":
            self.action_release()
        else:
            self.action_close()

    def action_release(self) -> None:
        """Ends the grant."""
        grant = self._row.id
        self.do(lambda: self._client.release(grant), f"{grant} is released")


class Pause(Ask):
    """Asks whether a grant's memory is to leave its device, or to come back."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "suspend(False)", show=False),
        Binding("p", "suspend(True)", show=False),
        Binding("c", "resume", show=False),
        Binding("n", "close", show=False),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def compose(self) -> ComposeResult:
        """For Textual."""
        row = self._row
        with Vertical():
            if row.phase == "suspended" or row.held:
                yield _text(f"Resume {row.id} of {row.tenant}?", "title")
                yield _text("Its memory comes back to its device as soon as there is room.")
            else:
                yield _text(f"Move the memory of {row.id} of {row.tenant} to host memory?", "title")
                yield _text(
                    "Its programs live on. Suspended, it comes back when they need it; paused, they wait until it is"
                    " resumed."
                )
                if not row.may_move:
                    yield _text("It did not ask for memory that may be moved (--idle-memory lend): this is refused.")
            yield self._reply
            with Horizontal(id="buttons"):
                yield Button("n  leave it", id="keep", compact=True)
                if row.phase == "suspended" or row.held:
                    yield Button("c  resume it", id="resume", compact=True)
                else:
                    yield Button("s  suspend it", id="suspend", compact=True)
                    yield Button("p  pause it", id="pause", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Handles all buttons."""
        if event.button.id == "resume":
            self.action_resume()
        elif event.button.id == "keep":
            self.action_close()
        else:
            self.action_suspend(event.button.id == "pause")

    def action_suspend(self, hold: bool) -> None:
        """Moves its memory away. `hold`: until it is resumed."""
        grant = self._row.id
        self.do(lambda: self._client.suspend(grant, hold=hold), f"{grant} is {'paused' if hold else 'suspended'}")

    def action_resume(self) -> None:
        """Moves its memory back."""
        grant = self._row.id
        self.do(lambda: self._client.resume(grant), f"{grant} is resumed")


class Resize(Ask):
    """Asks for a grant's new share."""

    FIELDS: ClassVar[dict[str, str]] = {
        "memory": "memory",
        "time": "time",
        "time_limit": "time limit",
    }

    def __init__(self, client: Client, row: GrantRow) -> None:
        super().__init__(client, row)
        self._was = {
            "memory": format_size(row.memory_limit_bytes),
            "time": format_time(row.asked_milli),
            "time_limit": format_time(row.limit_milli),
        }
        # Typing replaces the old value. The daemon may refuse a value, so nothing is checked here.
        self._inputs = {name: Input(was, id=name, compact=True, max_length=64) for name, was in self._was.items()}
        for field in self._inputs.values():
            field.cursor_blink = False

    def compose(self) -> ComposeResult:
        """For Textual."""
        with Vertical():
            yield _text(f"Resize {self._row.id} of {self._row.tenant}", "title")
            yield _text("It runs on meanwhile. Enter: resize it, Tab: next field, Esc: leave it.")
            for name, field in self._inputs.items():
                with Horizontal():
                    yield _text(self.FIELDS[name], "name")
                    yield field
            yield self._reply

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Resizes by all fields that were changed."""
        event.stop()
        given = {name: field.value.strip() for name, field in self._inputs.items()}
        change = {name: text for name, text in given.items() if text and text != self._was[name]}
        if not change:
            self._show_reply("nothing is changed yet: write for example 8GiB, 30%")
            return
        grant = self._row.id
        changed = ", ".join(f"{self.FIELDS[name]} {text}" for name, text in change.items())
        self.do(lambda: self._client.resize(grant, **change), f"{grant} has {changed}")
