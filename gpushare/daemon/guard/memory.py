"""Device memory as the driver counts it, compared with the books of grants."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from gpushare.binding.pages import held
from gpushare.daemon.guard.driver_snapshot import DriverSnapshots, Snapshot
from gpushare.daemon.guard.findings import Findings, Key, finding
from gpushare.daemon.residency import reports
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.errors import GpushareError
from gpushare.node.devices import Backend
from gpushare.policy.audit import audit, uncharged
from gpushare.policy.audit.uncharged import Reading

_SECOND_NS = 1_000_000_000
_UNCHARGED_NS = 90_000_000
"""Least time between two readings: one with every round of the audit would cost twice as much."""


class GroupMemory:
    """The driver's counts for the cgroups of grants, where it limits their memory: all that is in use there, whether or
    not the driver attributes it to a process. Belongs to the event loop."""

    def __init__(self, state: State, backend: Backend) -> None:
        self._state, self._backend = state, backend
        self._at_ns = 0
        self._bytes: dict[tuple[str, int], int] = {}

    async def follow(self, at_ns: int) -> None:
        """Asks the driver, at most once a second. `at_ns`: monotonic."""
        if at_ns - self._at_ns < _SECOND_NS:
            return
        self._at_ns = at_ns
        wanted = [
            (live.id, place.index, Path(row.cgroup[0]))
            for live in self._state
            for row in live.record.workloads
            if row.cgroup is not None and not row.unlimited
            for place in live.record.places
        ]
        self._bytes = await asyncio.to_thread(self._ask, wanted) if wanted else {}

    def _ask(self, wanted: list[tuple[str, int, Path]]) -> dict[tuple[str, int], int]:
        """Asks the driver; runs in a thread."""
        found: dict[tuple[str, int], int] = {}
        for grant, device, group in wanted:
            try:
                size = self._backend.group_memory(device, group)
            except GpushareError:  # the workload has ended
                continue
            found[grant, device] = found.get((grant, device), 0) + size
        return found

    def of(self, grant: str, device: int) -> int:
        """Bytes of all workloads of a grant, at most a second old; 0 where the driver does not report them."""
        return self._bytes.get((grant, device), 0)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the uncharged bytes of one grant on one device, from `known` to `size`. `ordinal`: of the device in
    the grant; `device`: its number."""

    live: Live
    ordinal: int
    device: int
    known: int
    size: int


class Uncharged:
    """What the driver counts for a grant's processes beyond what they were charged goes into the grant's limits page
    and counts against its limit. How much that is: gpushare.policy.audit.uncharged. Belongs to the event loop."""

    def __init__(self, state: State, snapshots: DriverSnapshots) -> None:
        self._state, self._snapshots = state, snapshots
        self._policy = uncharged.Uncharged()
        self._books: dict[tuple[str, int], tuple[int, int]] = {}
        """By grant and ordinal: least and most charged bytes at the reading before."""
        self._at_ns = 0

    async def follow(self, snapshot: Snapshot) -> None:
        """Updates all grants' uncharged bytes. `snapshot`: what the driver reports now."""
        if snapshot.at_ns - self._at_ns < _UNCHARGED_NS:
            return
        self._at_ns = snapshot.at_ns
        before, self._books = self._books, {}
        changes = [
            change
            for live in self._state
            for ordinal, place in enumerate(live.record.places)
            if place.index in snapshot.listed
            if (change := self._change(live, ordinal, snapshot, before)) is not None
        ]
        self._policy.keep(self._books)
        await self._snapshots.compare(snapshot, {one.device for one in changes if one.size > one.known})
        for one in changes:
            if one.live.limits is not None:  # it may have ended meanwhile
                size = one.size if one.size < one.known else max(one.known, one.size - snapshot.twice[one.device])
                one.live.limits.set_uncharged(one.ordinal, size)

    def _change(
        self, live: Live, ordinal: int, snapshot: Snapshot, before: dict[tuple[str, int], tuple[int, int]]
    ) -> _Change | None:
        known, device = live.uncharged(ordinal), live.record.places[ordinal].index
        if not live.record.members:  # the next process has all of the limit
            return _Change(live, ordinal, device, known, 0) if known else None
        pids = [member.pid for member in live.record.members if member.pid in snapshot.listed[device]]
        if live.limits is None or live.usage is None or any((device, pid) not in snapshot.held for pid in pids):
            return None  # the driver does not report it
        key = (live.id, ordinal)
        now = self._books[key] = held(live.limits, live.usage, ordinal)
        least, most = before.get(key, now)
        # Each has a context, or the driver would not list it.
        size = sum(snapshot.held[device, pid] for pid in pids) + len(pids) * self._state.devices[device].unlisted_bytes
        if live.asked.lends:  # the books have what is in host memory, too
            size += reports.sums(live).hosted_bytes
        found = self._policy.follow(key, Reading(size, min(least, now[0]), max(most, now[1])), known)
        return _Change(live, ordinal, device, known, found) if found != known else None


class Unowned:
    """Memory that, by the driver's count, no process has: it is only reported, since nobody can be stopped for it.
    Belongs to the event loop."""

    def __init__(self, state: State, backend: Backend, findings: Findings) -> None:
        self._state, self._backend, self._findings = state, backend, findings
        self._policy = audit.Unowned(round(state.timing.unowned * 1e9))
        self._at_ns = 0

    async def follow(self, snapshot: Snapshot) -> None:
        """Compares once a second."""
        if snapshot.at_ns - self._at_ns < _SECOND_NS:
            return
        self._at_ns = snapshot.at_ns
        reported = {index: [snapshot.held.get((index, pid)) for pid in pids] for index, pids in snapshot.listed.items()}
        unlisted = [device.unlisted_bytes for device in self._state.devices]
        had = {
            index: sum(filter(None, sizes)) + len(sizes) * unlisted[index]
            for index, sizes in reported.items()
            if None not in sizes
        }
        used = await asyncio.to_thread(self._used, list(had))
        extra = {index: used[index] - had[index] - self._state.devices[index].reserved_bytes for index in used}
        found = self._policy.follow(extra, snapshot.at_ns)
        for index in had:
            key = Key("unowned", "", 0, index)
            if index in found and key not in self._findings and not self._findings.full:
                self._findings.add(key, finding(self._state, key, index, memory_bytes=found[index]))
            elif extra.get(index, 0) <= audit.UNOWNED_BYTES and key in self._findings:
                self._findings.end(key, "within")

    def _used(self, devices: list[int]) -> dict[int, int]:
        """Bytes in use by device; runs in a thread."""
        used = {}
        for index in devices:
            try:
                used[index] = self._backend.memory_used(index)
            except GpushareError:
                continue
        return used
