"""Stops grants that, by the driver's count, use a device for longer than they report, until they have had no more than
their share. The decisions are in gpushare.policy.audit.overuse."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpushare.api.findings import Outcome
from gpushare.binding.arbiter import Arbiter
from gpushare.daemon.guard.findings import Findings, Key, finding
from gpushare.daemon.guard.holds import Holds
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.daemon.state.watch import Change
from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import GpushareError
from gpushare.policy.audit import overuse
from gpushare.policy.audit.audit import Act, Rules
from gpushare.policy.audit.overuse import Account

_LOOK_NS = 1_000_000_000
"""Between two looks while nobody is restrained: a driver's counts change no more often."""
NO_CGROUP = "no cgroup of the grant holds its processes"

_Used = dict[tuple[int, int], int]
"""By device and pid, ns."""


@dataclass(slots=True)
class _Case:
    """One grant on one device. `place`: the reason for which its cgroups are stopped; each device of a grant is a
    reason of its own. `had_ns`: at the last look. `key`: its finding's. `groups`: those that are stopped."""

    place: tuple[str, int]
    had_ns: int
    account: Account
    key: Key | None = None
    groups: list[Cgroup] = field(default_factory=list)


class Overuse:
    """Belongs to the event loop."""

    def __init__(
        self,
        state: State,
        arbiter: Arbiter,
        findings: Findings,
        holds: Holds,
        rules: Rules,
        publish: Callable[[Live, Change], None],
    ) -> None:
        self._state, self._arbiter, self._findings, self._holds = state, arbiter, findings, holds
        self._rules, self._publish = rules, publish
        self._at_ns = 0
        self._used: _Used = {}
        self._cases: dict[tuple[str, int], _Case] = {}
        self._found = 0

    def follow(self, used: _Used, at_ns: int) -> None:
        """`used`: device time of each process so far, as the driver reports; `at_ns`: monotonic, when it was asked."""
        self._forget()
        wall_ns = at_ns - self._at_ns
        if wall_ns < _LOOK_NS and not self._found:
            return
        before, self._used, self._at_ns = self._used, used, at_ns
        # For a new process it is not known since when it has used its time: it counts from now.
        grown: dict[int, dict[int, int]] = defaultdict(dict)
        for (device, pid), ns in used.items():
            grown[device][pid] = max(0, ns - before.get((device, pid), ns))
        took = {device: overuse.sliced(here, wall_ns) for device, here in grown.items()}
        self._found = 0
        for live in list(self._state):
            if live.handle is not None and live.record.members:
                for ordinal, place in enumerate(live.record.places):
                    self._look(live, ordinal, place.index, took.get(place.index, {}), wall_ns)

    def _look(self, live: Live, ordinal: int, device: int, took: Mapping[int, int], wall_ns: int) -> None:
        assert live.handle is not None
        had_ns = self._arbiter.grant_stats(live.handle, device).had_ns
        case = self._cases.get((live.id, device))
        if case is None:
            self._cases[live.id, device] = _Case(
                (live.id, device), had_ns, Account(round(self._state.timing.doubt * 1e9))
            )
            return
        mine = {member.pid: took.get(member.pid, 0) for member in live.record.members}
        book = live.books.get(device)
        guaranteed = live.shares[ordinal].guarantee_milli if live.shares else 0
        due = max(guaranteed, book.entitled_milli if book is not None else 0)
        case.account.follow(sum(mine.values()), had_ns - case.had_ns, due, wall_ns)
        case.had_ns = had_ns
        if case.account.found:
            self._found += 1
            if case.key is None:
                self._begin(case, live, device, mine)
            self._stop_or_go(case, live)
        elif case.key is not None:
            self._end(case, "within")

    def _begin(self, case: _Case, live: Live, device: int, mine: Mapping[int, int]) -> None:
        pid = max(mine, key=lambda one: mine[one])
        started = next(member.started for member in live.record.members if member.pid == pid)
        case.key = Key("overuse", live.id, pid, started)
        if self._findings.full or case.key in self._findings:
            return
        held = self._rules.evader is not Act.TELL
        reachable = any(workload.cgroup is not None for workload in live.workloads)
        found = finding(
            self._state,
            case.key,
            device,
            live,
            busy_ns=self._used[device, pid],
            act="held" if held and reachable else "told",
            note=NO_CGROUP if held and not reachable else "",
        )
        self._findings.add(case.key, found)
        self._publish(live, "changed")

    def _stop_or_go(self, case: _Case, live: Live) -> None:
        assert case.key is not None
        if not case.account.stopped:
            self._let_go(case)
        elif not case.groups and self._rules.evader is not Act.TELL:
            for workload in live.workloads:
                if workload.cgroup is not None:
                    try:
                        self._holds.take(workload.cgroup, case.place)
                    except GpushareError as error:
                        if case.key in self._findings:
                            self._findings[case.key].note = str(error)
                    else:
                        case.groups.append(workload.cgroup)

    def _let_go(self, case: _Case) -> None:
        for group in case.groups:
            self._holds.release(group, case.place)
        case.groups.clear()

    def _end(self, case: _Case, outcome: Outcome) -> None:
        self._let_go(case)
        key, case.key = case.key, None
        if key is not None and key in self._findings:
            self._findings.end(key, outcome)
            if key.grant in self._state:
                self._publish(self._state.live(key.grant), "changed")

    def _forget(self) -> None:
        for grant, device in [key for key in self._cases if key[0] not in self._state]:
            self._end(self._cases.pop((grant, device)), "released")

    def close(self) -> None:
        """Called when the daemon stops: restrained grants go on, since nobody would let them go later."""
        for case in self._cases.values():
            self._let_go(case)
