"""Compares the processes that the driver lists on the devices with the books, and acts on those that the books do not
have.

While a grant is in use the driver is asked every 50 ms, and at once when a process joins or a workload starts;
otherwise every second. It is asked in a thread, since it may be slow. gpushare.policy.audit.audit decides what to do.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator

from gpushare.api.findings import Act as Done
from gpushare.api.findings import Finding, FindingKind, Outcome
from gpushare.binding.arbiter import Arbiter
from gpushare.daemon.guard.driver_snapshot import DriverSnapshots, Snapshot
from gpushare.daemon.guard.findings import Findings, Key, finding
from gpushare.daemon.guard.holds import Holds, stopped
from gpushare.daemon.guard.memory import GroupMemory, Uncharged, Unowned
from gpushare.daemon.guard.overuse import Overuse
from gpushare.daemon.host import peer
from gpushare.daemon.state.live import Live, Workload
from gpushare.daemon.state.state import State
from gpushare.daemon.state.watch import Change
from gpushare.daemon.workloads.notifying import Notifier
from gpushare.enforce import cgroup, freezer
from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import GpushareError
from gpushare.node.devices import Backend
from gpushare.policy.audit import audit
from gpushare.policy.audit.audit import Act, Program, Rules, Stranger
from gpushare.policy.grants.lifecycle import Phase

log = logging.getLogger(__name__)

UNUSED_SECONDS = 1.0
_REST_SECONDS = 0.01
"""Least time between two looks, whatever triggers them."""

_TOO_MUCH: tuple[FindingKind, ...] = ("excess", "kept-memory")
_DONE = {
    "told": "it goes on",
    "frozen": "all processes of the grant are frozen until it has ended",
    "stopped": "it is stopped until it has ended",
    "killed": "it is killed",
    "held": "they are stopped as often and as long as it takes to keep them to their share",
}


class Audit:
    """Belongs to the event loop."""

    def __init__(
        self,
        state: State,
        backend: Backend,
        arbiter: Arbiter,
        findings: Findings,
        rules: Rules,
        publish: Callable[[Live, Change], None],
    ) -> None:
        """`publish`: puts a grant into the watch stream."""
        self._state, self._backend, self._findings, self._rules = state, backend, findings, rules
        self._publish = publish
        self.holds = Holds(state.layout.run / "frozen")
        self._overuse = Overuse(state, arbiter, findings, self.holds, rules, publish)
        self._snapshots = DriverSnapshots(backend, state.devices)
        self._uncharged = Uncharged(state, self._snapshots)
        self._notifier = Notifier(state.layout, rules)
        self._unowned, self._group_memory = Unowned(state, backend, findings), GroupMemory(state, backend)
        self._groups: dict[Key, Cgroup] = {}
        self._since: dict[Key, int] = {}
        """Monotonic ns at which each finding was made."""
        self._excesses = audit.Excesses()
        self._waiting: set[asyncio.Task[None]] = set()
        self._poked = asyncio.Event()
        self.looks = 0
        """Number of looks so far."""
        state.notices.append(self._notices)

    def changed(self, live: Live) -> None:
        """Called when workloads of a grant have started or ended: the devices are looked at now."""
        if live.workloads:  # without workloads nothing can run
            self._poked.set()

    async def run(self) -> None:
        """Audits without end."""
        while True:
            self._poked.clear()
            try:
                await self._round()
            except Exception:
                log.exception("the devices were not audited")
            await asyncio.sleep(_REST_SECONDS)
            wait = (self._state.timing.audit if self._in_use() else UNUSED_SECONDS) - _REST_SECONDS
            try:
                async with asyncio.timeout(wait):
                    await self._poked.wait()
            except TimeoutError:
                pass

    def _in_use(self) -> bool:
        return any(live.record.phase is Phase.ACTIVE for live in self._state)

    async def _round(self) -> None:
        snapshot = await self._take()
        new = [one for one in self._strangers(snapshot) if self._key(one) not in self._findings]
        if new:
            # A second snapshot, which is begun after it is known that they had not joined (audit.confirmed).
            again = await self._take()
            for one in audit.confirmed(new, self._strangers(again), self._joined()):
                if self._key(one) not in self._findings and not self._findings.full:
                    await self._found(one, snapshot.at_ns)
            snapshot = again
        await self._uncharged.follow(snapshot)
        await self._group_memory.follow(snapshot.at_ns)
        await self._snapshots.compare(snapshot, {row.device for row in self._held(snapshot) if audit.exceeds(row)})
        for row in self._excesses.follow(self._held(snapshot), snapshot.at_ns):
            self._exceeds(row)
        self._follow(snapshot)
        self._overuse.follow(snapshot.used, snapshot.at_ns)
        await self._unowned.follow(snapshot)
        self.holds.renew()
        if len(snapshot.listed) == len(self._state.devices):
            self.holds.forget_left()

    # What the driver reports.

    async def _take(self) -> Snapshot:
        self.looks += 1
        return await asyncio.to_thread(self._snapshots.take, len(self._state.devices), frozenset(self._joined()))

    def _joined(self) -> dict[int, int]:
        return {member.pid: member.started for live in self._state for member in live.record.members}

    def _strangers(self, snapshot: Snapshot) -> list[Stranger]:
        if not snapshot.unknown:
            return []
        joined = self._joined()
        groups = {
            workload.cgroup.path: live.id
            for live in self._state
            for workload in live.workloads
            if workload.cgroup is not None
        }
        firsts = {workload.record.pid: live.id for live in self._state for workload in live.workloads}
        users = {live.record.run_uid: live.id for live in self._state if live.record.open}
        found = []
        for one in snapshot.unknown:
            if one.program.pid in joined:
                continue
            inside = (groups.get(path) for path in (one.group, *one.group.parents)) if one.group is not None else ()
            grant = next(filter(None, inside), None) or firsts.get(one.program.pid) or users.get(one.uid, "")
            found.append(Stranger(one.program, one.device, grant, one.memory_bytes, one.busy_ns))
        return found

    @staticmethod
    def _key(one: Stranger) -> Key:
        kind: FindingKind = "evader" if one.grant else "outside"
        return Key(kind, one.grant, one.program.pid, one.program.started)

    def _held(self, snapshot: Snapshot) -> Iterator[audit.Held]:
        """Yields what the joined processes hold, by grant and device: their sum, or what the driver counts for the
        grant's cgroups where that is more."""
        for live in self._state:
            members = {member.pid: member.started for member in live.record.members}
            for place in live.record.places:
                pids = members.keys() & snapshot.listed.get(place.index, set())
                sizes = {pid: snapshot.held.get((place.index, pid), 0) for pid in pids}
                if sizes:
                    most = max(sizes, key=lambda pid: sizes[pid])
                    largest = Program(most, members[most])
                    listed = sum(sizes.values()) - snapshot.twice.get(place.index, 0)
                    size = max(listed, self._group_memory.of(live.id, place.index))
                    yield audit.Held(live.id, place.index, size, place.here_bytes, len(sizes), largest)

    # What is found.

    async def _found(self, one: Stranger, seen_ns: int) -> None:
        key = self._key(one)
        live = self._state.live(one.grant) if one.grant in self._state else None
        found = finding(self._state, key, one.device, live, memory_bytes=one.memory_bytes, busy_ns=one.busy_ns)
        group = None
        if audit.act(one, self._rules, 0) is not Act.TELL:
            found.act, found.note, group = self._stop(key, live)
        self._findings.add(key, found)
        self._since[key] = seen_ns
        if live is not None:
            self._publish(live, "changed")
            if found.act != "told" and self._findings.is_reported(key):
                self._notifier.notify(live, key.pid, key.started)
        if group is not None:
            task = asyncio.get_running_loop().create_task(self._stopped(key, found, group, seen_ns))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _stopped(self, key: Key, found: Finding, group: Cgroup, seen_ns: int) -> None:
        """Notes how long it took to stop, while the audit goes on."""
        at_ns = await stopped(group)
        found.stop_ns = at_ns - seen_ns if at_ns is not None else None
        if key in self._findings:
            self._findings.changed(key)

    def _exceeds(self, row: audit.Held) -> None:
        """Stops a grant that holds more memory than it may, like one with an evader in it."""
        if row.grant not in self._state or self._findings.full:
            return
        if any(known.kind in _TOO_MUCH and known.grant == row.grant for known in self._findings.lasting()):
            return
        live = self._state.live(row.grant)
        kind: FindingKind = "kept-memory" if any(place.hosted_bytes for place in live.record.places) else "excess"
        key = Key(kind, row.grant, row.largest.pid, row.largest.started)
        found = finding(self._state, key, row.device, live, memory_bytes=row.held_bytes)
        if self._rules.evader is not Act.TELL:
            found.act, found.note, _ = self._stop(key, live)
        self._findings.add(key, found)
        self._since[key] = time.monotonic_ns()
        self._publish(live, "changed")

    def _stop(self, key: Key, live: Live | None) -> tuple[Done, str, Cgroup | None]:
        """Freezes the grant's cgroup that holds the process; if there is none, stops the process by a signal. Returns
        what was done, a note, and the frozen cgroup."""
        workload = self._workload(key.pid, live) if live is not None else None
        why = ""
        if workload is not None and workload.cgroup is not None:
            try:
                self.holds.take(workload.cgroup, key)
            except GpushareError as error:
                why = str(error)
            else:
                self._groups[key] = workload.cgroup
                return "frozen", "", workload.cgroup
        if key.kind == "evader":
            why = why or (workload.record.loose if workload is not None else "") or "no cgroup of the grant holds it"
        pidfd = peer.reopen_pidfd(key.pid, key.started)
        if pidfd is None:
            return "told", "it had ended", None
        try:
            freezer.stop(pidfd)
        except OSError as error:
            return "told", f"it cannot be stopped: {error.strerror}", None
        finally:
            os.close(pidfd)
        return "stopped", why and f"by a signal, which its user can undo: {why}", None

    def _workload(self, pid: int, live: Live) -> Workload | None:
        try:
            own = cgroup.of_process(pid)
        except GpushareError:
            own = None
        for workload in live.workloads:
            if workload.cgroup is None or (own is not None and own.path.is_relative_to(workload.cgroup.path)):
                return workload
        return None

    # What becomes of it.

    def _follow(self, snapshot: Snapshot) -> None:
        keys = [key for key in self._findings.lasting() if key.kind in ("evader", "outside", *_TOO_MUCH)]
        if not keys:
            return
        joined, grants = self._joined(), {live.id for live in self._state}
        over_now = {(row.grant, row.device) for row in self._held(snapshot) if audit.exceeds(row)}
        for key in keys:
            found = self._findings[key]
            listed = snapshot.listed.get(found.device)
            excess = key.kind in _TOO_MUCH
            still = (key.grant, found.device) in over_now if excess else listed is not None and key.pid in listed
            over = audit.outcome(
                Program(key.pid, key.started),
                key.grant,
                grants=grants,
                joined={} if excess else joined,
                alive=peer.start_time(key.pid) == key.started,
                listed=listed is None or still,
            )
            if over:
                self._over(key, over)  # type: ignore[arg-type]
            else:
                self._again(key, found)
                self._grown_old(key, found)

    def _over(self, key: Key, outcome: Outcome) -> None:
        found = self._findings[key]
        if (group := self._groups.pop(key, None)) is not None:
            self.holds.release(group, key)
        elif found.act == "stopped" and (pidfd := peer.reopen_pidfd(key.pid, key.started)) is not None:
            freezer.go_on(pidfd)
            os.close(pidfd)
        self._since.pop(key, None)
        self._findings.end(key, outcome)
        if key.grant in self._state:
            self._publish(self._state.live(key.grant), "changed")

    def _again(self, key: Key, found: Finding) -> None:
        """Stops the process again if it was stopped by a signal: another process of its user may have continued it."""
        if found.act == "stopped" and (pidfd := peer.reopen_pidfd(key.pid, key.started)) is not None:
            freezer.stop(pidfd)
            os.close(pidfd)

    def _grown_old(self, key: Key, found: Finding) -> None:
        one = Stranger(Program(key.pid, key.started), found.device, key.grant, None, 0)
        if found.act == "killed" or audit.act(one, self._rules, time.monotonic_ns() - self._since[key]) is not Act.KILL:
            return
        pidfd = peer.reopen_pidfd(key.pid, key.started)
        if pidfd is None:
            return
        freezer.kill(pidfd)
        os.close(pidfd)
        found.act = "killed"
        if (group := self._groups.get(key)) is not None and not group.v2:
            self._groups.pop(key)
            self.holds.release(group, key)  # in cgroup v1 a frozen process does not end
        self._findings.changed(key)

    def _notices(self, live: Live) -> Iterator[str]:
        for found in self._findings.of_grant(live.id):
            done = _DONE[found.act]
            what = f"process {found.pid} ({found.command or '?'}) uses device {found.device} and has not joined"
            if found.kind == "excess":
                what = f"its processes hold {found.memory_bytes} bytes of device {found.device}, more than they may"
            if found.kind == "kept-memory":
                what = f"{found.memory_bytes} bytes of it are on device {found.device}, and it says that they have left"
            if found.kind == "overuse":
                what = f"its processes use device {found.device} for longer than they are charged"
            yield f"{what}: {done}"

    def close(self) -> None:
        """Called when the daemon stops: evaders stay stopped, and the next daemon looks again."""
        self._findings.close()
        self._overuse.close()
        self._notifier.close()
        for task in self._waiting:
            task.cancel()
