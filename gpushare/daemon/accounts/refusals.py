"""Calls that were refused device memory: from what processes say of themselves to the record of their grant, and to
events about it. Called on the event loop only."""

import time
from typing import Literal

from msgspec.structs import asdict

from gpushare.api.share import MemoryRefused
from gpushare.binding.arbiter import Arbiter
from gpushare.binding.arbiter_events import Refusals as Counted
from gpushare.binding.page_words import Refusal
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import MemberRecord, Refusals
from gpushare.daemon.state.state import State, now_ns
from gpushare.text.reasons import refused_in_words

_CALLS = 1 << 32
"""Processes count modulo this."""
_TELL_NS = 1_000_000_000
"""Least time between two events about a grant."""
_MOST_BYTES = 1 << 62


class MemoryRefusals:
    """A process can say what it likes of itself, and harms only the counters of its own grant."""

    def __init__(self, state: State, arbiter: Arbiter) -> None:
        self._state, self._arbiter = state, arbiter
        self._told: dict[str, tuple[int | None, dict[int, int]]] = {}
        """By grant that was refused memory in this run of the daemon: when its last event was recorded, monotonic, and
        how many calls by ordinal had been told then, by earlier runs too."""

    def look(self, live: Live) -> bool:
        """Counts what the processes of a grant say now. True: there is something new, and it is time to publish it."""
        self._count(live)
        return self._tell(live, _TELL_NS)

    def left(self, live: Live, slot: int) -> None:
        """Called before the slot of a process that has ended is emptied."""
        for member in live.record.members:
            if member.slot == slot:
                self._read(live, member)

    def ends(self, live: Live) -> None:
        """Called with a grant that is about to end, while it is still served."""
        self._count(live)
        self._tell(live, 0)
        self._told.pop(live.id, None)

    def _count(self, live: Live) -> None:
        for member in live.record.members:
            self._read(live, member)

    def _read(self, live: Live, member: MemberRecord) -> None:
        if live.usage is None or live.usage.refusals(member.slot) == member.refusals:
            return
        self._told.setdefault(live.id, (None, _calls(live)))
        said = live.usage.refused(member.slot)
        new, member.refusals = (said.calls - member.refusals) % _CALLS, said.calls
        ordinal = said.ordinal if said.ordinal < len(live.record.places) else 0
        limit = live.record.places[ordinal].memory_bytes
        here = next((one for one in live.record.refused if one.ordinal == ordinal), None)
        if here is None:
            live.record.refused.append(here := Refusals(ordinal=ordinal))
        here.calls += new
        here.last = MemoryRefused(
            at_ns=now_ns(),
            asked_bytes=min(said.asked_bytes, _MOST_BYTES),
            left_bytes=min(said.left_bytes, limit),
            limit_bytes=limit,
            why=_WHY.get(said.why, "limit"),
        )

    def _tell(self, live: Live, least_ns: int) -> bool:
        if live.id not in self._told:
            return False
        now, (at, told) = time.monotonic_ns(), self._told[live.id]
        new = [one for one in live.record.refused if one.calls != told.get(one.ordinal, 0)]
        if not new or (at is not None and now - at < least_ns):
            return False
        for one in new:
            self._event(live, one, told.get(one.ordinal, 0))
        self._told[live.id] = now, _calls(live)
        return True

    def _event(self, live: Live, one: Refusals, before: int) -> None:
        place, last = live.record.places[one.ordinal], one.last
        if last is None:
            return
        if live.handle is not None:
            why = next(code for code, word in _WHY.items() if word == last.why)
            found = Counted(one.calls - before, last.asked_bytes, last.left_bytes, last.limit_bytes, Refusal(why))
            self._arbiter.refused(live.handle, place.index, found)
        self._state.decisions.refused(live.id, place.index, refused_in_words(one.calls, asdict(last)), one.calls, last)


def _calls(live: Live) -> dict[int, int]:
    """By ordinal of a device, how many calls are counted."""
    return {one.ordinal: one.calls for one in live.record.refused}


_WHY: dict[int, Literal["limit", "device", "away"]] = {
    int(Refusal.LIMIT): "limit",
    int(Refusal.DEVICE): "device",
    int(Refusal.AWAY): "away",
}
