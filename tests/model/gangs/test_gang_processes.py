"""Gangs of real processes (rank.c) that run collectives under a real arbiter: lease words, cuts, restarts, deaths."""

import os
import signal
import struct
import subprocess
import time

import pytest
from pages.madepages import limits_page, usage_page
from run import built
from run.waiting import until

from gpushare.binding.arbiter import Arbiter, ShareFlags
from gpushare.binding.arbiter_events import EventKind
from gpushare.binding.page_words import DeviceLimits
from gpushare.errors import FailedError
from gpushare.policy.quota.shares import Share

DEVICES = [0, 1]


class Gang:
    def __init__(self, directory, arbiter, milli, name, *, words=(0, 0), **options):
        self.arbiter, self.share = arbiter, Share(milli)
        device = DeviceLimits(bytes(16), 1 << 30, 0, milli, 1000)
        self.limits = limits_page(directory / f"{name}.limits", name, [device] * len(DEVICES))
        self.usage = usage_page(directory / f"{name}.usage", name)
        self.meeting = directory / f"{name}.meeting"
        self.meeting.write_bytes(bytes(32 * len(DEVICES)))
        self.bell = os.eventfd(0)
        self.ranks = {}
        if words != (0, 0):  # from before a restart, in use by processes
            slot = self.usage.claim(self.limits, 1).index
            for ordinal, word in enumerate(words):
                self.limits.pointer.device[ordinal].lease = word
                self.usage.pointer.slot[slot].device[ordinal].waiting = 1
        self.join(arbiter, **options)

    def join(self, arbiter, **options):
        self.arbiter = arbiter
        self.handle = arbiter.add(self.limits, self.usage, DEVICES, [self.share] * len(DEVICES), self.bell, **options)

    def start(self, *ranks):
        for rank in ranks or range(len(DEVICES)):
            slot = self.usage.claim(self.limits, 1).index
            places = [self.limits.path, self.usage.path, slot, self.bell, rank, self.meeting, rank, len(DEVICES)]
            process = subprocess.Popen(
                [str(part) for part in (built.program("page_rank"), *places)], pass_fds=[self.bell]
            )
            self.ranks[rank] = process, slot

    def kill(self, rank, *, clear=True):
        process, slot = self.ranks.pop(rank)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if clear:
            self.arbiter.clear_slot(self.handle, slot)

    def words(self):
        return [self.limits.lease(ordinal).epoch << 1 | self.limits.lease(ordinal).held for ordinal in range(2)]

    def met(self):
        """Returns, for each rank: collectives submitted, collectives completed, longest spin in us."""
        row = struct.unpack("<8Q", self.meeting.read_bytes())
        return [row[4 * rank : 4 * rank + 3] for rank in range(2)]

    def done(self):
        return min(done for _, done, _ in self.met())

    def stats(self, device=0):
        return self.arbiter.grant_stats(self.handle, device)

    def close(self):
        for rank in list(self.ranks):
            self.kill(rank, clear=False)
        self.limits.close()
        self.usage.close()
        os.close(self.bell)


@pytest.fixture
def node(tmp_path):
    """Gives make(milli...), which returns an arbiter and gangs."""
    arbiter = Arbiter()
    gangs = []

    def make(*shares, **options):
        for milli in shares:
            gangs.append(Gang(tmp_path, arbiter, milli, f"g{len(gangs)}", **options))
        return arbiter, gangs

    yield make
    arbiter.close()
    for gang in gangs:
        gang.close()


def wait(seconds):
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, seconds=seconds + 5)


def whole(gang):
    """Whether the gang's lease words agree, tolerating the microseconds in which the arbiter sets one after another."""
    words = gang.words()
    if len({word & 1 for word in words}) == 1:
        return True
    time.sleep(0.02)
    return gang.words() != words


@pytest.mark.xdist_group("timing")
def test_gangs_run_their_collectives_in_turns(node):
    arbiter, gangs = node(250, 750)
    for gang in gangs:
        gang.start()
    until(lambda: all(gang.done() > 20 for gang in gangs))
    before = [gang.stats().leased_ns for gang in gangs]
    steps = [gang.done() for gang in gangs]
    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert all(whole(gang) for gang in gangs)
        time.sleep(0.0005)
    got = [gang.stats().leased_ns - then for gang, then in zip(gangs, before, strict=True)]
    assert got[0] / sum(got) == pytest.approx(0.25, abs=0.05)
    done = [gang.done() - then for gang, then in zip(gangs, steps, strict=True)]
    assert done[0] / sum(done) == pytest.approx(0.25, abs=0.1)
    for device in DEVICES:
        books = arbiter.device_stats(device)
        assert books.leased_ns + books.idle_ns + books.switch_ns == books.wall_ns
        assert books.idle_with_waiters_ns / books.wall_ns < 0.05
    for gang in gangs:
        first, second = (gang.stats(device).leases for device in DEVICES)
        assert abs(first - second) <= 1


def test_both_words_change_in_one_section(node):
    arbiter, gangs = node(500, 500)
    for gang in gangs:
        gang.start()
    until(lambda: all(gang.stats().leases > 10 for gang in gangs))
    events, _ = arbiter.events()
    for gang in gangs:
        for kind in (EventKind.LEASE, EventKind.REVOKE):
            times = [
                [
                    event.t_ns
                    for event in events
                    if event.grant == gang.handle and event.kind is kind and event.device == d
                ]
                for d in DEVICES
            ]
            assert times[0] == times[1]
            assert len(times[0]) >= 9


def test_ranks_stop_at_the_same_collective(node):
    _, (gang, other) = node(500, 500)
    gang.start()
    other.start()
    until(lambda: gang.done() > 20)
    for _ in range(20):
        until(lambda: not any(word & 1 for word in gang.words()))
        # whatever one rank had submitted at the revocation, the other submits too, and no more
        until(lambda: any(word & 1 for word in gang.words()) or gang.met()[0][0] == gang.met()[1][0])
        until(lambda: any(word & 1 for word in gang.words()))
    assert abs(gang.met()[0][0] - gang.met()[1][0]) <= 1


def test_what_a_rank_submitted_before_it_was_first_seen_counts(node):
    """It joins while the gang has its leases, so that it rings no bell, and the first rank has not got as far."""
    _, (gang, other) = node(500, 500)
    slots = [gang.usage.claim(gang.limits, 1).index]
    first = gang.usage.pointer.slot[slots[0]].device[0]
    first.waiting = 1
    os.eventfd_write(gang.bell, 1)
    until(lambda: all(word & 1 for word in gang.words()))
    slots.append(gang.usage.claim(gang.limits, 1).index)
    second = gang.usage.pointer.slot[slots[1]].device[1]
    for words, submitted in ((first, 1), (second, 2)):
        words.waiting, words.inflight, words.queue_end_ns = 0, 1, 2**63
        words.launches = words.collectives = submitted
    other.start()
    until(lambda: not any(word & 1 for word in gang.words()))
    assert (first.cut, second.cut) == (2, 0)


def test_a_rank_that_does_not_know_cuts_is_saved_by_leases_beside_others(node):
    """As with a kernel that is not counted: rank 1 waits at the gate and cannot submit the next collective."""
    arbiter, (gang, other) = node(500, 500)
    other.start()
    gang.start(0)
    until(lambda: gang.met()[0][0] == 1)  # rank 0 spins for a rank that has counted none
    until(lambda: not any(word & 1 for word in gang.words()))
    slot = gang.usage.claim(gang.limits, 1).index
    words = gang.usage.pointer.slot[slot].device[1]
    words.waiting = 1
    os.eventfd_write(gang.bell, 1)
    kinds = set()

    def beside():
        kinds.update(event.kind for event in arbiter.events()[0] if event.grant == gang.handle)
        return EventKind.BESIDE in kinds

    until(beside)


def test_a_rank_killed_in_a_collective_holds_up_its_gang_alone(node):
    _, (gang, other) = node(500, 500)
    gang.start()
    other.start()
    until(lambda: gang.done() > 20 and other.done() > 20)
    gang.kill(1)
    wait(0.3)
    steps = other.done()
    wait(1)
    assert other.done() > steps + 50
    stuck = gang.done()
    gang.kill(0)
    gang.meeting.write_bytes(bytes(64))
    gang.start()
    until(lambda: gang.done() > 50, f"a restarted gang goes on from {stuck}", 10)
    assert whole(gang)


@pytest.mark.parametrize(
    ("words", "kept"), [((3, 5), True), ((3, 4), False), ((2, 5), False), ((2, 4), False)], ids=str
)
def test_leases_from_before_a_restart_stand_together_or_not_at_all(tmp_path, words, kept):
    with Arbiter() as arbiter:
        gang = Gang(tmp_path, arbiter, 500, "g", words=words)
        first = gang.words()
        # unless both leases remain, neither does: the gang waits, and soon has both again
        assert (first == list(words)) == kept
        until(lambda: [word & 1 for word in gang.words()] == [1, 1])
        assert kept or all(new > old for new, old in zip(gang.words(), words, strict=True))
        gang.start()
        until(lambda: gang.done() > 5)
        arbiter.remove(gang.handle)
        assert not any(word & 1 for word in gang.words())
    gang.close()


def test_a_removed_gang_leaves_its_devices_to_the_other(node):
    arbiter, (gang, other) = node(500, 500)
    gang.start()
    other.start()
    until(lambda: gang.done() > 20 and other.done() > 20)
    arbiter.remove(gang.handle)
    assert not any(word & 1 for word in gang.words())
    steps = other.done()
    until(lambda: other.done() > steps + 50)
    with pytest.raises(FailedError, match="no grant"):
        gang.stats()


@pytest.mark.xdist_group("timing")
def test_lies_about_collectives_cost_only_the_liar(node, exact):
    _, (liar, honest) = node(500, 500)
    honest.start()
    slot = liar.usage.claim(liar.limits, 1).index
    second = liar.usage.claim(liar.limits, 1).index
    for ordinal, (index, count) in enumerate([(slot, 2**64 - 1), (second, 3)]):
        words = liar.usage.pointer.slot[index].device[ordinal]
        words.collectives, words.queue_end_ns, words.inflight, words.waiting = count, 2**64 - 1, 1, 1
    os.eventfd_write(liar.bell, 1)
    until(lambda: honest.done() > 20 and liar.stats().leases > 1)
    steps, looks, leased = honest.done(), 0, 0
    end = time.monotonic() + (3 if exact else 1.5)
    while time.monotonic() < end:
        looks += 1
        leased += honest.words()[0] & 1
        time.sleep(0.001)
    assert liar.usage.pointer.slot[second].device[1].cut <= 3 + 64
    assert leased / looks > 0.45
    assert honest.done() > steps + (100 if exact else 50)
    # it is charged for the devices it claims to use
    assert liar.stats().leased_ns > honest.stats().leased_ns * (0.9 if exact else 0.75)


def test_devices_may_be_leased_one_by_one(node):
    _, (gang, other) = node(500, 500, flags=ShareFlags.NONE)
    gang.start(0)
    other.start(1)
    until(lambda: gang.words()[0] & 1 and other.words()[1] & 1)
    assert not gang.words()[1] & 1
