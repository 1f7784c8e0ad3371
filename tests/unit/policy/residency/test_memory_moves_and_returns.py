"""The state machine of movable memory, against a small world that carries its instructions out: whatever happens in
whatever order, no byte is without a place, and nothing waits for ever."""

import contextlib
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpushare.errors import RefusedError
from gpushare.policy.residency import states as policy
from gpushare.policy.residency.residency import PREPARED, STAY_NS, advance
from gpushare.policy.residency.states import (
    RESIDENT,
    By,
    CopyAhead,
    Looked,
    News,
    Process,
    Residency,
    Restarted,
    Resume,
    Room,
    Suspend,
    Taken,
    Where,
)

MOVE_NS = 100
LIMIT = 10


@dataclass
class Running:
    """A process: `epoch`: the last that it has carried out. Its bytes are on the device or in host memory."""

    pid: int
    here: int = 0
    hosted: int = 0
    epoch: int = 0
    failed: str = ""
    wants: bool = False
    leaves: bool = False


@dataclass
class World:
    """The page's word, the pool, the ledger, and what others have on the device, which is as large as the limit.
    `broken`: a process that said that it leaves has not left, or not all of it."""

    state: Residency = RESIDENT
    saved: Residency = RESIDENT
    epoch: int = 0
    hosted: bool = False
    ahead: bool = False
    now: int = 0
    pool: int = 20
    reserved: int = 0
    counted: int = 0
    kept: int = 0
    others: int = 0
    broken: bool = False
    pids: int = 0
    processes: list[Running] = field(default_factory=list)
    news: list[News] = field(default_factory=list)

    @property
    def here(self) -> int:
        return sum(one.here for one in self.processes)

    def looked(self) -> Looked:
        return Looked(self.now, self.reports(), LIMIT - self.here)

    def reports(self) -> tuple[Process, ...]:
        return tuple(
            Process(one.pid, one.epoch, one.failed, False, one.here + one.hosted, one.hosted, one.wants, one.leaves)
            for one in self.processes
        )

    def send(self, event: policy.Event, *, killed_after: int | None = None) -> None:
        """`killed_after`: the daemon is killed once it has carried out as many instructions."""
        after, steps = advance(self.state, event, MOVE_NS)
        self.broken |= self.state.leaving and bool(self.here) and after.where is Where.SUSPENDED
        if after.where is Where.RESUMING is not self.state.where:
            assert self.others + sum(one.here + one.hosted for one in self.processes) <= LIMIT
            self.broken = False
        for step in steps:
            if isinstance(step, policy.Reserve):
                if step.size > self.pool:
                    raise RefusedError("the pool is too small")
                self.reserved = step.size
        self.state = after
        asked = False
        for number, step in enumerate(steps):
            if number == killed_after:
                return
            match step:
                case policy.Record():
                    self.saved, self.kept = self.state, self.counted
                case policy.Release():
                    assert not any(one.hosted for one in self.processes), "host memory is taken from bytes in it"
                    self.reserved = 0
                case policy.Count(size):
                    self.counted = size
                case policy.Write(hosted, ahead):
                    self.epoch += 1
                    self.hosted, self.ahead = hosted, ahead
                    assert not ahead or self.reserved > 0, "copies have no place"
                    assert self.state.epoch == self.epoch == self.saved.epoch, "the word is not the recorded one"
                    if hosted:
                        assert self.reserved >= sum(one.here + one.hosted for one in self.processes)
                case policy.Tell(news):
                    self.news.append(news)
                case policy.AskRoom():
                    asked = True
        if asked and killed_after is None:
            self.send(Room(self.now, "others have it" if self.others else "", early=True))

    def look(self) -> None:
        self.send(self.looked())

    def restart(self) -> None:
        self.state, self.reserved, self.now = self.saved, 0, self.now + 1
        self.counted = self.kept
        returned = False
        self.send(Restarted(self.now, self.epoch, self.hosted, returned, self.ahead))
        self.look()


class Moves(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World()

    @rule(size=st.integers(0, 4))
    def starts(self, size: int) -> None:
        world = self.world
        used = sum(one.here + one.hosted for one in world.processes)
        world.pids += 1
        fits = not world.hosted and used + size <= LIMIT
        world.processes.append(Running(world.pids, here=size if fits else 0, epoch=world.epoch if fits else 0))
        world.look()

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data())
    def carries_out(self, data: st.DataObject) -> None:
        """It sees the word that is in the page now, and does what that says, or cannot."""
        world = self.world
        one = data.draw(st.sampled_from(world.processes))
        why = data.draw(st.sampled_from(["", "", "", "its work goes on"]))
        if one.epoch == world.epoch and not one.failed:
            return
        one.epoch, one.failed, one.leaves = world.epoch, why, False
        if not why and world.hosted:
            one.here, one.hosted = 0, one.here + one.hosted
        elif not why:
            one.here, one.hosted, one.wants = one.here + one.hosted, 0, False
        world.look()

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data())
    def moves_half(self, data: st.DataObject) -> None:
        """It is in the middle of what the word says."""
        world = self.world
        one = data.draw(st.sampled_from(world.processes))
        if one.epoch == world.epoch:
            return
        if world.hosted and one.here and not one.leaves:
            one.leaves = True
            world.look()
        elif world.hosted and one.here:
            one.here, one.hosted = one.here - 1, one.hosted + 1
        elif not world.hosted and one.hosted:
            one.here, one.hosted = one.here + 1, one.hosted - 1

    @precondition(lambda self: self.world.processes)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        self.world.processes.remove(data.draw(st.sampled_from(self.world.processes)))
        self.world.look()

    @precondition(lambda self: any(one.hosted for one in self.world.processes))
    @rule(data=st.data())
    def wants(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([one for one in self.world.processes if one.hosted])).wants = True
        self.world.look()

    @rule(by=st.sampled_from(By), hold=st.booleans(), killed=st.none() | st.integers(0, 3))
    def suspend(self, by: By, hold: bool, killed: int | None) -> None:
        world = self.world
        before = world.state
        movable = sum(one.here + one.hosted for one in world.processes)
        event = Suspend(world.now, by, hold, movable)
        try:
            world.send(event, killed_after=killed)
        except RefusedError:
            assert world.state == before
            assert world.reserved >= before.reserved_bytes
        if killed is not None:
            world.restart()
            return
        again, epoch = world.state, world.epoch
        if again.where in (Where.SUSPENDING, Where.SUSPENDED):
            world.send(event)
            assert (world.state, world.epoch) == (again, epoch), "twice is once"

    @rule(killed=st.none() | st.integers(0, 3))
    def resume(self, killed: int | None) -> None:
        self.world.send(Resume(self.world.now), killed_after=killed)
        if killed is not None:
            self.world.restart()

    @rule(size=st.integers(0, 12), killed=st.none() | st.integers(0, 3))
    def copies_ahead(self, size: int, killed: int | None) -> None:
        with contextlib.suppress(RefusedError):
            self.world.send(CopyAhead(size), killed_after=killed)
        if killed is not None:
            self.world.restart()

    @rule(killed=st.none() | st.integers(0, 2))
    def others_have_not_left_after_all(self, killed: int | None) -> None:
        world = self.world
        movable = sum(one.here + one.hosted for one in world.processes)
        with contextlib.suppress(RefusedError):
            world.send(Taken(world.now, movable), killed_after=killed)
        assert killed is not None or world.state.where is not Where.RESUMING or not world.state.early
        if killed is not None:
            world.restart()

    @rule()
    def daemon_is_killed(self) -> None:
        self.world.restart()

    @rule(killed=st.integers(0, 3))
    def daemon_is_killed_while_it_looks(self, killed: int) -> None:
        self.world.send(self.world.looked(), killed_after=killed)
        self.world.restart()

    @rule(ns=st.integers(1, 2 * MOVE_NS))
    def time_passes(self, ns: int) -> None:
        self.world.now += ns
        self.world.look()

    @rule(size=st.integers(0, LIMIT))
    def others_take_what_is_free(self, size: int) -> None:
        world = self.world
        expected = world.state.hosted_bytes if world.state.leaving else world.counted
        world.others = min(size, max(world.others, expected))
        world.look()

    @invariant()
    def every_byte_has_a_place(self) -> None:
        world = self.world
        assert sum(one.hosted for one in world.processes) <= world.reserved
        assert world.broken or world.here <= LIMIT - world.counted, "the room is another's"
        promised = world.state.hosted_bytes if world.state.leaving else world.counted
        assert world.broken or world.others <= promised
        assert world.counted <= LIMIT
        assert world.reserved or not world.counted
        assert world.ahead == (world.state.ahead and world.state.where is Where.RESIDENT)
        assert not world.ahead or world.reserved == world.state.reserved_bytes > 0

    def teardown(self) -> None:
        """Honest processes and time bring it to rest, whatever state it is in, and all of it back."""
        world = self.world
        world.others = 0
        world.send(CopyAhead(0))
        for _ in range(2):
            world.send(Resume(world.now))
            for _ in range(8):
                for one in world.processes:
                    one.epoch, one.failed, one.leaves = world.epoch, "", False
                    if world.hosted:
                        one.here, one.hosted = 0, one.here + one.hosted
                    else:
                        one.here, one.hosted, one.wants = one.here + one.hosted, 0, False
                world.now += MOVE_NS
                world.look()
        assert replace(world.state, epoch=0, by=By.PERSON, why="", woken=False, stays_ns=None) == RESIDENT
        assert not world.hosted
        assert not world.reserved
        assert not world.counted


TestMoves = Moves.TestCase
TestMoves.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def away(**changes: object) -> Residency:
    return replace(Residency(Where.SUSPENDED, 3, reserved_bytes=4, hosted_bytes=4), **changes)  # type: ignore[arg-type]


def test_a_call_brings_it_back_unless_it_is_held() -> None:
    wants = Looked(5, (Process(1, 3, movable_bytes=4, hosted_bytes=4, wants=True),))
    assert advance(away(), wants, MOVE_NS)[1] == (policy.AskRoom(),)
    assert advance(away(hold=True), wants, MOVE_NS) == (away(hold=True), ())
    resumed, steps = advance(away(hold=True), Resume(6), MOVE_NS)
    assert (resumed.back, resumed.hold) == (True, False)
    assert policy.AskRoom() in steps


def test_an_answer_of_an_earlier_epoch_counts_for_nothing() -> None:
    leaving, _ = advance(RESIDENT, Suspend(0, By.PERSON, False, 4), MOVE_NS)
    late = Looked(1, (Process(1, leaving.epoch - 1, failed="old", movable_bytes=4),))
    assert advance(leaving, late, MOVE_NS) == (leaving, ())


def test_a_process_that_does_not_answer_costs_only_the_time_limit() -> None:
    leaving, _ = advance(RESIDENT, Suspend(0, By.RUNG, False, 8), MOVE_NS)
    moved = Process(1, leaving.epoch, movable_bytes=4, hosted_bytes=4)
    silent = Process(2, leaving.epoch - 1, movable_bytes=4)
    limit = leaving.deadline_ns
    assert limit == MOVE_NS + 8 * 10**9 // PREPARED
    assert advance(leaving, Looked(limit - 1, (moved, silent)), MOVE_NS)[0] == leaving
    back, steps = advance(leaving, Looked(limit, (moved, silent)), MOVE_NS)
    assert back.where is Where.RESUMING
    assert "(2)" in back.why
    assert policy.Tell(News.FAILED) in steps
    assert policy.Count(0) in steps


def test_nothing_to_move_is_refused() -> None:
    with pytest.raises(RefusedError, match="none of its memory"):
        advance(RESIDENT, Suspend(0, By.PERSON, False, 0), MOVE_NS)


def test_who_returned_by_itself_is_counted_before_anything_else() -> None:
    back, steps = advance(away(), Restarted(9, 3, hosted=True, returned=True), MOVE_NS)
    assert back.where is Where.RESUMING
    assert [type(step) for step in steps] == [policy.Reserve, policy.Count, policy.Record, policy.Write]


def test_so_is_who_left_and_returned_while_no_daemon_saw_it() -> None:
    leaving, _ = advance(RESIDENT, Suspend(0, By.RUNG, False, 8), MOVE_NS)
    leaving = replace(leaving, leaving=True, hosted_bytes=8)
    back, steps = advance(leaving, Restarted(9, 1, hosted=True, returned=True), MOVE_NS)
    assert (back.where, back.leaving) == (Where.RESUMING, False)
    assert policy.Count(0) in steps
    goes_on, _ = advance(leaving, Restarted(9, 1, hosted=True, returned=False), MOVE_NS)
    assert goes_on.where is Where.SUSPENDING


def test_programs_get_on_however_often_somebody_suspends_them() -> None:
    waking, _ = advance(away(), Looked(0, (Process(1, 3, movable_bytes=8, hosted_bytes=8, wants=True),)), MOVE_NS)
    coming, _ = advance(waking, policy.Room(0), MOVE_NS)
    again = Suspend(5, By.PERSON, False, 8)
    with pytest.raises(RefusedError, match="just brought it back"):
        advance(coming, again, MOVE_NS)
    there, _ = advance(coming, Looked(5, (Process(1, coming.epoch, movable_bytes=8),)), MOVE_NS)
    assert there.where is Where.RESIDENT
    with pytest.raises(RefusedError, match="just brought it back"):
        advance(there, again, MOVE_NS)
    for other in (
        Suspend(5, By.PERSON, True, 8),
        Suspend(5, By.RUNG, False, 8),
        Suspend(5 + STAY_NS, By.PERSON, False, 8),
    ):
        assert advance(there, other, MOVE_NS)[0].where is Where.SUSPENDING
    assert advance(coming, Suspend(5, By.RUNG, False, 8), MOVE_NS)[0].where is Where.SUSPENDING


def test_a_process_that_is_not_away_brings_the_others_back() -> None:
    """It had nothing to move when the others left, and its launches now wait for a lease that nobody gets."""
    one = Process(1, 3, movable_bytes=4, hosted_bytes=4)
    assert advance(away(), Looked(5, (one, Process(2, 3))), MOVE_NS) == (away(), ())
    for other in (Process(2, 3, failed="work is waiting"), Process(2, 3, movable_bytes=4)):
        assert advance(away(), Looked(5, (one, other)), MOVE_NS)[1] == (policy.AskRoom(),)
        assert advance(away(hold=True), Looked(5, (one, other)), MOVE_NS) == (away(hold=True), ())


def test_who_is_held_waits_for_nothing() -> None:
    waits = away(back=True, waits="b has its room")
    assert advance(waits, Suspend(5, By.PERSON, True, 4), MOVE_NS) == (away(hold=True), (policy.Record(),))


def test_processes_are_told_again_where_none_has_answered() -> None:
    coming, _ = advance(away(back=True), policy.Room(0), MOVE_NS)
    silent = Process(1, coming.epoch - 1, movable_bytes=4, hosted_bytes=4)
    assert advance(coming, Looked(1, (silent,)), MOVE_NS) == (coming, ())
    again, steps = advance(coming, Looked(coming.deadline_ns or 0, (silent,)), MOVE_NS)
    assert (again.epoch, steps) == (coming.epoch + 1, (policy.Record(), policy.Write(hosted=False)))


def test_who_is_held_while_it_leaves_does_not_come_back() -> None:
    """However often it was to come back before."""
    leaving, _ = advance(RESIDENT, Suspend(0, By.WANT, False, 8), MOVE_NS)
    going = Process(1, leaving.epoch - 1, movable_bytes=8, hosted_bytes=1, leaves=True)
    leaving, _ = advance(leaving, Looked(1, (going,)), MOVE_NS)
    assert leaving.leaving
    wanted, _ = advance(leaving, Resume(2), MOVE_NS)
    assert (wanted.where, wanted.back) == (Where.SUSPENDING, True)
    held, _ = advance(wanted, Suspend(3, By.PERSON, True, 8), MOVE_NS)
    gone = Process(1, held.epoch, movable_bytes=8, hosted_bytes=8, wants=True)
    there, steps = advance(held, Looked(4, (gone,)), MOVE_NS)
    assert (there.where, there.hold, there.back) == (Where.SUSPENDED, True, False)
    assert policy.AskRoom() not in steps
    still, steps = advance(there, Looked(5, (gone,)), MOVE_NS)
    assert (still, steps) == (there, ())
