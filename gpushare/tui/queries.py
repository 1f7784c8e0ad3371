"""Queries of the node for the screen, made off its event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import msgspec

from gpushare.client import Client
from gpushare.errors import NotFoundError
from gpushare.text import sentences
from gpushare.tui.model import Answers, Json

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


def look(client: Client) -> Answers:
    """Queries the node for one look. Raises GpushareError."""

    def rows(name: str) -> list[Json]:
        # For a hundred grants this is a millisecond faster than Client.call.
        found: list[Json] = msgspec.json.decode(client.text(f"/v1/{name}", timeout=PATIENCE_SECONDS))[name]
        return found

    return Answers(rows("grants"), rows("devices"), rows("tenants"))


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
