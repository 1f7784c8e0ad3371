"""Queries of the node for the screen, made off its event loop."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpushare.client import Client
from gpushare.client.verbs import segment
from gpushare.errors import NotFoundError, RefusedError, UsageError
from gpushare.processes.users import user_name
from gpushare.text import sentences
from gpushare.tui.model import Answers, Json, Use, leader
from gpushare.tui.processes import Processes

PATIENCE_SECONDS = 5.0
"""Timeout for an answer: after it the screen marks its data as old."""
RECEIPTS = 100
"""Maximum number of receipts shown of a grant, newest first."""
_OF_LEASES = frozenset({"served", "taken", "took", "gave_up", "waited", "late", "lie", "refused"})
"""Decisions that are left out, since receipts report them in more detail."""

Found = TypeVar("Found")


async def aside(work: Callable[[], Found]) -> Found:
    """Runs `work` in a daemon thread, which, unlike an executor's, does not keep the process from exiting. Raises what
    `work` raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Found] = loop.create_future()

    def deliver(found: Found | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(found)  # type: ignore[arg-type]  # of a call that returned

    def run() -> None:
        found, error = None, None
        try:
            found = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits the result
            loop.call_soon_threadsafe(deliver, found, error)

    threading.Thread(target=run, daemon=True).start()
    return await done


@dataclass(frozen=True, slots=True)
class Story:
    """The history of one grant. `now`: its current state. `lines`: receipts and decisions, newest first."""

    grant: str
    now: list[str]
    lines: list[str]


class Looker:
    """Looks at a node, and at the processes of its grants on this machine. Keeps what the last look found, since
    processor and device time come as sums."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._processes = Processes()
        self._busy: dict[tuple[str, int, int], tuple[int, int]] = {}

    def look(self, opened: Collection[str] = ()) -> Answers:
        """Makes one look. `opened`: the grants whose processes are shown. Raises GpushareError."""
        grants, devices, tenants = self._rows("grants"), self._rows("devices"), self._rows("tenants")
        shown = [grant for grant in grants if grant["id"] in opened]
        pids = {leader(grant) for grant in grants} | {pid for grant in shown for pid in grant["processes"]}
        return Answers(
            grants,
            devices,
            tenants,
            at_ns=time.time_ns(),
            host=self._processes.host(),
            users={uid: user_name(uid) for uid in {grant["uid"] for grant in grants}},
            processes=self._processes.look(pids - {0}),
            uses=self._uses(shown),
        )

    def _rows(self, name: str) -> list[Json]:
        # For a hundred grants this is a millisecond faster than Client.call.
        found: list[Json] = msgspec.json.decode(self._client.text(f"/v1/{name}", timeout=PATIENCE_SECONDS))[name]
        return found

    def _uses(self, grants: Iterable[Json]) -> dict[tuple[str, int, int], Use]:
        found, busy = {}, {}
        for grant in grants:
            target = f"/v1/grants/{segment(grant['id'])}/debug"
            try:
                pages = msgspec.json.decode(self._client.text(target, timeout=PATIENCE_SECONDS))
            except (RefusedError, UsageError):
                continue  # it is another user's, or has ended
            now = time.monotonic_ns()
            for process in pages["processes"]:
                for device in process["devices"]:
                    key = grant["id"], grant["devices"][device["ordinal"]]["index"], process["pid"]
                    before, busy[key] = self._busy.get(key), (device["busy_ns"], now)
                    got = (device["busy_ns"] - before[0]) * 1000 // max(1, now - before[1]) if before else None
                    found[key] = Use(
                        max(0, device["memory_bytes"] - device["hosted_bytes"]),
                        min(max(got, 0), 1000) if got is not None else None,
                    )
        self._busy = busy
        return found


def story(client: Client, grant: str) -> Story:
    """Queries the history of a grant. Raises GpushareError."""
    name = quote(grant, safe="")
    try:
        why = client.call("GET", f"/v1/explain/{name}?limit=0", timeout=PATIENCE_SECONDS)
    except NotFoundError as error:
        return Story(grant, [str(error)], [])
    found = client.call("GET", f"/v1/events?grant={name}&limit={RECEIPTS}", timeout=PATIENCE_SECONDS)
    lines = [(event["at_ns"], sentences.event(event)) for event in found["events"]]
    lines += [
        (decision["at_ns"], f"{sentences.clock(decision['at_ns'])}  {decision['text']}")
        for decision in why["decisions"]
        if decision["what"] not in _OF_LEASES
    ]
    lines.sort(key=lambda one: one[0], reverse=True)
    return Story(
        grant, [*why.get("why", ()), *why["now"]] or [f"its phase is {why['phase']}"], [text for _, text in lines]
    )
