"""How the arbiter validates the words of a usage page (native/arbiter/thread/claims.h)."""

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.waiting import until
from virtual_node import ffi, lib

from gpushare.binding.arbiter_events import EventKind, Word
from gpushare.policy.quota.shares import Share

MOST = 2**63 - 1
SLACK = lib.GS_CLAIM_SLACK_NS
GIB = 1 << 30
U64 = st.one_of(st.sampled_from([0, 1, 2**31, 2**32 - 1, MOST, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))
U32 = st.one_of(st.sampled_from([0, 1, 2**31, 2**32 - 1]), st.integers(0, 2**32 - 1))
WORDS = st.fixed_dictionaries(
    dict.fromkeys(("memory_bytes", "busy_ns", "queue_end_ns", "launches", "collectives"), U64)
    | dict.fromkeys(("state", "generation", "waiting", "inflight"), U32)
    | {"pid": st.integers(-(2**31), 2**31 - 1)}
)
HONEST = {"state": 1, "generation": 7, "pid": 42}


def believe(claim, words, now, since=0, capacity=GIB):
    bounds = ffi.new("struct gs_claim_bounds *", (7, 42, now, since, capacity))
    row = ffi.new("struct gs_claim_words *", words)
    return lib.gs_claim_believe(claim, bounds, row), row


@pytest.mark.promise("claims-are-bounded")
@given(st.lists(st.tuples(st.integers(0, 10**10), WORDS), min_size=1, max_size=20), U64, U64)
def test_whatever_is_written_what_is_believed_is_possible(steps, since, capacity):
    claim = ffi.new("struct gs_claim *")
    now = since % 2**62
    for passed, words in steps:
        now += passed
        before, lies = claim.busy_ns, claim.lies
        new, seen = believe(claim, words, now, since % 2**62, capacity)
        age = now - since % 2**62
        assert before <= seen.busy_ns == claim.busy_ns <= age + SLACK
        assert seen.launches <= age + SLACK >= seen.collectives
        assert seen.memory_bytes <= min(capacity or MOST, MOST)
        assert seen.queue_end_ns <= MOST
        assert (seen.state, seen.generation, seen.pid) == (1, 7, 42)
        assert not new & lies  # each lie is reported once
        assert claim.lies == lies | new
        assert bool(claim.lies & 1 << lib.GS_WORD_BUSY) >= (words["busy_ns"] < before or words["busy_ns"] > age + SLACK)


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(0, 1000), st.integers(0, 2 * GIB)), max_size=20))
def test_who_meters_no_more_than_time_passes_is_believed(steps):
    claim = ffi.new("struct gs_claim *")
    now = since = 10**9
    busy = 0
    for passed, milli, memory in steps:
        now += passed
        busy += (now - since - busy) * milli // 1000  # includes time not metered so far, in one step
        words = HONEST | {
            "busy_ns": busy,
            "launches": now - since,
            "memory_bytes": memory,
            "queue_end_ns": now + 10**12,
        }
        new, seen = believe(claim, words, now, since)
        assert (new, seen.busy_ns, seen.memory_bytes) == (0, busy, min(memory, GIB))


def metered(steps, base=0):
    """`steps`: (ns, growth of the sum, marked, held). Returns the metered time at the start and after each step."""
    row, now, total = ffi.new("struct gs_metered *"), 10**9, base
    lib.gs_metered_add(row, total, False, False, now)
    found = [row.busy_ns]
    for passed, grown, marked, held in steps:
        now, total = now + passed, total + grown
        lib.gs_metered_add(row, total, marked, held, now)
        found.append(row.busy_ns)
    return found


STEP = st.tuples(st.integers(0, 10**9), st.integers(0, 10**10), st.booleans(), st.booleans())


@given(st.lists(STEP, max_size=30), st.integers(0, MOST // 2))
def test_a_grant_pays_for_no_more_than_the_time_that_passed(steps, base):
    found = metered(steps, base)
    assert found == sorted(found)
    assert found[-1] - base <= sum(step[0] for step in steps) + SLACK


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 1000), st.booleans()), max_size=30))
def test_a_marked_grant_pays_at_least_for_its_leases_and_for_what_it_reports(steps):
    honest = [(passed, passed * milli // 1000 if held else 0, False, held) for passed, milli, held in steps]
    marked = [(passed, grown, True, held) for passed, grown, _, held in honest]
    assert metered(honest)[-1] == sum(step[1] for step in honest)
    assert metered(marked)[-1] == sum(step[0] for step in marked if step[3]) >= metered(honest)[-1]


@given(U64, st.booleans(), U64, U64)
def test_memory_is_at_most_what_the_device_has_and_of_a_marked_grant_all_it_may_take(total, marked, limit, capacity):
    found = lib.gs_claim_memory(total, marked, limit, capacity)
    most = min(capacity or MOST, MOST)
    assert found == min(max(total, limit if marked else 0), most)


LIES = {
    "state": [(Word.STATE, "state", 0), (Word.STATE, "state", 2**32 - 1)],
    "generation": [(Word.GENERATION, "generation", 0), (Word.GENERATION, "generation", 2**31)],
    "pid": [(Word.PID, "pid", 0), (Word.PID, "pid", 2**31 - 1)],
    "memory_bytes": [(Word.MEMORY, "memory_bytes", value) for value in (8 * GIB + 1, 2**63 - 1, 2**63, 2**64 - 1)],
    "busy_ns": [(Word.BUSY, "busy_ns", value) for value in (0, 2**63 - 1, 2**63, 2**64 - 1)],
    "queue_end_ns": [(Word.QUEUE_END, "queue_end_ns", value) for value in (2**63, 2**64 - 1)],
    "launches": [(Word.LAUNCHES, "launches", value) for value in (2**63 - 1, 2**64 - 1)],
    "collectives": [(Word.COLLECTIVES, "collectives", value) for value in (2**63 - 1, 2**64 - 1)],
    "waiting": [(Word.WAITING, "waiting", 2**31), (Word.WAITING, "waiting", 2**32 - 1)],
    "inflight": [(Word.INFLIGHT, "inflight", 2**31), (Word.INFLIGHT, "inflight", 2**32 - 1)],
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_marks_its_slot_and_is_reported_once(machine, name):
    for word, field, value in LIES[name]:
        arbiter, grants = machine(Share(500))
        grant = grants[-1]
        grant.usage.set_capacity([4 * GIB])
        slot = grant.usage.claim(grant.limits, 4242)
        header = grant.usage.pointer.slot[slot.index]
        words = header if name in ("state", "generation", "pid") else header.device[0]
        header.device[0].busy_ns = 12345
        assert (grant.stats().marked, grant.stats().busy_ns) == (0, 12345)
        setattr(words, field, value)
        for _ in range(3):
            stats = grant.stats()
        assert stats.marked == 1
        assert stats.processes == 1
        assert stats.busy_ns <= 12345 + 60 * 10**9
        assert stats.memory_bytes == min(4 * GIB, value if word is Word.MEMORY else GIB)
        lies = [e for e in arbiter.events()[0] if e.kind is EventKind.LIE]
        [event] = lies
        assert event.grant == grant.handle
        lie = event.lie
        assert (lie.word, lie.slot, lie.pid, lie.value) == (word, slot.index, 4242, min(value, MOST))
        arbiter.clear_slot(grant.handle, slot.index)
        after = grant.stats()
        assert (after.marked, after.processes, after.memory_bytes) == (0, 0, 0)
        assert after.busy_ns >= 12345
        grant.usage.claim(grant.limits, 4243)
        assert grant.stats().marked == 0


def test_a_thousand_lies_do_not_fill_the_record(machine):
    arbiter, (grant,) = machine(Share(500))
    began = os.times().elapsed
    for _ in range(200):
        slot = grant.usage.claim(grant.limits, 4242)
        for word in ("launches", "waiting", "inflight"):
            setattr(
                grant.usage.pointer.slot[slot.index].device[0], word, 2**32 - 1 if word != "launches" else 2**64 - 1
            )
        assert grant.stats().marked == 1
        arbiter.clear_slot(grant.handle, slot.index)
    seconds = os.times().elapsed - began
    lies = [e for e in arbiter.events()[0] if e.kind is EventKind.LIE]
    assert len(lies) <= 16 * (seconds + 2)


@pytest.mark.promise("lie-does-not-pay")
def test_a_liar_pays_for_every_lease_in_full_and_its_neighbour_for_none_of_it(machine):
    """The liar reports after each lease that it has done nothing."""
    _, (liar, honest) = machine(Share(500), Share(500))
    process: subprocess.Popen[bytes] = liar.start()
    honest.start()
    words = liar.usage.pointer.slot[process.slot].device[0]
    until(lambda: liar.stats().busy_ns > 0)
    words.busy_ns = 0
    until(lambda: liar.stats().marked)
    busy, before = honest.stats(), liar.stats()
    until(lambda: liar.stats().leased_ns > before.leased_ns + 200_000_000)
    after, other = liar.stats(), honest.stats()
    assert after.busy_ns - before.busy_ns >= 0.9 * (after.leased_ns - before.leased_ns)
    assert other.marked == 0
    assert other.leased_ns > busy.leased_ns
