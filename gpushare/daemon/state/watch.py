"""The watch stream: the last events in a ring, numbered without gaps, and the readers that wait for more.

`rv` starts at run << 32, so that a number from an earlier run of the daemon is always recognised as lost history;
below 2**53, so that any JSON reader keeps it exact.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import msgspec

from gpushare.api.types import Event, Name
from gpushare.errors import GoneError

RING = 4096
BOOKMARK_SECONDS = 10.0

Kind = Literal["grant", "tenant", "device", "node", "eviction", "gang", "finding", "attachment"]
Change = Literal["added", "changed", "removed"]


class Watch:
    """The ring of the last RING events. `epoch`: the number of this run of the daemon."""

    def __init__(self, run: int) -> None:
        self.epoch = run
        self._first = (run << 32) + 1
        self.rv = run << 32
        # Encoded: as objects a full ring would take ten times the memory, and every reader would encode it again.
        self._ring: deque[bytes] = deque(maxlen=RING)
        self._more = asyncio.Event()
        self._closed = False

    def publish(self, kind: Kind, change: Change, build: Callable[[int], Any], name: Name = "") -> int:
        """Adds an event and returns its number. `build(rv)` makes the object, which may contain that number. `name`:
        what happened, where `change` alone does not say it."""
        self.rv += 1
        self._ring.append(
            _line(Event(rv=self.rv, epoch=self.epoch, kind=kind, type=change, name=name, object=build(self.rv)))
        )
        self._more.set()
        self._more = asyncio.Event()
        return self.rv

    def check(self, since: int) -> None:
        """Raises GoneError when events after `since` were lost."""
        oldest = self.rv - len(self._ring) + 1
        if since + 1 < oldest or since > self.rv or since < self._first - 1:
            raise GoneError(f"events after {since} are gone (now at {self.rv}, epoch {self.epoch}): list again")

    def _bookmark(self) -> bytes:
        return _line(Event(rv=self.rv, epoch=self.epoch, kind="bookmark", type="bookmark"))

    async def lines(self, since: int) -> AsyncIterator[bytes]:
        """NDJSON of all events after `since`, then of new ones as they come. A bookmark comes first, and whenever no
        event came for BOOKMARK_SECONDS. Raises GoneError when the reader is slower than the ring."""
        yield self._bookmark()
        while not self._closed:
            more = self._more
            self.check(since)
            # Line by line: a reader that stops for a while must not keep lines that the ring has dropped. rv has no
            # gaps, so the position in the ring follows from the number.
            if since < self.rv:
                yield self._ring[since - self.rv]
                since += 1
                continue
            try:
                await asyncio.wait_for(more.wait(), BOOKMARK_SECONDS)
            except TimeoutError:
                yield self._bookmark()

    def close(self) -> None:
        """Ends all readers."""
        self._closed = True
        self._more.set()


def _line(event: Event) -> bytes:
    return msgspec.json.encode(event) + b"\n"
