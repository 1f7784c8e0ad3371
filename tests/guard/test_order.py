"""The guard's BPF programs, interleaved step by step with processes, descriptors and looks in any order (played.c): no
process of a cgroup within its limit is signalled, and no memory that is held stays uncounted."""

import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from run import built

MIB = 1 << 20
PAGE = 2 * MIB
LIMIT = 6 * PAGE
FDS, PROCESSES = 4, 6
CLIENT = 1
"""The number of the driver's client that owns all objects. Objects have higher numbers."""


class Played:
    """One cgroup with a limit of 6 pages, and a process in it."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(str(built.program("played.so")))
        for name in ("truth", "used", "doubt"):
            getattr(self.lib, f"played_{name}").restype = ctypes.c_uint64
        self.lib.played_start(ctypes.c_uint64(LIMIT))

    def __getattr__(self, name: str):
        return getattr(self.lib, f"played_{name}")

    def alloc(self, process: int, fd: int, number: int, pages: int) -> int:
        """Returns the signal that the process received, 0 for none."""
        return self.lib.played_alloc(process, fd, CLIENT, number, ctypes.c_uint64(pages * PAGE))

    def free(self, process: int, fd: int, number: int) -> None:
        self.lib.played_free(process, fd, CLIENT, number)

    def snapshot(self) -> Iterator[None]:
        """A look in steps: the caller decides when each one happens."""
        self.look_begins()
        for process in range(PROCESSES):
            for fd in range(FDS):
                yield
                self.look_at(process, fd)
        yield
        self.look_settles()

    def look(self) -> None:
        for _ in self.snapshot():
            pass

    @property
    def pages(self) -> tuple[int, int]:
        """Pages charged, and how many of them are in doubt."""
        return self.used() // PAGE, self.doubt() // PAGE


@pytest.fixture
def played() -> Played:
    return Played()


def ended(played: Played, process: int) -> None:
    played.ends(process)
    played.ended(process)


def test_the_next_one_may_have_what_one_had_that_ended_during_a_look(played):
    """The look had already seen the ended process's descriptor; an honest process was once killed for that."""
    first = played.process(-1)
    assert played.alloc(first, played.open(first), 10, 6) == 0
    snapshot = played.snapshot()
    for _ in range(FDS + 1):
        next(snapshot)
    ended(played, first)
    for _ in snapshot:
        pass
    second = played.process(-1)
    assert played.alloc(second, played.open(second), 11, 6) == 0
    played.look()
    assert played.pages == (6, 0)


def test_the_next_one_may_have_what_one_has_that_is_ending(played):
    """The first process is stopped in the middle of exiting, and its files stay open meanwhile."""
    first = played.process(-1)
    assert played.alloc(first, played.open(first), 10, 6) == 0
    played.ends(first)
    for _ in range(2):
        played.look()
    second = played.process(-1)
    assert played.alloc(second, played.open(second), 11, 6) == 0
    played.ended(first)
    played.look()
    assert played.pages == (6, 0)


def test_who_has_processes_end_in_every_look_is_counted_all_the_same(played):
    """A child keeps the descriptor, while other processes that had it end in the middle of each look."""
    first = played.process(-1)
    fd = played.open(first)
    assert played.alloc(first, fd, 10, 6) == 0
    keeper = played.process(first)
    for look in range(4):
        other = played.process(keeper)
        played.alloc(other, fd, 20 + look, 0)  # it holds an object of the file, so its end is examined
        snapshot = played.snapshot()
        for _ in range(2 * FDS):
            next(snapshot)
        ended(played, other if look else first)
        for _ in snapshot:
            pass
    assert played.pages[0] - played.pages[1] >= 6
    assert played.alloc(keeper, fd, 30, 1) == 9


def test_what_is_in_a_socket_is_held(played):
    """Such a descriptor is in no process's table: if it did not count, a process that sends it to itself could allocate
    as much again after the next look."""
    one = played.process(-1)
    assert played.alloc(one, played.open(one), 10, 6) == 0
    socket = played.send(one, 0)
    for _ in range(3):
        played.look()
        played.wait(60)
    assert played.pages == (6, 0)
    assert played.alloc(one, played.open(one), 11, 1) == 9
    played.close(one, played.receive(one, socket))
    assert played.alloc(one, 0, 12, 5) == 0
    assert played.pages == (6, 0)


def test_one_that_moves_its_descriptor_in_every_look_is_counted(played):
    """From a number that the look has still to visit to one that it has visited."""
    one = played.process(-1)
    first, last = [played.open(one) for _ in range(FDS)][:: FDS - 1]
    assert played.alloc(one, last, 10, 6) == 0
    for _ in range(3):
        snapshot = played.snapshot()
        for _ in range(FDS):
            next(snapshot)
        played.close(one, first)
        assert played.dup(one, last) == first
        played.close(one, last)
        for _ in snapshot:
            pass
        assert played.pages == (6, 0)
        assert played.dup(one, first) == last
        played.close(one, first)
        assert played.open(one) == first


def test_what_an_ended_process_left_in_a_socket_counts_after_a_while(played):
    """Not at once: the files of a process that is ending are also in no table for a moment."""
    first = played.process(-1)
    assert played.alloc(first, played.open(first), 10, 6) == 0
    played.send(first, 0)
    ended(played, first)
    played.look()
    played.look()
    assert played.pages == (6, 6)
    played.wait(10)
    played.look()
    assert played.pages == (6, 0)


class Order(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.played = Played()
        self.look, self.number = None, CLIENT
        self.fds = {self.played.process(-1): []}
        self.sent: list[int] = []
        self.ending: list[int] = []

    def some(self, data, *, fd=False):
        """Draws a process, and one of its descriptors if `fd`; None for what does not exist."""
        found = [one for one in self.fds if self.fds[one] or not fd]
        process = data.draw(st.sampled_from(found)) if found else None
        return (process, data.draw(st.sampled_from(self.fds[process])) if fd and found else None)

    @rule(data=st.data())
    def open(self, data):
        process, _ = self.some(data)
        if process is not None and (fd := self.played.open(process)) >= 0:
            self.fds[process].append(fd)

    @rule(data=st.data())
    def start(self, data):
        parent = data.draw(st.sampled_from([-1, *self.fds]))
        process = self.played.process(parent)
        if process >= 0:
            self.fds[process] = list(self.fds.get(parent, []))

    @rule(data=st.data())
    def move(self, data):
        process, fd = self.some(data, fd=True)
        if process is not None and (other := self.played.dup(process, fd)) >= 0:
            self.played.close(process, fd)
            self.fds[process].remove(fd)
            self.fds[process].append(other)

    @rule(data=st.data())
    def send(self, data):
        process, fd = self.some(data, fd=True)
        if process is not None and (socket := self.played.send(process, fd)) >= 0:
            self.fds[process].remove(fd)
            self.sent.append(socket)

    @rule(data=st.data())
    def receive(self, data):
        process, _ = self.some(data)
        if process is not None and self.sent and (fd := self.played.receive(process, self.sent[-1])) >= 0:
            self.sent.pop()
            self.fds[process].append(fd)

    @rule(seconds=st.integers(1, 10))
    def wait(self, seconds):
        self.played.wait(seconds)

    @rule(data=st.data())
    def close(self, data):
        process, fd = self.some(data, fd=True)
        if process is not None:
            self.played.close(process, fd)
            self.fds[process].remove(fd)

    @rule(data=st.data(), pages=st.integers(1, 4))
    def alloc(self, data, pages):
        process, fd = self.some(data, fd=True)
        if process is None:
            return
        self.number += 1
        signal = self.played.alloc(process, fd, self.number, pages)
        if signal:
            assert self.played.truth() > LIMIT, "nobody held too much"
            self.end(process)

    @rule(data=st.data())
    def free(self, data):
        process, fd = self.some(data, fd=True)
        if process is not None and self.number > CLIENT:
            self.played.free(process, fd, data.draw(st.integers(CLIENT + 1, self.number)))

    def end(self, process):
        self.played.ends(process)
        del self.fds[process]
        self.ending.append(process)

    @rule(data=st.data())
    def ends(self, data):
        process, _ = self.some(data)
        if process is not None:
            self.end(process)

    @precondition(lambda self: self.ending)
    @rule()
    def ended(self):
        self.played.ended(self.ending.pop())

    @rule(steps=st.integers(1, 3 * FDS))
    def look_on(self, steps):
        self.look = self.look or self.played.snapshot()
        for _ in range(steps):
            if next(self.look, self) is self:
                self.look = None
                return

    @precondition(lambda self: self.look is None)
    @rule()
    def look_undisturbed(self):
        self.played.look()
        self.played.wait(10)
        self.played.look()  # after the wait, this one settles what the first left in doubt
        assert self.played.doubt() == 0
        assert self.played.used() == self.played.truth()

    @invariant()
    def nothing_held_is_forgotten(self):
        assert self.played.used() >= self.played.truth()


TestOrder = Order.TestCase
TestOrder.settings = settings(stateful_step_count=40)
