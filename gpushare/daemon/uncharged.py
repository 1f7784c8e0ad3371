"""What the driver counts for a grant's processes beyond what they were charged goes into the grant's limits page and
counts against its limit. How much that is: gpushare.policy.uncharged."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpushare.daemon.state import State
from gpushare.pages import LimitsPage, UsagePage, held
from gpushare.policy import uncharged
from gpushare.policy.uncharged import Reading


@dataclass(frozen=True, slots=True)
class _Place:
    """A grant on one device: its ordinal in the grant, its number, and the processes that have joined."""

    grant: str
    ordinal: int
    device: int
    limits: LimitsPage
    usage: UsagePage
    pids: frozenset[int]


class Uncharged:
    """Belongs to the event loop. Around each question to the driver: `read`, then `follow` with its answer."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._policy = uncharged.Uncharged()
        self._before: dict[tuple[str, int], tuple[int, int]] = {}

    def read(self) -> None:
        """The books as they are before the driver is asked."""
        self._before = {(one.grant, one.ordinal): held(one.limits, one.usage, one.ordinal) for one in self._used()}

    def follow(self, listed: Mapping[int, Collection[int]], counted: Mapping[tuple[int, int], int]) -> None:
        """`listed`: pids by device; `counted`: bytes by device and pid, where the driver says it."""
        seen = []
        for one in self._used():
            key = (one.grant, one.ordinal)
            if key not in self._before or one.device not in listed:
                continue
            seen.append(key)
            pids = one.pids.intersection(listed[one.device])
            if any((one.device, pid) not in counted for pid in pids):
                continue  # the driver does not say
            (least, most), (less, more) = self._before[key], held(one.limits, one.usage, one.ordinal)
            # Each has a context, or the driver would not list it.
            size = sum(counted[one.device, pid] + self._state.devices[one.device].unlisted_bytes for pid in pids)
            known = one.limits.uncharged(one.ordinal)
            now = self._policy.follow(key, Reading(size, min(least, less), max(most, more)), known)
            if now != known:
                one.limits.set_uncharged(one.ordinal, now)
        self._policy.keep(seen)

    def _used(self) -> Iterator[_Place]:
        """Of grants that somebody has joined."""
        for live in self._state:
            if live.limits is None or live.usage is None or not live.record.members:
                continue
            pids = frozenset(member.pid for member in live.record.members)
            for ordinal, place in enumerate(live.record.places):
                yield _Place(live.id, ordinal, place.index, live.limits, live.usage, pids)
