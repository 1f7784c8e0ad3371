"""One node, followed while any page is open: the daemon is queried once, however many pages there are."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote, urlencode

from gpushare.aio import AsyncClient
from gpushare.dashboard import rows
from gpushare.dashboard.readers import encoded
from gpushare.dashboard.sources import Source
from gpushare.dashboard.tunnel import Tunnel
from gpushare.errors import GpushareError
from gpushare.text import sentences

if TYPE_CHECKING:
    from gpushare.client import types

log = logging.getLogger(__name__)

NUMBERS_SECONDS = 2.0
"""Interval of polling the last second's numbers. Changes of grants, devices and tenants come at once by the watch."""
_RECEIPTS_SECONDS = 3.0
_FACTS_SECONDS = 10.0
_HOUR_SECONDS, _DAY_SECONDS = 15.0, 60.0
_RETRY_SECONDS = 5.0
_UNREADABLE = (LookupError, TypeError, ValueError)
"""Errors that answers of another version may cause."""
_SOON_SECONDS = 0.2
"""Changes within this time cause one poll."""
_EVENTS = 200
_HOUR_NS = 3600 * 10**9
_CHARTS: "dict[str, tuple[int, int, types.Unit]]" = {
    "hour": (30, 2 * 60 * 10**9, "minute"),
    "day": (24, _HOUR_NS, "hour"),
}
"""Number of columns, ns per column, and the ledger's unit. Two minutes per column, since minute rows may begin at any
second."""


class Node:
    """`send`: sends a message to all pages. `client`: client of the daemon."""

    def __init__(self, number: int, source: Source, socket: Path, send: Callable[[bytes], None]) -> None:
        """`socket`: the daemon's, or one that is forwarded to it."""
        self._number, self.source, self._send = number, source, send
        self._tunnel = Tunnel(source.host, source.socket, socket, self._tunnel_ended) if source.host else None
        self.client = AsyncClient(socket)
        self._sections: dict[str, bytes] = {}
        self._rows: dict[str, Any] | None = None
        """Rows of grants by id, as sent to pages; None: not known yet."""
        self._rv = 0
        self._grants: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        """Devices by id, as of the last poll."""
        self._waits: dict[str, Any] = {}
        self._away_ns = time.time_ns()
        """Since when the daemon does not answer; 0: it answers."""
        self._tunnel_why = ""
        """Why the tunnel ended, if it has since the daemon last answered."""
        self._soon = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: list[asyncio.Task[None]] = []
        """The polling tasks, which run while the daemon answers."""

    def snapshot(self) -> list[bytes]:
        """Returns the whole state as messages."""
        grants = [] if self._rows is None else [self._encoded("grants", {"all": self._rows})]
        return [*self._sections.values(), *grants]

    def start(self) -> None:
        """Starts following the node."""
        work = [self._follow()] if self._tunnel is None else [self._follow(), self._tunnel.run()]
        self._tasks = [asyncio.create_task(one) for one in work]

    async def stop(self) -> None:
        """Stops following the node and drops its state, which would be stale when a page opens again."""
        await _ended(self._tasks)
        await _ended(self._asking)
        await self.client.close()
        self._sections.clear()
        self._before.clear()
        self._rows = None

    async def about(self, grant: str) -> Any:
        """Returns the decisions about a grant and its receipts, latest first. Raises GpushareError."""
        why = await self.client.call("GET", f"/v1/explain/{quote(grant, safe='')}")
        found = await self.client.call("GET", f"/v1/events?{urlencode({'grant': grant, 'limit': _EVENTS})}")
        return {
            "now": why["now"],
            "decisions": [
                {name: one[name] for name in ("at_ns", "what", "text")} for one in reversed(why["decisions"])
            ],
            "receipts": rows.receipts(found["events"]),
        }

    def _encoded(self, section: str, value: Any) -> bytes:
        return encoded({"node": self._number, "section": section, "value": value})

    def _publish(self, section: str, value: Any) -> None:
        message = self._encoded(section, value)
        if self._sections.get(section) != message:
            self._sections[section] = message
            self._send(message)

    # The watch.

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_on()
            except GpushareError as error:
                why = str(error)
            except _UNREADABLE as error:
                why = f"its answers are not what this dashboard reads ({error!r}): are both of the same version?"
            await self._is_away(why)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow_on(self) -> NoReturn:
        """Follows the watch. Raises GpushareError if the daemon answers but refuses."""
        async for event in self.client.follow():
            if event["type"] == "away":
                await self._is_away(self.explained(event["object"]["why"]))
            elif event["type"] == "listed":
                self._rv = event["rv"]
                self._show_grants({grant["id"]: grant for grant in event["object"]})
                self._away_ns, self._tunnel_why = 0, ""
                self._publish("state", {"away": None, "epoch": event["epoch"]})
                await _ended(self._asking)
                self._asking = self._ask()
            else:
                self._rv = event["rv"]
                if event["kind"] == "grant":
                    self._grant_changed(event["type"], event["object"])
                self._soon.set()  # for other kinds the event is only a reason to poll
        raise AssertionError("follow() does not end")

    async def _is_away(self, why: str) -> None:
        self._away_ns = time.time_ns()
        self._show_away(why)
        await _ended(self._asking)

    def _show_away(self, why: str) -> None:
        self._publish("state", {"away": why, "since_ns": self._away_ns})

    def explained(self, why: str) -> str:
        """Returns why the daemon does not answer. `why`: the client's error for the socket that it uses."""
        if self._tunnel_why:
            return self._tunnel_why
        if self._tunnel is not None:
            return f"no answer by ssh yet from {self.source.socket} of {self.source.host}"
        if self.client.path != self.source.socket:
            return f"no daemon answers at {self.source.socket}: start one with `gpushare daemon`"
        return why

    def _tunnel_ended(self, why: str) -> None:
        """Records why the tunnel ended, which explains more than the watch's error; may come before or after that."""
        self._tunnel_why = why
        if self._away_ns:
            self._show_away(why)

    def _grant_changed(self, change: str, grant: Any) -> None:
        assert self._rows is not None
        name, gone = grant["id"], change == "removed"
        if gone:
            self._grants.pop(name, None)
            self._rows.pop(name, None)
        else:
            self._grants[name], self._rows[name] = grant, rows.grant(grant)
        changed = {} if gone else {name: self._rows[name]}
        self._send(self._encoded("grants", {"set": changed, "gone": [name] if gone else []}))

    def _show_grants(self, grants: dict[str, Any]) -> None:
        """Takes a complete list of grants; sends pages only the rows that changed."""
        before, self._grants = self._rows or {}, grants
        shown = {name: rows.grant(grant) for name, grant in grants.items()}
        changed = {name: row for name, row in shown.items() if before.get(name) != row}
        gone = [name for name in before if name not in shown]
        first, self._rows = self._rows is None, shown
        if changed or gone or first:
            self._send(self._encoded("grants", {"set": changed, "gone": gone}))

    # Polling.

    def _ask(self) -> list[asyncio.Task[None]]:
        work = (
            self._every(NUMBERS_SECONDS, self._numbers, self._soon),
            self._every(_RECEIPTS_SECONDS, self._receipts),
            self._every(_FACTS_SECONDS, self._facts),
            self._every(_HOUR_SECONDS, lambda: self._usage("hour")),
            self._every(_DAY_SECONDS, lambda: self._usage("day")),
        )
        return [asyncio.create_task(one) for one in work]

    async def _every(
        self, seconds: float, ask: Callable[[], Awaitable[None]], sooner: asyncio.Event | None = None
    ) -> None:
        never = asyncio.Event()
        while True:
            pause = seconds
            try:
                await ask()
            except (GpushareError, *_UNREADABLE) as error:  # the watch reports an absent daemon
                log.debug("%s: %r", self.source.name, error)
                pause = min(seconds, _RETRY_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for((sooner or never).wait(), pause)
                await asyncio.sleep(_SOON_SECONDS)
            if sooner is not None:
                sooner.clear()

    async def _numbers(self) -> None:
        grants = await self.client.call("GET", "/v1/grants")
        devices = await self.client.devices()
        tenants = await self.client.tenants()
        # Otherwise the watch has delivered newer changes than this answer; the next answer includes them.
        if grants["rv"] >= self._rv:
            self._show_grants({grant["id"]: grant for grant in grants["grants"]})
        now = list(self._grants.values())
        shown = [rows.device(one, self._before.get(one["id"]), now) for one in devices]
        self._before = {one["id"]: one for one in devices}
        self._publish("devices", shown)
        self._publish("tenants", [rows.tenant(one, self._waits) for one in tenants])
        self._send(self._encoded("tick", time.time_ns()))

    async def _receipts(self) -> None:
        found = await self.client.call("GET", f"/v1/events?limit={_EVENTS}")
        self._publish("waits", sentences.waits(found["events"]))
        self._publish("receipts", rows.receipts(found["events"]))

    async def _facts(self) -> None:
        self._publish("facts", rows.facts(await self.client.node()))
        waits = await self.client.call("GET", "/v1/waits")
        self._waits = {one["tenant"]: one for one in waits["tenants"]}
        self._publish("standing", rows.standing(await self.client.call("GET", "/v1/explain")))
        findings = await self.client.call("GET", "/v1/findings")
        self._publish("observed", rows.observed(findings, await self.client.call("GET", "/v1/attempts")))

    async def _usage(self, chart: str) -> None:
        columns, step_ns, unit = _CHARTS[chart]
        until = time.time_ns()
        since = (until // step_ns - columns) * step_ns
        try:
            found = await self.client.usage_slots(since=since, until=until, unit=unit, each="device")
        except GpushareError as error:
            self._publish(chart, {"error": str(error)})
            raise
        self._publish(chart, rows.usage(found, columns, step_ns))


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels the tasks, waits for them and empties the list."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()


@contextlib.asynccontextmanager
async def followed(nodes: Sequence[Node]) -> AsyncIterator[Callable[[bool], None]]:
    """Yields a function that starts (True) or stops following all nodes; they are stopped at the end of the context."""
    wanted, turn = False, asyncio.Event()

    def want(reads: bool) -> None:
        nonlocal wanted
        wanted = reads
        turn.set()

    async def work() -> None:
        running = False
        while True:
            await turn.wait()
            turn.clear()
            if wanted != running:
                running = wanted
                if running:
                    for node in nodes:
                        node.start()
                else:
                    await asyncio.gather(*(node.stop() for node in nodes))

    task = asyncio.create_task(work())
    try:
        yield want
    finally:
        await _ended([task])
        await asyncio.gather(*(node.stop() for node in nodes))
