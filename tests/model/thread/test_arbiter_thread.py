"""The arbiter's thread with real processes that use the page protocol (tenant.c): lease words, futexes, bells."""

import ctypes
import os
import signal
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from page_tenants import Grant
from pages.pagewords import heartbeat
from run.waiting import until

from gpushare._native import ffi, lib
from gpushare.binding.arbiter import EVENTS_KEPT, Arbiter, Config
from gpushare.binding.arbiter_events import EventKind, Rule
from gpushare.errors import FailedError
from gpushare.policy.quota.shares import Share

MS = 1_000_000
FUTEX = 202 if os.uname().machine == "x86_64" else 98  # the system call
TIMING = pytest.mark.xdist_group("timing")


def threads():
    tasks = [Path(f"/proc/self/task/{tid}") for tid in os.listdir("/proc/self/task")]
    return [task for task in tasks if (task / "comm").read_text().strip() == "gs-arbiter"]


def cpu_seconds(task):
    fields = (task / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def switches(task):
    status = (task / "status").read_text()
    return sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)


def leased(grants):
    return [grant.stats().leased_ns for grant in grants]


def gained(grants, seconds):
    before = leased(grants)
    end = time.monotonic() + seconds
    until(lambda: time.monotonic() >= end, seconds=seconds + 5)
    return [now - then for now, then in zip(leased(grants), before, strict=True)]


def test_the_defaults_of_c_and_python_agree():
    settings = ffi.new("struct gs_arbiter_config *")
    lib.gs_arbiter_defaults(settings)
    config = Config()
    for name in Config.__dataclass_fields__:
        assert getattr(settings, name) == int(getattr(config, name)), name


@TIMING
def test_two_processes_get_what_their_grants_say(machine, exact):
    arbiter, grants = machine(Share(250), Share(750))
    for grant in grants:
        grant.start()
    until(lambda: all(grant.stats().leases for grant in grants))
    task = threads()[0]
    cpu, start = cpu_seconds(task), time.monotonic()
    busy = [grant.stats().busy_ns for grant in grants]
    got = gained(grants, 3)
    cpu, wall = cpu_seconds(task) - cpu, time.monotonic() - start
    assert got[0] / sum(got) == pytest.approx(0.25, abs=0.04)
    # The leases as the processes saw them, including late wake-ups of a busy machine.
    seen = [grant.stats().busy_ns - then for grant, then in zip(grants, busy, strict=True)]
    assert seen[0] / sum(seen) == pytest.approx(0.25, abs=0.08)
    assert cpu / wall < 0.05
    device = arbiter.device_stats(0)
    assert device.leased_ns + device.idle_ns + device.switch_ns == device.wall_ns
    assert device.idle_with_waiters_ns / device.wall_ns < (0.05 if exact else 0.15)


@TIMING
def test_an_owner_that_wakes_takes_a_borrowed_device_back_in_milliseconds(machine):
    _, (owner, borrower) = machine(Share(750), Share(250))
    borrower.start()
    owner.start(20, 60)
    until(lambda: sum(owner.stats().wake_to_lease) >= 25, seconds=20)
    waits = owner.stats().wake_to_lease
    # The median shows the mechanism; the tail depends on the machine.
    median = next(i for i in range(len(waits)) if 2 * sum(waits[: i + 1]) >= sum(waits))
    assert 2**median <= 4096  # us
    assert borrower.stats().leased_ns > owner.stats().leased_ns
    assert borrower.stats().borrowed_ns > 0


def test_a_killed_holder_leaves_the_device_to_the_other(machine):
    _, (first, second) = machine(Share(500), Share(500))
    for _ in range(3):
        process = first.start()
        second_process = second.processes[0] if second.processes else second.start()
        until(lambda: first.limits.lease(0).held)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = second.stats().leases
        until(lambda before=before: second.stats().leases > before or second.stats().held)
        first.end(process)
        assert not first.limits.lease(0).held
        assert first.stats().processes == 0
        assert second_process.poll() is None
    got = gained([first, second], 0.5)
    assert got[0] == 0
    assert got[1] > 0


def test_a_stopped_holder_does_not_stop_the_other(machine):
    _, (first, second) = machine(Share(500), Share(500))
    stopped = first.start()
    second.start()
    until(lambda: first.limits.lease(0).held)
    stopped.send_signal(signal.SIGSTOP)
    until(lambda: not first.limits.lease(0).held)
    before = second.stats().leased_ns
    until(lambda: second.stats().leased_ns > before + 1000 * MS)
    stopped.send_signal(signal.SIGCONT)
    before = first.stats().leases
    until(lambda: first.stats().leases > before + 3)


@TIMING
def test_several_processes_share_the_lease_of_their_grant(machine):
    _, (many, one) = machine(Share(500), Share(500))
    for _ in range(6):
        many.start()
    one.start()
    until(lambda: many.stats().processes == 6)
    got = gained([many, one], 2)
    assert got[0] / sum(got) == pytest.approx(0.5, abs=0.05)


def test_heartbeats_run_while_a_process_is_joined_and_a_deserted_arbiter_sleeps(machine):
    _, (grant,) = machine(Share(500))
    process = grant.start()
    beat = heartbeat(grant.limits)
    until(lambda: heartbeat(grant.limits) >= beat + 5)
    grant.end(process)
    task = threads()[0]
    seen = [None]

    def quiet():
        last, seen[0] = seen[0], (switches(task), heartbeat(grant.limits))
        end = time.monotonic() + 0.3
        until(lambda: time.monotonic() >= end)
        return last == seen[0]

    until(quiet, "an arbiter without wakeups", 10)


def test_contention_moves_the_bound_on_work_in_flight(machine):
    _, (first, second) = machine(Share(500), Share(500))
    first.start()
    until(lambda: first.limits.lease(0).inflight_bound_ns == 50 * MS)
    assert not first.limits.lease(0).contended
    process = second.start()
    until(lambda: first.limits.lease(0).inflight_bound_ns == 2 * MS)
    assert first.limits.lease(0).contended
    second.end(process)
    until(lambda: first.limits.lease(0).inflight_bound_ns == 50 * MS)


@TIMING
def test_lies_in_the_usage_page_cost_only_the_liar(machine):
    _, (liar, honest) = machine(Share(500), Share(500))
    slot = liar.usage.claim(liar.limits, 1)
    words = liar.usage.pointer.slot[slot.index].device[0]
    huge = 2**64 - 1
    words.queue_end_ns = words.launches = words.busy_ns = words.memory_bytes = huge
    words.waiting = words.inflight = 2**32 - 1
    os.eventfd_write(liar.bell, 1)
    honest.start()
    until(lambda: honest.stats().leases)
    got = gained([liar, honest], 2)
    assert got[1] / sum(got) > 0.45


def test_what_was_reported_drained_is_on_the_device_until_it_is_proven_done(machine):
    arbiter, (first, second) = machine(Share(500), Share(500))
    words = first.usage.pointer.slot[first.usage.claim(first.limits, 1).index].device[0]
    words.waiting = 1
    os.eventfd_write(first.bell, 1)
    until(lambda: first.limits.lease(0).held)
    words.waiting, words.inflight, words.launches = 0, 1, 1  # it should be done by now, but nothing shows that
    second.start()
    until(lambda: not first.limits.lease(0).held)
    [revoke] = [e for e in arbiter.events()[0] if e.kind is EventKind.REVOKE]
    assert revoke.rule in {Rule.TERM, Rule.WAKE}  # not as idle; late on a busy machine, it has borrowed
    words.queue_end_ns = 2**63  # what claims nothing for a second counts as stopped
    words.drained = first.limits.pointer.device[0].lease
    os.eventfd_write(first.bell, 1)
    until(lambda: second.stats().leases)
    assert second.limits.pointer.device[0].foreign_work & 1
    assert second.limits.pointer.device[0].foreign_count == 1
    assert EventKind.DRAINED not in {e.kind for e in arbiter.events()[0]}
    words.queue_end_ns = words.inflight = 0
    os.eventfd_write(first.bell, 1)
    until(lambda: not second.limits.pointer.device[0].foreign_work & 1)
    assert second.limits.pointer.device[0].foreign_count == 0
    assert EventKind.DRAINED in {e.kind for e in arbiter.events()[0]}


@TIMING
def test_a_bell_rung_without_end_does_not_take_a_core(machine):
    _, (noisy, honest) = machine(Share(500), Share(500))
    honest.start()
    until(lambda: honest.stats().leases)
    task = threads()[0]
    cpu, start = cpu_seconds(task), time.monotonic()
    while time.monotonic() < start + 1:
        os.eventfd_write(noisy.bell, 1)
    assert (cpu_seconds(task) - cpu) / (time.monotonic() - start) < 0.4
    before = honest.stats().leased_ns
    until(lambda: honest.stats().leased_ns > before)


def test_a_truncated_usage_page_ends_nothing_but_its_grant(machine):
    _, (broken, sound) = machine(Share(500), Share(500))
    broken.start()
    sound.start()
    until(lambda: broken.stats().leases)
    os.truncate(broken.usage.path, 0)
    until(lambda: broken.stats().marked and broken.usage.torn)
    assert not broken.stats().runnable
    with pytest.raises(FailedError, match="not a usage page"):
        broken.usage.check()
    assert not sound.usage.torn
    before = sound.stats().leased_ns
    until(lambda: sound.stats().leased_ns > before)


def test_a_new_arbiter_takes_over_leases_and_tenants_go_on(tmp_path):
    first = Arbiter()
    grants = [Grant(tmp_path, first, Share(milli), f"g{milli}") for milli in (250, 750)]
    try:
        for grant in grants:
            grant.start()
        until(lambda: all(grant.stats().leases for grant in grants))
        first.close()
        held = [grant for grant in grants if grant.limits.lease(0).held]
        words = [grant.limits.lease(0).epoch for grant in held]
        with Arbiter() as second:
            # Holders first: their leases are taken over, not revoked.
            for grant in sorted(grants, key=lambda grant: grant not in held):
                grant.arbiter = second
                grant.handle = second.add(grant.limits, grant.usage, [0], [Share(500)], grant.bell)
                assert grant not in held or grant.limits.lease(0).epoch >= words[held.index(grant)]
            got = gained(grants, 1)
            assert all(got)
        assert sum(grant.limits.lease(0).held for grant in grants) <= 1
    finally:
        first.close()
        for grant in grants:
            grant.close()


def test_a_removed_grant_loses_its_lease_and_the_other_gets_it(machine):
    arbiter, (first, second) = machine(Share(500), Share(500))
    first.start()
    second.start()
    until(lambda: first.limits.lease(0).held)
    arbiter.remove(first.handle)
    assert not first.limits.lease(0).held
    until(lambda: second.limits.lease(0).held)
    with pytest.raises(FailedError, match="no grant"):
        first.stats()


def test_changed_shares_reach_running_tenants(machine):
    arbiter, grants = machine(Share(250), Share(750))
    for grant in grants:
        grant.start()
    arbiter.set_shares(grants[0].handle, [Share(750)])
    arbiter.set_shares(grants[1].handle, [Share(250)])

    def follows():
        got = gained(grants, 0.5)
        return got[0] / sum(got) == pytest.approx(0.75, abs=0.05)

    until(follows)


def test_events_are_in_order(machine):
    arbiter, grants = machine(Share(500), Share(500))
    for grant in grants:
        grant.start()
    until(lambda: all(grant.stats().leases > 3 for grant in grants))
    events, lost = arbiter.events()
    assert lost == 0
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert all(a.t_ns <= b.t_ns for a, b in pairwise(events))
    assert {event.kind for event in events} >= {EventKind.LEASE, EventKind.REVOKE, EventKind.HANDOVER, EventKind.WAKE}
    holder = None
    for event in events:
        if event.kind is EventKind.LEASE:
            assert holder is None
            holder = event.grant
        elif event.kind is EventKind.REVOKE:
            assert event.grant == holder
            holder = None
    again, lost = arbiter.events()
    assert lost == 0
    assert all(event.sequence > events[-1].sequence for event in again)


def test_the_record_shows_what_it_lost_and_names_no_grant_twice(machine):
    arbiter, (grant,) = machine(Share(500))
    slot = grant.usage.claim(grant.limits, 1)
    grant.usage.pointer.slot[slot.index].device[0].waiting = 1
    handles = {grant.handle}
    while arbiter.newest_event() < EVENTS_KEPT + 1000:  # three events each: wake, lease, end
        arbiter.remove(grant.handle)
        grant.handle = arbiter.add(grant.limits, grant.usage, [0], [Share(500)], grant.bell)
        assert grant.handle not in handles
        handles.add(grant.handle)
    newest = arbiter.newest_event()
    found, after, lost = arbiter.events_after(0)
    assert (len(found), lost, after) == (EVENTS_KEPT, newest - EVENTS_KEPT, newest)
    assert [event.sequence for event in found] == list(range(lost + 1, newest + 1))
    assert {event.grant for event in found} <= handles
    assert arbiter.events_after(lost)[2] == 0
    assert arbiter.events_after(lost - 7)[2] == 7
    _, lost = arbiter.events()
    assert lost == newest - EVENTS_KEPT


def test_memory_peaks_are_kept(machine):
    _, (grant,) = machine(Share(500))
    slot = grant.usage.claim(grant.limits, 1)
    words = grant.usage.pointer.slot[slot.index].device[0]
    words.memory_bytes = 7 << 20
    os.eventfd_write(grant.bell, 1)
    until(lambda: grant.stats().memory_peak_bytes == 7 << 20)
    words.memory_bytes = 0
    assert grant.stats().memory_bytes == 0
    assert grant.stats().memory_peak_bytes == 7 << 20


def test_metered_time_of_dead_processes_stays_in_the_sum(machine):
    arbiter, (grant,) = machine(Share(500))
    slot = grant.usage.claim(grant.limits, 1)
    grant.usage.pointer.slot[slot.index].device[0].busy_ns = 12345
    assert grant.stats().busy_ns == 12345
    arbiter.clear_slot(grant.handle, slot.index)
    assert grant.stats().busy_ns == 12345
    assert grant.usage.usage(slot.index, 0).busy_ns == 0
    assert list(grant.usage.live_slots(grant.limits)) == []


@pytest.mark.parametrize(
    ("shares", "devices", "message"),
    [
        ([Share(600, limit_milli=500)], [0], "above its limit"),
        ([Share(0, limit_milli=0)], [0], "time limit"),
        ([Share(10), Share(10)], [0, 0], "named twice"),
        ([Share(10)], [16], "devices 0 to 15"),
    ],
)
def test_what_cannot_be_served_is_refused(machine, shares, devices, message):
    arbiter, (grant,) = machine(Share(1))
    with pytest.raises(FailedError, match=message):
        arbiter.add(grant.limits, grant.usage, devices, shares, grant.bell)
    with pytest.raises(FailedError, match="bell"):
        arbiter.add(grant.limits, grant.usage, [0], [Share(1)], 999)


def test_a_senseless_configuration_is_refused():
    with pytest.raises(FailedError, match="a lease lasts"):
        Arbiter(Config(lease_ns=0))
    with pytest.raises(FailedError, match="credit floor"):
        Arbiter(Config(credit_floor_ns=0))


WAITERS, WOKEN_AT_ONCE = 300, 64


@pytest.mark.promise("waiting-threads")
def test_a_crowd_that_waits_for_a_lease_is_woken_a_few_at_a_time(machine):
    """A tenant decides how many threads wait for its word: waking ten thousand kept the arbiter busy for 80 ms."""
    _, [grant] = machine(Share(1000))
    word = ffi.addressof(grant.limits.pointer.device[0], "lease")
    before, woken, libc = word[0], [], ctypes.CDLL(None)
    at = ctypes.c_void_p(int(ffi.cast("uintptr_t", word)))

    def wait():
        libc.syscall(ctypes.c_long(FUTEX), at, 0, ctypes.c_uint32(before), None, None, 0)
        woken.append(True)

    crowd = [threading.Thread(target=wait) for _ in range(WAITERS)]
    for thread in crowd:
        thread.start()
    calls = [Path(f"/proc/self/task/{thread.native_id}/syscall") for thread in crowd]
    until(lambda: all(call.read_text().startswith(f"{FUTEX} {at.value:#x} ") for call in calls), "all of them sleep")
    slot = grant.usage.claim(grant.limits, 1)
    grant.usage.pointer.slot[slot.index].device[0].waiting = 1
    os.eventfd_write(grant.bell, 1)
    until(lambda: woken, "it has a lease")
    left = lib.gs_futex_wake(word)
    assert WAITERS - left <= WOKEN_AT_ONCE * (word[0] - before)
    for thread in crowd:
        thread.join()
