"""Which program runs in each grant: the command line of its first process, read when somebody asks.

The daemon looks only at what no process can make slow (/proc/PID/stat); the command line itself is read by a helper,
and only after the process has run another program than before.
"""

import asyncio
import time
from collections.abc import Iterable

from gpushare.daemon.host import peer
from gpushare.daemon.host.readers import Readers
from gpushare.daemon.state.live import Live
from gpushare.errors import GpushareError

_FRESH_SECONDS = 2.0
"""A grant's process is not looked at again before."""
_SLOW_SECONDS = 60.0
"""How much longer if its command line could not be read in time."""
_LOOKS_MAX = 128
"""Grants that are looked at for one question, those that were never or longest ago first: some 3 ms."""
_WAIT_SECONDS = 0.01
"""How long an answer waits for command lines: one takes a millisecond. What is read later (the helper may have to be
started, which takes a tenth of a second) is in the next answer: nobody who wants the grants alone waits for it."""


class Programs:
    """Belongs to the event loop."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._task: asyncio.Task[None] | None = None
        self._until = 0.0
        """When answers wait no longer for the task, monotonic seconds."""

    async def learn(self, lives: Iterable[Live]) -> None:
        """Updates the programs of grants that are about to be shown, as far as that takes no longer than a moment."""
        if self._task is None or self._task.done():
            if not (changed := _changed(list(lives))):
                return
            self._task = asyncio.get_running_loop().create_task(self._read(changed))
            self._until = time.monotonic() + _WAIT_SECONDS
        await asyncio.wait({self._task}, timeout=max(0, self._until - time.monotonic()))

    async def _read(self, lives: list[Live]) -> None:
        # One after the other: these readers also look up users.
        for live in lives:
            try:
                live.record.program = await self._readers.command(live.seen.process[0]) or live.record.program
            except GpushareError:  # it was slow: whatever it runs next, it does not delay others soon again
                live.seen.at = time.monotonic() + _SLOW_SECONDS

    def close(self) -> None:
        """Stops reading."""
        if self._task is not None:
            self._task.cancel()


def _changed(lives: list[Live]) -> list[Live]:
    """The grants whose first process runs another program than when it was last looked at."""
    now = time.monotonic()
    due = [live for live in lives if live.seen.at + _FRESH_SECONDS <= now and not _is_served(live)]
    found = []
    for live in sorted(due, key=lambda live: live.seen.at)[:_LOOKS_MAX]:
        live.seen.at = now
        if (first := _first(live)) is None or (status := peer.status(first[0])) is None or status.started != first[1]:
            continue
        if (live.seen.process, live.seen.image) != (first, status.image):
            live.seen.process, live.seen.image = first, status.image
            found.append(live)
    return found


def _is_served(live: Live) -> bool:
    """Whether its first process is gpushare's own, beside a carrier's server."""
    return live.starting or bool(live.attachments)


def _first(live: Live) -> tuple[int, int] | None:
    """Pid and start time of the grant's first process that lives: of a workload or, in a grant that is open to a user,
    the first that joined."""
    for workload in live.workloads:
        if workload.pidfd is not None:
            return workload.record.pid, workload.record.started
    return min(((one.pid, one.started) for one in live.record.members), key=lambda one: one[1], default=None)
