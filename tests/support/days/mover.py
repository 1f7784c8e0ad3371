"""How a process moves its memory: what native/interposer/residency/mover.c does, in virtual time, and what hostile ones
do instead."""

import enum
import random
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from days.clock import MS, Clock, Due, S
from days.device import Device
from days.pages import NOTHING, Limits, meant

from gpushare.binding.page_words import Move, Residency

PATIENCE_NS = 3 * S
"""As PATIENCE_NS of native/interposer/residency/quiesce.c: for a kernel that runs."""
QUIET_NS = S  # without work, before memory is copied ahead
_AGAIN_NS = 20 * MS
_LEFT_NS, _LEFT_SOON_NS = S, 2 * MS
"""Who leaves takes about so long at most, and it is looked so often."""
_TICK_NS = 200 * MS


class Kind(enum.Enum):
    """HONEST does what it is told. STUCK has a kernel that never ends. UNSEEN says that its work cannot be followed.
    MUTE is stopped, and answers nothing. PRETENDER works and says that it does nothing. LIAR says that its memory has
    left, and keeps it. GREEDY says at all times that a call waits for its memory."""

    HONEST = enum.auto()
    STUCK = enum.auto()
    UNSEEN = enum.auto()
    MUTE = enum.auto()
    PRETENDER = enum.auto()
    LIAR = enum.auto()
    GREEDY = enum.auto()


class Passage(enum.Enum):
    """As the states of native/interposer/process/passage.h."""

    OPEN = enum.auto()
    WATCHED = enum.auto()
    MOVING = enum.auto()
    AWAY = enum.auto()


@dataclass(slots=True, eq=False)
class Piece:
    """An allocation. `truth`: the version of what the program wrote last. `here`, `hosted`: the versions on the device
    and in host memory; None: it is not there."""

    size: int
    truth: int = 0
    here: int | None = 0
    hosted: int | None = None


class World(Protocol):
    """What a program needs of the machine."""

    clock: Clock
    rng: random.Random

    def tell(self, program: "Mover") -> None:
        """The daemon is told that the program's words have changed, where there is one."""

    def draw(self, program: "Mover", size: int) -> bool:
        """Takes so much more of the host pool. False: there is too little, or no daemon."""

    def drop(self, program: "Mover") -> bool:
        """Gives all of that back. False: there is no daemon."""

    def alone_ns(self) -> int:
        """For how long there has been no daemon."""

    def no_room(self, program: "Mover", size: int) -> None:
        """The device had no room for memory that the books say is there."""

    def no_memory(self, program: "Mover", size: int) -> None:
        """The device had no room for an allocation within the program's limit."""

    def no_host(self, program: "Mover") -> None:
        """The pool had no memory for what was told to leave."""

    def lost(self, program: "Mover") -> None:
        """Not everything is what it was."""


class Mover:
    """A process. `said`: its slot. `limit`: bytes that it may have. `lends`: its memory may be moved; of what it has,
    `fixed` never is. `mapped`: what is its own on the device. `drawn`: what it has of the host pool. `carried`: the
    word that it has carried out. `rests`: it begins no work any more. `stopped`: it does not run now."""

    def __init__(self, world: World, grant: str, device: Device, limits: Limits, limit: int, kind: Kind) -> None:
        self.world, self.grant, self.device, self.limits = world, grant, device, limits
        self.limit, self.kind = limit, kind
        self.slot, self.pid = len(limits.programs), 100 + world.rng.randrange(1 << 20)
        self.said = NOTHING
        self.pieces: list[Piece] = []
        self.fixed = self.mapped = self.drawn = 0
        self.alive, self.stopped, self.rests, self.lends = True, False, False, True
        self.state = Passage.OPEN
        self.carried = limits.word
        self.busy = self._clean = False
        self._watch = 0
        limits.programs.append(self)

    # What its program does (program.py).

    @property
    @abstractmethod
    def is_working(self) -> bool:
        """Whether it computes, whatever it says."""

    @property
    @abstractmethod
    def quiet_ns(self) -> int:
        """For how long it has not."""

    @abstractmethod
    def kernel_left_ns(self) -> int:
        """How long its kernel still runs."""

    @abstractmethod
    def pause(self) -> None:
        """Its kernel is over. What follows has to wait."""

    @abstractmethod
    def go_on(self) -> None:
        """Its memory is back."""

    @abstractmethod
    def wish(self) -> None:
        """Its memory is away, and it may be waiting for it."""

    # What it has.

    def say(self, **changes: object) -> None:
        """Writes words of its slot."""
        if self.kind is Kind.PRETENDER:
            changes |= {"inflight": 0, "launches": 0, "waiting": 0}
        if self.kind is Kind.GREEDY:
            changes["wants"] = True
        self.said = replace(self.said, **changes)  # type: ignore[arg-type]

    @property
    def movable(self) -> int:
        """Bytes."""
        return sum(piece.size for piece in self.pieces)

    def later(self, ns: int, call: Callable[..., None], *arguments: object) -> Due:
        """Calls it then, if the process still lives."""

        def run() -> None:
            if self.alive:
                call(*arguments)

        return self.world.clock.later(ns, run)

    def allocate(self, size: int) -> None:
        """Another allocation, where its limit allows it. Where the grant's memory is away it waits: as if the program
        had not asked."""
        is_away = self.lends and meant(self.limits.word) is Residency.HOSTED
        if self.fixed + self.movable + size > self.limit or is_away:
            return
        if self.device.take(size):
            self.mapped += size
            self.pieces.append(Piece(size))
            self.say(memory_bytes=self.fixed + self.movable, movable_bytes=self.movable if self.lends else 0)
        else:
            self.world.no_memory(self, size)

    def free(self) -> None:
        """One allocation less."""
        piece = self.pieces.pop(self.world.rng.randrange(len(self.pieces)))
        self._unmap(piece.size)
        self.say(movable_bytes=self.movable if self.lends else 0)
        self.say(memory_bytes=self.fixed + self.movable)

    def kill(self) -> None:
        """Its memory is free after a moment, as a driver's is."""
        self.alive = False
        self.said = NOTHING
        self.device.dying += self.mapped
        self.world.clock.later(self.world.rng.randrange(50 * MS), self._gone, self.mapped)
        self.mapped = 0

    def _gone(self, size: int) -> None:
        self.device.dying -= size
        self.device.give(size)

    def _map(self, size: int) -> bool:
        if not self.device.take(size):
            return False
        self.mapped += size
        return True

    def _unmap(self, size: int) -> None:
        self.mapped -= size
        self.device.give(size)

    # What its mover does.

    def word_changed(self) -> None:
        """See Process."""
        if self.alive:
            self.later(self.world.rng.randrange(MS), self.react)

    def react(self) -> None:
        """Looks at the word."""
        word = self.limits.word
        if self.busy or word == self.carried or self.stopped or self.kind is Kind.MUTE:
            return
        if meant(word) is Residency.HOSTED:
            self._leave(word)
        elif self.kind is Kind.LIAR:
            self.say(hosted_bytes=0)
            self._finish(word, Move.MOVED)
        elif self.state in (Passage.OPEN, Passage.WATCHED):
            if meant(word) is Residency.RESIDENT:
                self.state, self._clean = Passage.OPEN, False
                self.say(clean_bytes=0)
            self._finish(word, Move.MOVED)
            self._drop()
            if meant(word) is Residency.PREPARED:
                self.later(QUIET_NS, self.copy_ahead)
        else:
            self.enter(word)

    def _finish(self, word: int, how: Move) -> None:
        self.busy, self.carried = False, word
        hosted = self.said.hosted_bytes if self.kind is Kind.LIAR else self._hosted()
        self.say(move=how, residency=word, hosted_bytes=hosted, wants=False, returns=False, leaves=False)
        self.world.tell(self)
        if self.state is Passage.AWAY:
            self.wish()
        self.later(0, self.react)

    def _hosted(self) -> int:
        return sum(piece.size for piece in self.pieces if piece.here is None)

    def _prepare(self) -> bool:
        more = self.movable - self.drawn
        if more > 0 and not self.world.draw(self, more):
            return False
        self.drawn += max(0, more)
        return True

    def _leave(self, word: int) -> None:
        if self.kind is Kind.LIAR:
            self.say(hosted_bytes=self.movable)
            self._finish(word, Move.MOVED)
        elif self.kind is Kind.UNSEEN:
            self._finish(word, Move.UNSEEN)
        elif not self._prepare():
            self.world.no_host(self)
            self._finish(word, Move.NO_HOST)
        else:
            self.busy = True
            self._clean = self._clean and self.state is Passage.WATCHED
            self.state = Passage.MOVING
            self._quiesce(word)

    def _quiesce(self, word: int) -> None:
        if not self.is_working:
            self._begin_out(word)
            return
        left = self.kernel_left_ns()
        if self.kind is Kind.STUCK or left > PATIENCE_NS:
            self.later(PATIENCE_NS, self._refuse, word)
        else:
            self.later(max(0, left), self._pause, word)

    def _refuse(self, word: int) -> None:
        self.state = Passage.OPEN
        self._finish(word, Move.WORKING)

    def _pause(self, word: int) -> None:
        if self.is_working:
            self.pause()
        self._begin_out(word)

    def _begin_out(self, word: int) -> None:
        if self.limits.word == word and not self._clean and self.pieces:
            self.say(leaves=True)
            self.world.tell(self)
        self._out(word)

    def _out(self, word: int) -> None:
        if self.limits.word != word:
            self._back(word)
            return
        piece = next((one for one in self.pieces if one.here is not None), None)
        if piece is None:
            self.state = Passage.AWAY
            self._finish(word, Move.MOVED)
            return
        self.say(hosted_bytes=self._hosted() + piece.size)
        if self._clean:
            self._left(piece, word, piece.hosted)
        else:
            self.device.out.carry(piece.size, lambda: self._left(piece, word, piece.here))

    def _left(self, piece: Piece, word: int, copy: int | None) -> None:
        if self.alive:
            piece.hosted, piece.here = copy, None
            self._unmap(piece.size)
            self._out(word)

    def _back(self, word: int) -> None:
        """Brings back what has left for a word that is another now, to room that is its own."""
        piece = next((one for one in self.pieces if one.here is None), None)
        if piece is None:
            self._reopen()
            self._finish(word, Move.WORKING)
        elif self._map(piece.size):
            self.device.into.carry(piece.size, lambda: self._came(piece, lambda: self._back(word)))
        else:
            self.world.no_room(self, piece.size)
            self.state = Passage.AWAY
            self._finish(word, Move.WORKING)

    def enter(self, word: int) -> None:
        """Brings its memory back."""
        self.busy, self.state = True, Passage.MOVING
        self._in(word, self.world.clock.now_ns, told=False)

    def _in(self, word: int, began: int, *, told: bool) -> None:
        if self.limits.word != word:
            self.busy = False
            self.later(0, self.react)
            return
        piece = next((one for one in self.pieces if one.here is None), None)
        if piece is None:
            self._open(word)
        elif self._map(piece.size):
            self.device.into.carry(piece.size, lambda: self._came(piece, lambda: self._in(word, began, told=told)))
        elif self.world.clock.now_ns - began < _LEFT_NS:
            self.later(_LEFT_SOON_NS, lambda: self._in(word, began, told=told))
        else:
            if not told:
                self.world.no_room(self, piece.size)
                self.say(move=Move.NO_DEVICE, residency=word, leaves=False)
                self.world.tell(self)
            self.later(_AGAIN_NS, lambda: self._in(word, began, told=True))

    def _came(self, piece: Piece, then: Callable[[], None]) -> None:
        if self.alive:
            piece.here, piece.hosted = piece.hosted, None
            self.say(hosted_bytes=self._hosted())
            then()

    def _reopen(self) -> None:
        self.state, self._clean = Passage.OPEN, False
        self.go_on()

    def _open(self, word: int) -> None:
        self._reopen()
        self._finish(word, Move.MOVED)
        self._drop()

    def _drop(self) -> None:
        """To give host memory back may have to wait for a daemon."""
        if self.state is not Passage.OPEN or meant(self.limits.word) is not Residency.RESIDENT or not self.drawn:
            return
        if self.world.drop(self):
            self.drawn = 0
        else:
            self.later(_TICK_NS, self._drop)

    def copy_ahead(self) -> None:
        """Copies its memory to the host, if it has been quiet for long."""
        ready = self.state is Passage.OPEN and not self.busy and self.quiet_ns >= QUIET_NS
        if not ready or meant(self.carried) is not Residency.PREPARED or self.stopped or not self.pieces:
            return
        if not self._prepare():
            self.later(QUIET_NS, self.copy_ahead)
            return
        self.state = Passage.WATCHED
        self._watch += 1
        self._ahead(list(self.pieces), self._watch)

    def _ahead(self, left: list[Piece], watch: int) -> None:
        if self.state is not Passage.WATCHED or self._watch != watch or not self.alive:
            return
        if left:
            piece, *rest = left
            self.device.out.carry(piece.size, lambda: self._copied(piece, rest, watch))
        else:
            self._clean = True
            self.say(clean_bytes=self.movable)
            self.world.tell(self)

    def _copied(self, piece: Piece, rest: list[Piece], watch: int) -> None:
        if self.state is Passage.WATCHED and self._watch == watch:
            piece.hosted = piece.here
            self._ahead(rest, watch)
