"""The daemon's own parts that move memory, wired as gpushare/daemon/node.py does, without sockets, files and processes.
It can be killed at any point at which something of it is seen from outside."""

import asyncio
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from days.clock import MS, Clock, Killed, Loop
from days.mover import Mover
from days.pages import Limits, Usage

from gpushare.api.types import GrantRequest
from gpushare.binding.wire import Yield
from gpushare.daemon.accounts.moves import Moves
from gpushare.daemon.grants.evictions import Evictions
from gpushare.daemon.grants.grants import Grants
from gpushare.daemon.grants.room import Room
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.residency import saying
from gpushare.daemon.residency.ahead import Ahead
from gpushare.daemon.residency.demote import Demote
from gpushare.daemon.residency.residency import Residency
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import MemberRecord, decode
from gpushare.daemon.state.state import State, now_ns
from gpushare.daemon.state.tenants import Tenants
from gpushare.errors import GpushareError
from gpushare.node import devices
from gpushare.paths import Layout
from gpushare.policy.grants import lifecycle
from gpushare.policy.grants.admission import Place
from gpushare.policy.grants.lifecycle import Kind, Phase
from gpushare.policy.loans.recall import Policy
from gpushare.policy.loans.reclaim import Rung
from gpushare.policy.residency.pool import PoolBook

T = TypeVar("T")
NAMES = "gpushare.daemon.grants.grants._new_id"
HELD = "gpushare.daemon.residency.reports.pages.held"
FILES = "gpushare.daemon.grants.evictions.grantfiles"
ROOT = Peer(pid=1, uid=0, gid=0)
_SEGMENTS_MOST = 10_000
_EMPTIES_NS = 5 * MS


class Ledger:
    """What outlives the daemon: the rows of living grants."""

    gap_ns = 0

    def __init__(self, effect: Callable[[], None]) -> None:
        self.rows: dict[str, str] = {}
        self._effect = effect

    def save(self, row: tuple[Any, ...]) -> None:
        self._effect()
        if row[7] is None:
            self.rows[row[0]] = row[5]
        else:
            self.rows.pop(row[0], None)

    def ended_grant(self, *_: object) -> None:
        return None

    def moved(self, _: object) -> dict[str, Any]:
        return {}


class Pool:
    """The accounts of the host pool, with files that are empty a moment after they were given back."""

    def __init__(self, size: int, loop: Loop, effect: Callable[[], None]) -> None:
        self.book, self._loop, self._effect = PoolBook(size, _SEGMENTS_MOST), loop, effect

    @property
    def size_bytes(self) -> int:
        return self.book.size

    @property
    def free_bytes(self) -> int:
        return self.book.counts().free

    def reserve(self, grant: str, size: int) -> None:
        self._effect()
        self.book.reserve(grant, size)

    def release(self, grant: str) -> None:
        self._effect()
        self.book.release(grant)

    def give_back(self, grant: str, slot: int | None = None) -> None:
        for segment in self.book.segments(grant, slot, 1):
            self.book.give_back(segment)
            self._loop.call_later(_EMPTIES_NS / 1e9, self.book.emptied, segment)

    def end(self, grant: str) -> None:
        self.book.release(grant)
        self.give_back(grant)


class Machine(Protocol):
    """What the daemon does to others."""

    def ends(self, live: Live, event: lifecycle.Event) -> None:
        """The grant's programs are killed."""

    def evicts(self, grant: str) -> None:
        """The grant is told that memory is wanted that it has on loan."""

    def moves(self, live: Live) -> None:
        """A grant has other places."""


class Transitions:
    """As gpushare/daemon/grants/transitions.py, of which it has the order of what follows."""

    def __init__(self, node: "Node", state: State, pool: Pool) -> None:
        self._node, self._state, self._pool = node, state, pool
        self.evictions: Evictions
        self.residency: Residency

    def begin(self, live: Live, steps: tuple[lifecycle.Instruction, ...]) -> None:
        self.residency.admit(live)
        self._state.add(live)
        self.residency.placed()
        self._carry_out(live, steps)

    def send(self, live: Live, event: lifecycle.Event) -> None:
        life, steps = lifecycle.advance(live.record.life, event)
        live.record.life = life
        self._carry_out(live, steps, event)

    def _carry_out(
        self, live: Live, steps: tuple[lifecycle.Instruction, ...], event: lifecycle.Event | None = None
    ) -> None:
        for step in steps:
            if isinstance(step, lifecycle.EndProcesses) and event is not None:
                self._node.machine.ends(live, event)
            elif isinstance(step, lifecycle.Remove):
                live.limits = live.usage = None
                live.record.members = []
            elif isinstance(step, lifecycle.Record):
                live.record.ended_ns = now_ns() if step.phase.ended else None
                self._state.save(live.record)
                self.publish(live, "changed")
                if step.phase.ended:
                    self._state.remove(live)
                    self._pool.end(live.id)
                    self._freed(live)

    def move(self, live: Live, places: list[Place]) -> None:
        self._state.move(live, places)
        self._node.machine.moves(live)
        self._freed(live)

    def _freed(self, live: Live) -> None:
        self.evictions.freed(live)
        self.residency.freed(live)

    def publish(self, *_: object) -> None:
        self._node.effect()


class Node:
    """`up`: the daemon runs. Its parts are of its present life. `dies_in`: it is killed after so many effects."""

    def __init__(
        self,
        machine: Machine,
        clock: Clock,
        found: list[devices.Device],
        tenants: Tenants,
        pool_bytes: int,
        idle_after_s: float,
        grace_s: float,
        move_s: float = 5.0,
    ) -> None:
        self.machine, self._clock, self._devices, self._tenants = machine, clock, found, tenants
        self.pool_bytes, self._move_s, self._idle_after_ns = pool_bytes, move_s, round(idle_after_s * 1e9)
        self._policy = Policy(lend_to=Rung.DEMOTE, grace_ns=round(grace_s * 1e9), min_hold_ns=round(grace_s * 1e9))
        self.ledger = Ledger(self.effect)
        self.pages: dict[str, Limits] = {}
        self.up, self.down_ns, self.lives = False, clock.now_ns, 0
        self.dies_in: int | None = None
        self.effects = 0
        self._dying = False
        self._loop: Loop | None = None

    # Its life.

    def effect(self) -> None:
        """Called before something is done that is seen from outside, or outlives the daemon."""
        self.effects += 1
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in <= 0:
                self._dying = True
        if self._dying:
            raise Killed

    def kill(self) -> None:
        """Between two calls."""
        self.up, self.dies_in, self._dying, self.down_ns = False, None, False, self._clock.now_ns
        assert self._loop is not None
        self._loop.dead = True

    def ask(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """Runs something of the daemon in its loop. None also where it is killed meanwhile."""
        if not self.up:
            return None
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)  # type: ignore[arg-type, unused-ignore]
        try:
            return call(*arguments)
        except Killed:
            self.kill()
            return None
        finally:
            asyncio._set_running_loop(before)

    def start(self) -> None:
        """As at a start of the daemon: with what the ledger and the pages say."""
        self.up, self.lives = True, self.lives + 1
        self._loop = Loop(self._clock, self.ask)
        self.ask(self._start)

    def _start(self) -> None:
        assert self._loop is not None
        layout = Layout(Path("/nowhere"), Path("/nowhere"), Path("/nowhere"), Path("/nowhere"))
        watch = types.SimpleNamespace(epoch=self.lives, publish=lambda *_, **__: self.effect())
        ledger: Any = self.ledger
        seen: Any = watch
        self.state = state = State(layout, self._devices, self._tenants, ledger, seen, reclaim_policy=self._policy)
        self.pool = pool = Pool(self.pool_bytes, self._loop, self.effect)
        transitions: Any = Transitions(self, state, pool)
        self.transitions = transitions
        state.host_pool_bytes, state.idle_after_default_ns = pool.size_bytes, self._idle_after_ns
        moves = Moves(state)
        self.residency = Residency(state, transitions, pool, self._move_s, moves)
        self.ahead = Ahead(state, self.residency, pool)
        engines = {Rung.DEMOTE: Demote(self.residency)} if pool.size_bytes else {}
        self.evictions = Evictions(state, transitions, engines)
        self.room = self.residency.recall = Room(state, self.residency, self.ahead, self.evictions, self._shown)
        self.ahead.looked = self.room.looked
        transitions.evictions, transitions.residency = self.evictions, self.residency
        nothing: Any = types.SimpleNamespace(check_parts=lambda: None)
        self.grants = Grants(state, nothing, nothing, transitions, nothing, self.room, nothing)
        for text in list(self.ledger.rows.values()):
            self._adopt(text)
        moves.adopt()
        self.residency.adopt()
        self.ahead.start()
        self.evictions.start()

    def _shown(self, *_: object) -> None:
        """A device was published to watchers."""
        self.effect()

    def _adopt(self, text: str) -> None:
        record = decode(text)
        live = Live(record, Asked.of(record.request, self._policy))
        self.state.add(live)
        if record.phase is not Phase.ACTIVE:
            self.transitions.send(live, lifecycle.Release(now_ns(), "whoever asked for it has ended"))
            return
        limits = self.pages[live.id]
        if not any(program.alive for program in limits.programs):
            self.transitions.send(live, lifecycle.Emptied(now_ns()))
            return
        self._open(live, limits)
        record.members = [one for one in record.members if limits.programs[one.slot].alive]
        for one in record.members:
            if one.pool_bytes:
                self.pool.book.adopt(live.id, one.slot, 1, one.pool_bytes)
        self.state.save(record)

    def _open(self, live: Live, limits: Any) -> None:
        usage: Any = Usage(limits)
        live.limits, live.usage = limits, usage

    # What others do.

    def create(self, request: GrantRequest, asker: str) -> Live | None:
        """Raises what Grants.create does. None: the daemon does not answer."""
        made = self.ask(lambda: self.grants.create(ROOT, request, asker=asker))
        return made[0] if made is not None else None

    def bind(self, live: Live, limits: Limits) -> None:
        """Opens the grant for programs."""

        def opened() -> None:
            self.pages[live.id] = limits
            self._open(live, limits)
            self.transitions.send(live, lifecycle.Bound(now_ns(), Kind.PROCESS))
            self.transitions.send(live, lifecycle.Started(now_ns(), 1))

        self.ask(opened)

    def joined(self, program: Mover) -> None:
        """A process of the grant has started."""

        def join() -> None:
            live = self.state.live(program.grant)
            members = [*live.record.members, MemberRecord(pid=program.pid, started=0, slot=program.slot, generation=1)]
            live.record.members = members
            self.residency.looked(live)
            self.state.save(live.record)

        self.ask(join)

    def told(self, program: Mover) -> None:
        """A process says that its words have changed."""
        if self.up and program.grant in self.state:
            self.ask(self.residency.looked, self.state.live(program.grant))

    def ended(self, program: Mover) -> None:
        """A process has ended."""

        def end() -> None:
            live = self.state.live(program.grant)
            live.record.members = [one for one in live.record.members if one.slot != program.slot]
            self.pool.give_back(live.id, program.slot)
            self.residency.looked(live)
            self.state.save(live.record)
            if not live.record.members:
                self.transitions.send(live, lifecycle.Emptied(now_ns()))

        if self.up and program.grant in self.state:
            self.ask(end)

    def draw(self, program: Mover, size: int) -> bool:
        """Memory of the pool for a process."""

        def drawn() -> bool:
            live = self.state.live(program.grant)
            self.pool.book.draw(live.id, program.slot, 1, size)
            member = self._member(live, program)
            member.pool_bytes += size
            self.state.save(live.record)
            return True

        try:
            return bool(self.ask(drawn))
        except GpushareError:
            return False

    def drop(self, program: Mover) -> bool:
        """It gives all of it back."""

        def dropped() -> bool:
            live = self.state.live(program.grant)
            self.pool.give_back(live.id, program.slot)
            self._member(live, program).pool_bytes = 0
            self.state.save(live.record)
            return True

        return program.grant in self.state and bool(self.ask(dropped))

    def _member(self, live: Live, program: Mover) -> MemberRecord:
        return next(one for one in live.record.members if one.slot == program.slot)

    def people(self, grant: str, act: Callable[[Live], None]) -> str:
        """Somebody does something with a grant. Returns why it was refused."""
        if not self.up or grant not in self.state:
            return "there is none"
        try:
            self.ask(act, self.state.live(grant))
        except GpushareError as error:
            return str(error)
        return ""

    def says(self, grant: str, what: Yield) -> None:
        """A program says of its memory what `gpushare yield` does."""
        self.people(grant, lambda live: saying.said(self.residency, live, what))
