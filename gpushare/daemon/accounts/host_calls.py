"""What programs asked of their devices that would have to go over a link if those were elsewhere: from what processes
say of themselves to the record of their grant. Called on the event loop only.

The numbers decide nothing: predictions are made of them (policy/remote/predict.py). They are read once a second, and
before the slot of a process that has ended is emptied. Records are written with every other change of a grant, and once
a minute while the numbers change: what living processes have counted since stays in their slots, so that a restart of
the daemon loses nothing but a part of `running_ns`.
"""

import time

from gpushare.binding.page_words import HostCalls
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import MemberRecord
from gpushare.daemon.state.state import State

_SAVE_NS = 60_000_000_000
_SLACK_NS = 50_000_000
_CALLS_PER_NS = 1
"""No call returns within less than that; a few threads at once are one process's."""
_BYTES_PER_NS = 1 << 10
"""A terabyte a second: more than any bus."""


class HostCounts:
    """Counts what processes say, and no more than the time that has passed allows."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._saved: dict[str, int] = {}
        """By grant: when its record was last written for this, monotonic."""
        self._most_ns = _SAVE_NS + state.ledger.gap_ns
        """A record is at most that much older than a restart."""

    def look(self, live: Live, *, works: bool) -> None:
        """Counts what the processes of a grant say now. `works`: its devices had work of it since the last look."""
        now = time.monotonic_ns()
        if live.usage is None or not live.record.members:
            return
        changed = [self._read(live, member, now) for member in live.record.members]
        self._ran(live, now, ran=works or any(changed))
        if any(changed) and now - self._saved.get(live.id, 0) >= _SAVE_NS:
            self._saved[live.id] = now
            self._state.save(live.record)

    def left(self, live: Live, slot: int) -> None:
        """Called before the slot of a process that has ended is emptied."""
        now = time.monotonic_ns()
        for member in live.record.members:
            if member.slot == slot and live.usage is not None:
                self._ran(live, now, ran=self._read(live, member, now))

    def ends(self, live: Live) -> None:
        """Called with a grant that is about to end, while it is still served."""
        self.look(live, works=False)
        self._saved.pop(live.id, None)

    def _ran(self, live: Live, now: int, *, ran: bool) -> None:
        """Counts the time since the last look, or since the first of its processes joined, as time in which the grant's
        programs ran, or not."""
        assert live.usage is not None
        host = live.record.host
        joined = min(live.usage.since_ns(member.slot) for member in live.record.members)
        since = max(joined, min(host.until_ns, now), now - self._most_ns)
        if ran and since < now:
            host.running_ns += now - since
        host.until_ns = now

    def _read(self, live: Live, member: MemberRecord, now: int) -> bool:
        """Whether the process has done anything since it was last read."""
        assert live.usage is not None
        said, before, host = live.usage.host_calls(member.slot), member.host, live.record.host
        if said == before:
            return False
        passed = now - live.usage.since_ns(member.slot) + _SLACK_NS
        calls, size = passed * _CALLS_PER_NS, passed * _BYTES_PER_NS
        member.host = HostCalls(
            *(min(max(new, old), most) for new, old, most in zip(said, before, (calls, size, size), strict=True))
        )
        host.sync_calls += max(0, member.host.sync_calls - before.sync_calls)
        host.bytes_in += max(0, member.host.bytes_in - before.bytes_in)
        host.bytes_out += max(0, member.host.bytes_out - before.bytes_out)
        return member.host != before
