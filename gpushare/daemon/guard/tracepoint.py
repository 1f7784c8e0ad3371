"""The tracepoint tier in the daemon: which cgroups it limits, to how much, and what it reports. Called on the event
loop only.

It counts the memory that processes ask of the driver, past the interposer or through it, so that a grant's limit holds
without the interposer as well. It sums over all of the grant's devices: the ioctls identify a device only in terms that
are not known outside the driver.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpushare.daemon.host.logs import Seldom
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import GrantRecord
from gpushare.daemon.state.state import State
from gpushare.enforce import cgroup, rm
from gpushare.enforce.cgroup import Cgroup
from gpushare.enforce.guard import Event, Guard, Kind
from gpushare.errors import FailedError, GpushareError, UsageError
from gpushare.inject.node import Node
from gpushare.text.units import MIB

log = logging.getLogger(__name__)

_seldom = Seldom()

Mode = Literal["kill", "log", "off"]

SLACK_BYTES = 64 * MIB
"""Per device: the driver takes pages of 2 MiB for allocations that the interposer charges at their own size
(docs/security/limits.md, "Small allocations")."""

_LOST = "memory that a workload takes of the driver without the interposer is not held to its limit by the kernel"
_CONTROL = "/dev/nvidiactl"
_SETTLE_REST = 20
"""A look at all descriptors is followed by a pause of this many times its length: a user who ends processes in a row
must not keep the loop busy. Until then, memory in doubt counts against nobody."""
_REPORT_SECONDS = 1.0
_ROUNDS = 16  # reads of events per call; the ring has room for fewer
_STAND_IN = re.compile(r"([0-9]{1,4}):([0-9]{1,7}),([0-9.]{1,20})")


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver whose ioctls are read: its device nodes, and the version that determines how."""

    nodes: tuple[rm.Nodes, ...]
    version: str


def driver(node: Node, version: str, environment: Mapping[str, str] = os.environ) -> Driver | None:
    """The driver of this node. Simulated devices have none: GPUSHARE_SIM_RM=MAJOR:MINOR,VERSION names a device that
    stands in for its control node; returns None without it. Raises UsageError where that is malformed."""
    if not node.simulated:
        majors = {one.major for one in node.common_devices if one.path == _CONTROL}
        return Driver(tuple(rm.Nodes(major) for major in sorted(majors)), version) if majors else None
    asked = environment.get("GPUSHARE_SIM_RM", "")
    if not asked:
        return None
    found = _STAND_IN.fullmatch(asked)
    if found is None:
        raise UsageError(f"GPUSHARE_SIM_RM is {asked!r}: write MAJOR:MINOR,VERSION, as 136:5,580.65")
    minor = int(found[2])
    return Driver((rm.Nodes(int(found[1]), minor, minor),), found[3])


class Tracepoint:
    """`why`: why this tier limits no memory, empty where it does."""

    def __init__(self, state: State, found: Driver | None, mode: Mode) -> None:
        self._state = state
        self._guard: Guard | None = None
        self._cgroups: dict[int, tuple[str, Path]] = {}
        self._settle: asyncio.TimerHandle | None = None
        self._settled = 0.0  # time of the loop's clock before which there is no other look
        self._reported_at: dict[str, float] = {}
        self._kept_since: dict[int, float] = {}
        """By cgroup that holds too much: time of the first look that found it."""
        self._signal = 0
        self._exceeded: Callable[[Live, str], None] | None = None
        self.why = "simulated devices take no ioctls"
        if found is None:
            return
        self.why = "it is turned off in the configuration"
        if mode != "off":
            self._open(found, mode)
        state.walls.add("tracepoint", "memory", _LOST, self.why)

    def _open(self, found: Driver, mode: Mode) -> None:
        try:
            guard = Guard(rm.Layout(found.nodes))
        except FailedError as error:
            self.why = str(error)
        else:
            with contextlib.ExitStack() as unless_kept:
                unless_kept.callback(guard.close)
                self.why = _tried(guard)
                if not self.why:
                    unless_kept.pop_all()
                    self._guard = guard
        if self._guard is None:
            return
        if mode == "kill" and rm.is_known(found.version):
            self._signal = int(signal.SIGKILL)
        elif mode == "kill":
            self.why = f"the ioctls of driver {found.version} are not known: who takes too much is only logged"
        else:
            self.why = "it only logs, as configured"
        asyncio.get_running_loop().add_reader(self._guard.descriptor, self.listen)

    def start(self, exceeded: Callable[[Live, str], None]) -> None:
        """`exceeded`: called with each grant that took too much from now on, and a sentence."""
        self._exceeded = exceeded

    def close(self) -> None:
        """Closes the guard: it does not hold living grants until the next start."""
        guard, self._guard = self._guard, None
        if guard is not None:
            asyncio.get_running_loop().remove_reader(guard.descriptor)
            guard.close()
        if self._settle is not None:
            self._settle.cancel()

    def hold(self, record: GrantRecord, group: Cgroup | None) -> str:
        """Charges the processes of this cgroup from now on, before the first of them runs. Returns why their limit is
        not enforced, empty where it is."""
        if self._guard is None:
            return self.why
        if group is None or not group.v2:
            return "it has no cgroup of its own" if group is None else "no cgroup v2 hierarchy is mounted"
        try:
            number = self._guard.limit(group.path, _limit(record), self._signal)
        except FailedError as error:
            log.warning("grant %s: %s", record.id, error)
            return str(error)
        self._cgroups[number] = (record.id, group.path)
        return self.why

    def changed(self, live: Live) -> None:
        """Called when a grant has ended or has other places."""
        for number, (owner, path) in list(self._cgroups.items()):
            if owner != live.id:
                continue
            if live.record.phase.ended:
                self._reported_at.pop(live.id, None)
                self._forget(number)
            elif self._guard is not None:
                with contextlib.suppress(FailedError):  # a cgroup that is gone
                    self._guard.limit(path, _limit(live.record), self._signal)

    def _forget(self, number: int) -> None:
        del self._cgroups[number]
        self._kept_since.pop(number, None)
        if self._guard is not None:
            self._guard.forget(number)

    def listen(self) -> None:
        """Handles the events that the programs have reported."""
        if self._guard is None:
            return
        left = False
        for _ in range(_ROUNDS):
            events = self._guard.events()
            for event in events:
                if event.kind is not Kind.LEFT:
                    self._report(event)
            left = left or any(event.kind is Kind.LEFT for event in events)
            if not events:
                break
        if left:
            self._settle_at(self._settled)

    def _report(self, event: Event) -> None:
        """Reports an event, at most once a second per grant: a process may cause many in a row."""
        grant, now = self._cgroups.get(event.cgroup, ("", None))[0], time.monotonic()
        if grant not in self._state or now < self._reported_at.get(grant, 0.0):
            return
        self._reported_at[grant] = now + _REPORT_SECONDS
        log.warning("grant %s: %s", grant, sentence(event))
        if event.kind in (Kind.OVER, Kind.HIDDEN) and self._exceeded is not None:
            self._exceeded(self._state.live(grant), sentence(event))

    def _settle_at(self, when: float) -> None:
        """Schedules `_settle_now` for this time of the loop's clock, unless it is due before."""
        if self._settle is not None and self._settle.when() <= when:
            return
        if self._settle is not None:
            self._settle.cancel()
        self._settle = asyncio.get_running_loop().call_at(when, self._settle_now)

    def _settle_now(self) -> None:
        """Settles what ended processes held, and schedules itself again while there are cgroups: others may still have
        it."""
        self._settle = None
        if self._guard is None:
            return
        loop = asyncio.get_running_loop()
        began, settled = loop.time(), False
        try:
            self._guard.settle()
            settled = True
        except FailedError as error:
            _seldom.warning("settle", "what ended processes held is not given back: %s", error)
        now = loop.time()
        self._settled = now + _SETTLE_REST * (now - began)
        for number, (_, path) in list(self._cgroups.items()):
            if not path.exists():  # a workload of a grant that is kept has ended
                self._forget(number)
        if settled:
            for number in list(self._cgroups):
                self._end_if_kept(number, now)
        if self._cgroups:
            self._settle_at(now + self._state.timing.settle)

    def _end_if_kept(self, number: int, now: float) -> None:
        """Kills, or only reports, a cgroup that holds too much. One that took more while part of what it had was in
        doubt, and takes no more, causes no event of the tracepoint."""
        grant, path = self._cgroups[number]
        if self._guard is None or grant not in self._state:
            return
        live = self._state.live(grant)
        books, limit = self._guard.books(number), _limit(live.record)
        held = books.used - books.doubt - books.lost
        if held <= limit:
            self._kept_since.pop(number, None)
            return
        if now - self._kept_since.setdefault(number, now) < self._state.timing.kept:
            return
        self._kept_since[number] = now  # reported again after the same time
        done = "go on"
        if self._signal:
            try:
                Cgroup(path, v2=True).kill()
                done = "were killed"
            except FailedError as error:
                done = f"could not be killed ({error})"
        kept = f"its processes keep {held} bytes of the driver's memory, and may have {limit}: they {done}"
        log.warning("grant %s: %s", grant, kept)
        if self._exceeded is not None:
            self._exceeded(live, kept)


def sentence(event: Event) -> str:
    """The event in words."""
    who = f"process {event.pid} ({event.command})"
    got = "was killed" if event.signal == signal.SIGKILL else "goes on"
    match event.kind:
        case Kind.OVER:
            return (
                f"{who} asked the driver for {event.bytes} bytes past the limit and {got}: the grant's processes took"
                f" {event.used}, and may have {event.limit}"
            )
        case Kind.HIDDEN:
            return f"{who} asked the driver for memory in words that it hid, and {got}"
        case Kind.CHANGED:
            return f"{who} changed what it asked of the driver while the driver looked: the larger size is charged"
        case _:
            return f"{who} has too many objects to be followed: {event.bytes} bytes stay charged until the grant ends"


def _limit(record: GrantRecord) -> int:
    return sum(place.here_bytes + SLACK_BYTES for place in record.places)


def _tried(guard: Guard) -> str:
    """How the guard's self-test got past it, or could not be run; empty where the guard held."""
    try:
        scratch = cgroup.below(os.getpid(), f"guard-{os.getpid()}")
        if not scratch.v2:
            return "no cgroup v2 hierarchy is mounted"
        scratch.make()
        try:
            return guard.self_test(scratch.path)
        finally:
            scratch.remove()
    except (GpushareError, OSError) as error:
        return str(error)
