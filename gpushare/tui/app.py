"""`gpushare top` on a whole screen: the tables, their keys, and the refresh loop."""

import asyncio
import platform
import signal
import time
from collections.abc import Collection
from functools import partial
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize as Resized
from textual.widgets import Input

from gpushare.client import Client
from gpushare.errors import GpushareError
from gpushare.text.printable import printable
from gpushare.tui.columns import (
    BY_GOT,
    DEVICES,
    GRANTS,
    TENANTS,
    TEXTS,
    Spans,
    device_columns,
    grant_columns,
    host_line,
    process_line,
)
from gpushare.tui.dialogs import Help, Pause, Release, Resize
from gpushare.tui.model import Answers, DeviceRow, GrantRow, Model, Picture, TenantRow, chosen
from gpushare.tui.queries import Looker, Story, aside, story
from gpushare.tui.receipts import Receipts
from gpushare.tui.sheet import Below, Line, Table

TALL = 36
"""Minimum lines of a terminal to show grants and tenants at once."""
_MESSAGE_SECONDS = 8.0
_KEYS = "? help  q end  / filter  s sort  Space tree  Enter why  r resize  z pause  x end"


class Top(App[int]):
    """`first`: answers of the first look. `count`: number of looks after which it ends; 0: never."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    #devices { height: auto; max-height: 38%; }
    #devices Sheet { height: auto; max-height: 100%; }
    Top.tall #tenants { height: auto; max-height: 30%; margin: 1 0; }
    Top.tall #tenants Sheet { height: auto; max-height: 100%; }
    Top.tall #receipts { margin: 1 0 0 0; }
    Dialog { background: transparent; }
    Sheet { scrollbar-color: ansi_bright_black; scrollbar-background: ansi_default;
            scrollbar-color-hover: ansi_bright_black; scrollbar-background-hover: ansi_default;
            scrollbar-color-active: ansi_white; scrollbar-background-active: ansi_default; }
    #filter { height: 1; display: none; background: ansi_default; color: ansi_default; text-style: underline; }
    #receipts { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("question_mark,f1,h", "keys"),
        Binding("slash", "filter"),
        Binding("s", "sort(1)"),
        Binding("S", "sort(-1)"),
        Binding("i", "invert"),
        Binding("g", "main('grants')"),
        Binding("t", "main('tenants')"),
        Binding("x,delete", "release"),
        Binding("r", "resize"),
        Binding("z", "pause"),
        Binding("w", "why"),
        Binding("space", "open"),
        Binding("p", "open_all"),
        Binding("escape", "out"),
    ]

    def __init__(self, client: Client, first: Answers, interval: float, count: int = 0) -> None:
        super().__init__(ansi_color=True)
        self._client, self._interval, self._count = client, interval, count
        self._looker = Looker(client)
        self._opened: set[str] = set()
        self._all_opened = False
        self._follows = False  # the first line stays the cursor's, whatever is in it, until the user takes another
        self._model = Model()
        self._picture: Picture = self._model.look(first)
        self._seen_at, self._away = time.time(), ""
        self._wanted = ""
        self._sort = BY_GOT
        self._main, self._tall = "grants", False
        self._message, self._message_until = "", 0.0
        self._again = asyncio.Event()
        self._simulated = any(device["backend"] == "simulated" for device in first.devices)
        self.status, self.keys = Line(id="status"), Line(id="keys")
        self.devices: Table[DeviceRow] = Table(DEVICES, id="devices", cursor=False)
        self.tenants: Table[TenantRow] = Table(TENANTS, id="tenants", cursor=True)
        self.grants: Table[GrantRow] = Table(GRANTS, id="grants", cursor=True, quiet=lambda row: row.idle)
        self.receipts = Receipts(id="receipts")
        self.field = Input(id="filter", compact=True, select_on_focus=False, max_length=200)
        self.field.cursor_blink = False

    def compose(self) -> ComposeResult:
        """For Textual."""
        with Vertical():
            yield self.status
            yield self.devices
            yield self.tenants
            yield self.grants
            yield self.receipts
            yield self.field
            yield self.keys

    def on_mount(self) -> None:
        """Starts the refresh loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.exit, 128 + number)
        self.grants.sorted_by, self.grants.down = self._sort.title, True
        self._arrange()
        self._show()
        self.grants.body.focus()
        self.run_worker(self._look())

    # Looking

    async def _look(self) -> None:
        looks = 1
        while looks != self._count:
            try:
                async with asyncio.timeout(self._interval):
                    await self._again.wait()
            except TimeoutError:
                pass
            self._again.clear()
            try:
                answers, receipts = await aside(partial(self._ask, self.receipts.grant, self._looked_into()))
            except GpushareError as error:
                self._away = self._away or str(error)
            else:
                looks += 1
                self._picture, self._seen_at, self._away = self._model.look(answers), time.time(), ""
                if receipts is not None:
                    self.receipts.show(receipts)
            self._show()
        self.exit(0)

    def _ask(self, grant: str, opened: Collection[str]) -> tuple[Answers, Story | None]:
        return self._looker.look(opened), story(self._client, grant) if grant else None

    def _looked_into(self) -> set[str]:
        """Returns the grants whose processes are on the screen: each costs a question to the daemon."""
        seen = {row.row.id if isinstance(row, Below) else row.id for row in self.grants.seen}
        return seen if self._all_opened else seen & self._opened

    # Showing

    def _show(self) -> None:
        """Updates everything that may have changed since the last look."""
        self.devices.choose(device_columns(self._picture.devices))
        self.devices.show(self._picture.devices)
        self.tenants.show(self._picture.tenants)
        self._show_grants()
        for table in (self.devices, self.tenants, self.grants):
            table.dim(bool(self._away))
        self._show_lines()

    def _show_grants(self) -> None:
        """Shows grants sorted and filtered, keeping the cursor on its grant."""
        table, before = self.grants, self.grants.row
        assert self._sort.sort is not None
        rows: list[GrantRow | Below[GrantRow]] = []
        for row in chosen(self._picture.grants, self._wanted, self._sort.sort, down=table.down):
            rows.append(row)
            if self._all_opened or row.id in self._opened:
                rows += [
                    Below(row, (*row.key, process.pid), partial(process_line, process))
                    for process in self._picture.below(row)
                ]
        table.choose(grant_columns(self._picture.grants))
        table.show(rows)
        if self._follows and before is not None and (now := table.row) is not None and now.key != before.key:
            keys = [row.key for row in rows]
            if before.key in keys:
                table.body.put(keys.index(before.key))

    def _show_lines(self) -> None:
        self.status.show(self._status())
        message = self._message if time.monotonic() < self._message_until else ""
        row = self.grants.current
        notice = f"{row.id}: {row.notice}" if row is not None and row.notice and self._main == "grants" else ""
        text = printable(message or notice)
        self.keys.show(((text, "warning"),) if text else ((_KEYS, "quiet"),))

    def _status(self) -> Spans:
        seen = time.strftime("%H:%M:%S", time.localtime(self._seen_at))
        if self._away:
            return ((f" the daemon is away; as of {seen}. {printable(self._away)} ", "alarm"),)
        found = self._picture
        devices, grants = len(found.devices), len({row.id for row in found.grants})
        text = f"  {devices} {'simulated ' * self._simulated}device{'s' * (devices != 1)}, "
        text += f"{grants} grant{'s' * (grants != 1)}  every {self._interval:g} s  {seen}"
        filtered = f"  {len(self.grants.rows)} with /{printable(self._wanted)}" if self._wanted else ""
        name = printable(platform.node())
        return (("gpushare ", "title"), (name, ""), (text, ""), (filtered, "warning"), (host_line(found.host), "quiet"))

    def _show_message(self, text: str) -> None:
        self._message, self._message_until = text, time.monotonic() + _MESSAGE_SECONDS
        self._show_lines()

    def _arrange(self) -> None:
        """Shows the tables that there is room for."""
        self.set_class(self._tall, "tall")
        self.tenants.display = self._tall or self._main == "tenants"
        self.grants.display = self._tall or self._main == "grants"

    def on_resize(self, event: Resized) -> None:
        """Adapts to the terminal's height."""
        self._tall = event.size.height >= TALL
        self._arrange()

    # Keys

    def action_keys(self) -> None:
        """Shows the help page."""
        self.push_screen(Help())

    def action_main(self, name: str) -> None:
        """Shows and focuses the table `grants` or `tenants`."""
        self._main = name
        self._arrange()
        (self.grants if name == "grants" else self.tenants).body.focus()
        self._show_lines()

    def action_sort(self, way: int) -> None:
        """Sorts by the next (1) or previous (-1) of the columns that are shown."""
        columns = [column for column, _ in self.grants.layout_now.columns if column.sort is not None]
        at = columns.index(self._sort) if self._sort in columns else -way
        self._sort_by(columns[(at + way) % len(columns)].title)

    def action_invert(self) -> None:
        """Reverses the sort order."""
        self._sort_by(self._sort.title)

    def _sort_by(self, title: str) -> None:
        again = title == self._sort.title
        self._sort = next(column for column in GRANTS if column.title == title)
        self.grants.down = not self.grants.down if again else title not in TEXTS
        self.grants.sorted_by = title
        self._show_grants()

    def on_line_clicked(self, event: Line.Clicked) -> None:
        """Sorts by the grants' column whose title was clicked."""
        if event.line is self.grants.head:
            column = self.grants.layout_now.at(event.x)
            if column is not None and column.sort is not None:
                self._sort_by(column.title)

    def on_sheet_chosen(self) -> None:
        """Opens a grant's receipts, or a tenant's grants."""
        if (tenant := self.tenants.current) is not None and self.tenants.body.has_focus:
            self._filter(tenant.name)
            self.action_main("grants")
        elif self.grants.body.has_focus:
            self.action_why()

    def action_why(self) -> None:
        """Opens the receipts of the grant under the cursor."""
        if (row := self.grants.current) is not None:
            self._follows = True
            self.receipts.open(row.id)
            self._again.set()

    def action_open(self) -> None:
        """Shows or hides the processes of the grant under the cursor."""
        if not self.grants.body.has_focus or (row := self.grants.current) is None:
            return
        if self._all_opened:
            self._opened, self._all_opened = {row.id for row in self._picture.grants}, False
        if row.id in self._opened:
            self._opened.remove(row.id)
            self.grants.body.put(self.grants.rows.index(row))
        else:
            self._opened.add(row.id)
            self._follows = True
        self._show_grants()
        self._again.set()

    def action_open_all(self) -> None:
        """Shows the processes of all grants, or of none."""
        self._all_opened = not (self._all_opened or self._opened)
        self._opened.clear()
        if (row := self.grants.current) is not None:
            self.grants.body.put(self.grants.rows.index(row))
        self._show_grants()
        self._again.set()

    def on_sheet_moved(self) -> None:
        """Shows the notice of the grant under the cursor, with which the cursor stays from now on."""
        self._follows = self.grants.body.cursor != 0
        self._show_lines()

    def action_out(self) -> None:
        """Goes back one step: closes the receipts, then removes the filter, then shows the grants."""
        if self.receipts.grant:
            self.receipts.close()
        elif self._wanted or self.field.display:
            self._filter("")
        else:
            self._main = "grants"
        self.field.display = False
        self.action_main(self._main)

    def action_filter(self) -> None:
        """Opens the filter field."""
        self.action_main("grants")
        self.field.display = True
        self.field.value = self._wanted
        self.field.focus()

    def _filter(self, words: str) -> None:
        self._wanted = words
        self._show_grants()
        self._show_lines()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters at every keystroke."""
        if event.input is self.field and self.field.display:
            self._filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Closes the field and keeps the filter."""
        if event.input is self.field:
            self.field.display = False
            self.grants.body.focus()

    def _meant(self) -> GrantRow | None:
        """Returns the grant that a key applies to: the one whose receipts have focus, or the one under the cursor; None
        if the tenants have focus."""
        if self.receipts.body.has_focus:
            return next((row for row in self._picture.grants if row.id == self.receipts.grant), None)
        return None if self.tenants.body.has_focus else self.grants.current

    def action_release(self) -> None:
        """Asks whether to release the grant."""
        if (row := self._meant()) is not None:
            self.push_screen(Release(self._client, row), self._done)

    def action_resize(self) -> None:
        """Asks for the grant's new share."""
        if (row := self._meant()) is not None:
            self.push_screen(Resize(self._client, row), self._done)

    def action_pause(self) -> None:
        """Asks whether to move the grant's memory to host memory, or back."""
        if (row := self._meant()) is not None:
            self.push_screen(Pause(self._client, row), self._done)

    def _done(self, message: str | None) -> None:
        if message:
            self._show_message(message)
            self._again.set()


def run(client: Client, interval: float, count: int) -> int:
    """Runs until the user ends it, or for `count` looks (0: no limit); returns the exit status. Raises GpushareError if
    the first look fails; after that it waits for a daemon that is away."""
    top = Top(client, Looker(client).look(), interval, count)
    status = top.run()
    return (top.return_code or 0) if status is None else status
