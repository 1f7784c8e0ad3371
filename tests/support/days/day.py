"""A random day of a node: grants that lend and borrow, programs, people and kills, all from one seed. What must hold is
checked after each step (judge.py)."""

import logging
import random
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from unittest import mock

from days.asker import Asker
from days.clock import MS, Clock, S, spread, virtual
from days.device import Device
from days.judge import Judge
from days.mover import Kind, Mover, Passage
from days.node import FILES, HELD, NAMES, Node
from days.pages import Limits, held
from days.program import Program, Rhythm

from gpushare.api.share import MaxRung
from gpushare.api.types import GrantRequest
from gpushare.binding.wire import Yield
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.tenants import Tenants
from gpushare.node import devices
from gpushare.policy.grants import lifecycle
from gpushare.policy.residency.states import By

T = TypeVar("T")
GIB = 1 << 30
CONTEXT = 256 << 20
RESERVED = 512 << 20
_GRANTS_MOST = 8
_HOSTILE = (Kind.STUCK, Kind.UNSEEN, Kind.MUTE, Kind.PRETENDER, Kind.LIAR, Kind.GREEDY)


class Day:
    """`seed`: of all that happens. `log`: what happened, for whoever looks for a fault. `done`: how often each thing
    did."""

    def __init__(self, seed: int, directory: Path, *, tells: bool = False) -> None:
        self.seed, self.rng, self.clock, self.tells = seed, random.Random(seed), Clock(), tells
        rng = self.rng
        self.log: list[str] = []
        self.done: Counter[str] = Counter()
        size = rng.choice((16, 24, 80)) * GIB
        self.rate = int(spread(rng, 2e9, 60e9))
        count = rng.choice((1, 1, 2))
        self.devices = [Device(self.clock, f"GPU-{number}", size - RESERVED, self.rate) for number in range(count)]
        found = [
            devices.Device(one.name, number, number, "X", "", size, RESERVED, CONTEXT)
            for number, one in enumerate(self.devices)
        ]
        self.hostile = rng.random() < 0.4
        self.kills = rng.random() < 0.6
        self.after_s = spread(rng, 0.5, 60)
        self.grace_s = rng.choice((0.5, 2, 10))
        self.guarantees = rng.choice(((0.5, 0.25, 0.0), (0.4, 0.4, 0.2), (1.0, 0.0, 0.0), (0.0, 0.0, 0.0)))
        pool = int(size * count * rng.choice((0.3, 1, 1.5, 4)))
        tenants = _tenants(directory, count, size - RESERVED, self.guarantees)
        self.node = Node(self, self.clock, found, tenants, pool, self.after_s, self.grace_s)
        self.programs: dict[str, list[Program]] = {}
        self.requests: dict[str, GrantRequest] = {}
        self.held: dict[str, int] = {}
        """Grants that a person holds away, or has just let go, and when."""
        self.askers: list[Asker] = []
        self.judge = Judge(self)
        self.over = False
        self.named = 0

    def note(self, text: str) -> None:
        if self.tells:
            self.log.append(f"{(self.clock.now_ns / S) - 1000:10.4f} {text}")

    # What programs need.

    def tell(self, program: Mover) -> None:
        self.node.told(program)

    def draw(self, program: Mover, size: int) -> bool:
        return self.node.draw(program, size)

    def drop(self, program: Mover) -> bool:
        return self.node.drop(program)

    def alone_ns(self) -> int:
        return 0 if self.node.up else self.clock.now_ns - self.node.down_ns

    def no_room(self, program: Mover, size: int) -> None:
        self.judge.no_room(program, size)

    def no_memory(self, program: Mover, size: int) -> None:
        self.judge.no_memory(program, size)

    def no_host(self, program: Mover) -> None:
        self.judge.no_host(program)

    def lost(self, program: Mover) -> None:
        self.judge.fault(f"{program.grant} has lost bytes")

    # What the daemon does.

    def ends(self, live: Live, event: lifecycle.Event) -> None:
        self.note(f"{live.id} is ended: {getattr(event, 'reason', event)}")
        self.judge.ends(live, event)
        for program in self.programs.pop(live.id, ()):
            if program.alive:
                program.kill()

    def evicts(self, grant: str) -> None:
        self.note(f"{grant} is told to give memory back")
        if self.rng.random() < 0.5:
            delay = int(self.rng.random() * self.grace_s * S)
            self.clock.later(delay, self._ends_itself, grant)

    def moves(self, live: Live) -> None:
        """See Machine."""

    def _ends_itself(self, grant: str) -> None:
        for program in self.programs.pop(grant, ()):
            if program.alive:
                program.kill()
                self.node.ended(program)

    # Who comes.

    def _request(self) -> GrantRequest:
        rng = self.rng
        capacity = self.devices[0].capacity
        lend = rng.random() < 0.8
        borrow = rng.random() < 0.45
        rungs: tuple[MaxRung, ...] = ("demote", "evict", "kill") if lend else ("evict", "kill")
        rung = rng.choice(rungs) if borrow else None
        least = 2 * CONTEXT
        memory = max(least, int(spread(rng, 0.04, 0.95) * capacity) // (256 << 20) * (256 << 20))
        return GrantRequest(
            memory=memory,
            time=0,
            tenant=rng.choice(("a", "b", "c")),
            class_=rng.choice(("interactive", "training")),
            idle_memory="lend" if lend else "keep",
            idle_after_seconds=max(0.1, round(self.after_s * rng.choice((0.5, 1, 2)), 2)) if lend else None,
            borrow_memory=borrow,
            max_rung=rung,
            device=rng.randrange(len(self.devices)) if rng.random() < 0.3 else "any",
        )

    def comes(self) -> None:
        """Somebody asks for a grant, and waits for it."""
        self.done["asks"] += 1
        if len(self.programs) + len(self.askers) < _GRANTS_MOST:
            asker = Asker(self, self._request(), f"asker-{self.done['asks']}", int(spread(self.rng, 1, 300) * S))
            asker.ask()

    def begins(self, live: Live, request: GrantRequest) -> None:
        """A grant's programs start."""
        rng = self.rng
        limits = Limits(self.node.effect)
        self.node.pages[live.id] = limits
        place = live.record.places[0]
        device = next(one for one in self.devices if one.name == place.device)
        count = 2 if rng.random() < 0.1 and place.memory_bytes > 4 * CONTEXT else 1
        hostile = self.hostile and not self.over and rng.random() < 0.4
        kind = rng.choice(_HOSTILE) if hostile else Kind.HONEST
        self.note(
            f"{live.id} begins: {request} {kind.name} borrowed={place.borrowed_bytes / GIB:.2f} on {place.device}"
        )
        self.requests[live.id] = request
        self.programs[live.id] = own = []
        self.node.bind(live, limits)
        for _ in range(count):
            rhythm = self._rhythm()
            program = Program(self, live.id, device, limits, place.memory_bytes // count, kind, rhythm)
            program.lends = live.asked.lends
            own.append(program)
            lives = self.node.lives, self.node.up
            self.node.joined(program)
            if (self.node.lives, self.node.up) != lives or not self.node.up:
                program.kill()  # it could not join
                continue
            program.start(CONTEXT, self._sizes(program.limit - CONTEXT))
            if self.over:
                program.rest()

    def _sizes(self, most: int) -> list[int]:
        left = int(most * self.rng.choice((0.3, 0.8, 1))) >> 21 << 21
        pieces = self.rng.randrange(1, 5)
        each = left // pieces >> 21 << 21
        return [each] * pieces if each else []

    def _rhythm(self) -> Rhythm:
        rng, s = self.rng, self.after_s * S
        kernel = int(rng.choice((1, 10, 300, 2000)) * MS)
        style = rng.randrange(4)
        if style == 0:  # works all the time
            return Rhythm(int(MS), int(1000 * s), kernel)
        if style == 1:  # a notebook
            return Rhythm(int(spread(rng, 0.2, 10) * s), int(spread(rng, 0.001, 1) * s), kernel)
        if style == 2:  # short and often
            return Rhythm(int(spread(rng, 0.05, 1) * s), int(spread(rng, 0.01, 0.3) * s), kernel)
        return Rhythm(int(1000 * s), int(0.1 * s), kernel)  # does nothing

    # What happens to them.

    def _some(self) -> Program | None:
        there = [program for own in self.programs.values() for program in own if program.alive]
        return self.rng.choice(there) if there else None

    def _act(self) -> None:
        if self.over:
            return
        rng = self.rng
        self.clock.later(int(rng.expovariate(1) * self.pace_ns), self._act)
        acts = [self.comes] * 6 + [self._person] * 4 + [self._says] * 2 + [self._ends, self._killed, self._storm]
        if self.kills:
            acts += [self._kill_daemon] * 2
        if self.hostile:
            acts += [self._stop]
        act = rng.choice(acts)
        self.done[act.__name__] += 1
        act()

    def _person(self) -> None:
        if (program := self._some()) is None:
            return
        grant, hold, back = program.grant, self.rng.random() < 0.3, self.rng.random() < 0.5
        if back:
            why = self.node.people(grant, self.node.residency.resume)
            self.held.pop(grant, None)
        else:
            why = self.node.people(grant, lambda live: self.node.residency.suspend(live, By.PERSON, hold=hold))
            if hold and not why:
                self.held[grant] = self.clock.now_ns
        self.judge.person_ns[grant] = self.clock.now_ns
        self.note(f"a person {'resumes' if back else 'holds' if hold else 'suspends'} {grant}: {why}")

    def _says(self) -> None:
        if (program := self._some()) is not None:
            what = self.rng.choice(list(Yield))
            self.note(f"{program.grant} says {what.name}")
            self.judge.person_ns[program.grant] = self.clock.now_ns
            self.node.says(program.grant, what)

    def _ends(self) -> None:
        if (program := self._some()) is not None:
            self.note(f"{program.grant} ends")
            self._ends_itself(program.grant)

    def _killed(self) -> None:
        if (program := self._some()) is not None:
            self.note(f"a process of {program.grant} is killed")
            program.kill()
            self.clock.later(self.rng.randrange(5 * MS), self.node.ended, program)
            if not any(one.alive for one in self.programs[program.grant]):
                del self.programs[program.grant]

    def _storm(self) -> None:
        """A call in each millisecond."""
        if (program := self._some()) is not None:
            self.note(f"{program.grant} calls a thousand times a second")
            for number in range(200):
                self.clock.later(number * MS, lambda: program.call(MS // 10) if program.alive else None)

    def _stop(self) -> None:
        if (program := self._some()) is not None:
            self.note(f"{program.grant} is {'continued' if program.stopped else 'stopped'}")
            program.stop(stopped=not program.stopped)

    def _kill_daemon(self) -> None:
        if not self.node.up or self.node.dies_in is not None:
            return
        if self.rng.random() < 0.5:
            self.node.kill()
            self.note("the daemon is killed")
        else:
            self.node.dies_in = int(spread(self.rng, 1, 200))
        self.clock.later(int(spread(self.rng, 0.01, 25) * S), self._start_daemon)

    def _start_daemon(self) -> None:
        if self.node.up:
            self.node.kill()
        self.note("the daemon starts")
        self.node.start()
        self.judge.up_ns = self.clock.now_ns

    # The whole day.

    def play(self) -> None:
        """Raises AssertionError with the seed and what does not hold."""
        self.lives(self._play)

    def lives(self, live: Callable[[], T]) -> T:
        """Calls it in this day's time."""
        told = types.SimpleNamespace(
            write_eviction=lambda _, grant, __: self.evicts(grant), remove_eviction=lambda *_: None
        )
        logging.disable()
        try:
            with virtual(self.clock), mock.patch(FILES, told), mock.patch(NAMES, self._name), mock.patch(HELD, held):
                return live()
        finally:
            logging.disable(logging.NOTSET)

    def _name(self) -> str:
        self.named += 1
        return f"g-{self.rng.getrandbits(24):06x}{self.named:06x}"

    def _play(self) -> None:
        self.node.start()
        self.clock.after = self.judge.check
        length = int(max(20.0, self.after_s * spread(self.rng, 4, 25)) * S)
        self.pace_ns = length // self.rng.choice((15, 30, 60))
        for _ in range(self.rng.randrange(2, _GRANTS_MOST)):
            self.clock.later(self.rng.randrange(length // 4), self.comes)
        self.clock.later(0, self._act)
        self.judge.begin()
        self.clock.run_until(self.clock.now_ns + length)
        self.over = True
        self.judge.evening()

    def rest(self) -> None:
        """No program begins anything more; what waits goes on waiting. Hostile ones end."""
        for own in list(self.programs.values()):
            for program in own:
                program.rest()
                if program.alive and (program.kind is not Kind.HONEST or program.stopped):
                    program.kill()
                    self.node.ended(program)
            if not any(program.alive for program in own):
                self.programs.pop(own[0].grant, None)

    @property
    def waiting(self) -> list[Program]:
        """Programs that wait for their memory."""
        return [
            program
            for own in self.programs.values()
            for program in own
            if program.alive and program.wants_ns is not None and program.state is not Passage.OPEN
        ]


_KNOWN: dict[tuple[object, ...], Tenants] = {}


def _tenants(directory: Path, count: int, capacity: int, guarantees: tuple[float, ...]) -> Tenants:
    key = (directory, count, capacity, guarantees)
    if key not in _KNOWN:
        path = directory / f"tenants-{len(_KNOWN)}.toml"
        rows = [
            f'[tenants.{name}]\ntime = "10%"\n'
            + (f"memory = {int(capacity * count * part) >> 21 << 21}\n" if part else "")
            for name, part in zip("abc", guarantees, strict=True)
        ]
        path.write_text("\n".join(rows))
        _KNOWN[key] = Tenants(path, 1000 * count, capacity * count)
    return _KNOWN[key]
