"""The pure core in virtual time: which grant gets the lease when, and what each is charged."""

import pytest
from virtual_device import Model, machine
from virtual_node import CONTENDED, HANDOVER, MS, NEVER, REVOKE, WAKE, ffi, lib

SECOND = 1000 * MS
LEASE_NS, OVERLAP_NS = 20 * MS, MS


@pytest.mark.parametrize(
    "guarantees", [(250, 750), (100, 900), (340, 330, 330), (125,) * 8, (10, 990), (50,) * 20], ids=str
)
def test_a_full_device_is_split_by_guarantees_within_a_point_over_ten_seconds(guarantees):
    m = machine(*({"guarantee": milli} for milli in guarantees))
    charged, executed = m.shares(10 * SECOND)
    for number, milli in enumerate(guarantees):
        assert executed[number] == pytest.approx(milli / 1000, abs=0.01)
        assert charged[number] == pytest.approx(executed[number], abs=0.002)


@pytest.mark.parametrize("guarantees", [(250, 750), (100, 900), (340, 330, 330), (125,) * 8], ids=str)
def test_shares_hold_within_three_points_in_each_second(guarantees):
    m = machine(*({"guarantee": milli} for milli in guarantees))
    for _ in range(8):
        _, executed = m.shares(SECOND)
        for number, milli in enumerate(guarantees):
            assert executed[number] == pytest.approx(milli / 1000, abs=0.03)


def test_work_of_tenants_with_deep_queues_is_charged_as_it_ran():
    m = machine({"guarantee": 500, "depth": 50 * MS}, {"guarantee": 500, "depth": MS // 10})
    charged, executed = m.shares(10 * SECOND)
    for number in (0, 1):
        assert executed[number] == pytest.approx(0.5, abs=0.01)
        assert charged[number] == pytest.approx(executed[number], abs=0.01)


def test_surplus_goes_by_weight():
    _, executed = machine({"weight": 3}, {"weight": 1}).shares(10 * SECOND)
    assert executed[0] == pytest.approx(0.75, abs=0.01)


def test_surplus_of_an_absent_owner_is_split_by_weight_above_guarantees():
    m = Model()
    m.add(0, guarantee=500)
    for number, weight in ((1, 2), (2, 1)):
        m.add(number, guarantee=100, weight=weight)
        m.want(number)
    m.run(SECOND)
    _, executed = m.shares(10 * SECOND)
    assert executed[1] == pytest.approx(0.1 + 0.8 * 2 / 3, abs=0.02)
    assert executed[2] == pytest.approx(0.1 + 0.8 / 3, abs=0.02)


def test_higher_tiers_borrow_first_and_guarantees_go_before_tiers():
    _, executed = machine({"tier": 1}, {"tier": 0}, {"tier": -5, "guarantee": 200}).shares(10 * SECOND)
    assert executed[0] == pytest.approx(0.8, abs=0.01)
    assert executed[1] == 0
    assert executed[2] == pytest.approx(0.2, abs=0.01)


def test_scavengers_get_only_what_nobody_wants_and_equally():
    m = machine({"weight": 0}, {"weight": 0}, {"guarantee": 300, "limit": 600})
    _, executed = m.shares(10 * SECOND)
    assert executed[0] == pytest.approx(0.2, abs=0.01)
    assert executed[1] == pytest.approx(0.2, abs=0.01)
    assert executed[2] == pytest.approx(0.6, abs=0.01)


def test_kinds_of_waits_are_distinct():
    """By what would end the wait: the limit, the grant's turn by its guarantee, or device time that others leave."""
    m = machine({"limit": 250}, {})
    limited, rival = m.stats(0), m.stats(1)
    assert limited.wait_limit_ns > 0.6 * limited.wait_ns > 0
    assert rival.wait_limit_ns == rival.wait_owed_ns == limited.wait_owed_ns == 0
    m = machine({"guarantee": 500}, {"guarantee": 200}, {})
    borrower = m.stats(2)
    assert borrower.wait_ns > 0 and borrower.wait_owed_ns == borrower.wait_limit_ns == 0
    for number in (0, 1):
        owed = m.stats(number)
        assert 0 < owed.wait_owed_ns < owed.wait_ns and owed.wait_limit_ns == 0


@pytest.mark.parametrize("limit", [50, 300, 900])
def test_a_limit_holds_on_an_idle_device_too(limit):
    m = machine({"guarantee": 0, "limit": limit})
    for _ in range(5):
        _, executed = m.shares(SECOND)
        assert executed[0] == pytest.approx(limit / 1000, abs=0.03)


def test_an_owner_that_returns_is_leased_within_the_overlap_and_a_borrower_gets_all_meanwhile():
    m = machine({"guarantee": 750}, {"guarantee": 250})
    m.want(0, work=0)
    m.run(SECOND)
    _, executed = m.shares(SECOND)
    assert executed[1] == pytest.approx(1.0, abs=0.001)
    m.waits.clear()
    m.want(0)
    m.run(50 * MS)
    assert m.waits[0][0] == 0
    assert m.waits[0][1] <= OVERLAP_NS


def test_a_borrower_takes_over_at_once_when_the_owner_goes_idle():
    m = machine({"guarantee": 750}, {"guarantee": 250})
    m.want(0, work=0)
    m.run(4 * MS)  # the queued work, then the early hand-over
    _, executed = m.shares(100 * MS)
    assert executed[1] >= 0.99


def test_nobody_waiting_the_holder_keeps_its_lease_and_the_device_sleeps():
    m = Model()
    m.add(0, guarantee=500)
    m.want(0, work=5 * MS)
    m.run(10 * MS)
    revokes = [d for d in m.decisions if d[1] == REVOKE]
    assert revokes == []
    assert lib.gs_core_holder(m.core) == 0
    assert m.next == NEVER
    assert m.tenants[0].contended == 0


def test_time_in_which_a_lone_holder_did_nothing_is_idle_and_charges_nobody():
    m = Model()
    m.add(0, guarantee=500)
    m.want(0, work=5 * MS)
    m.run(SECOND)
    assert m.stats(0).leased_ns == pytest.approx(5 * MS, abs=MS)
    assert m.device().idle_ns == pytest.approx(SECOND - 5 * MS, abs=MS)
    assert m.device().idle_with_waiters_ns == 0


def test_the_holder_is_notified_of_work_that_outlives_its_lease():
    m = machine({"guarantee": 500, "depth": 30 * MS}, {"guarantee": 500})
    notified = 0
    for _ in range(1000):
        m.run(MS)
        holder = lib.gs_core_holder(m.core)
        if holder < 0:
            continue
        left = m.tenants[1 - holder].queued
        if lib.gs_core_foreign_work(m.core, holder):
            assert left > 0
            notified += 1
        else:
            assert left <= 0.2 * MS
    assert notified > 100


def test_the_holder_is_notified_of_how_many_have_such_work():
    """Of four, two have kernels that outlive their leases: both can be on the device while a third has the lease."""
    deep = {"guarantee": 250, "depth": 30 * MS}
    m = machine(deep, deep, {"guarantee": 250}, {"guarantee": 250})
    most = dict.fromkeys(range(3), 0)
    for _ in range(2000):
        m.run(MS)
        holder = lib.gs_core_holder(m.core)
        if holder < 0:
            continue
        left = sum(t.queued > MS for n, t in m.tenants.items() if n != holder and n < 2)
        others = lib.gs_core_foreign_work(m.core, holder)
        assert others >= left
        most[left] = max(most[left], others)
    assert most[1] >= 1
    assert most[2] >= 2


def test_contention_is_published_while_a_neighbour_waits_and_for_a_second_after_it_ran():
    m = machine({"guarantee": 500}, {"guarantee": 500})
    assert [m.tenants[n].contended for n in (0, 1)] == [1, 1]
    m.want(1, work=0)
    m.run(900 * MS)
    assert m.tenants[0].contended == 1
    m.run(300 * MS)
    assert m.tenants[0].contended == 0
    m.want(1)
    assert m.tenants[0].contended == 1


@pytest.mark.parametrize("guarantees", [(250, 750), (500, 500), (340, 330, 330)])
def test_a_device_is_not_drained_for_who_does_not_get_it(guarantees):
    m = machine(*({"guarantee": guarantee} for guarantee in guarantees))
    m.run(10 * SECOND)
    handovers = [(grant, other) for _, action, grant, other, _ in m.decisions if action == HANDOVER]
    assert len(handovers) > 100
    assert sum(grant == other for grant, other in handovers) <= 0.01 * len(handovers)


def test_a_removed_holder_leaves_the_device_to_others():
    m = machine({"guarantee": 500}, {"guarantee": 500})
    while not m.tenants[0].held:
        m.run(MS)
    m.remove(0)
    assert lib.gs_core_holder(m.core) == 1


def test_changed_shares_take_effect_while_leases_are_out():
    m = machine({"guarantee": 250}, {"guarantee": 750})
    m.change(1, guarantee=250)
    m.change(0, guarantee=750)
    m.run(SECOND)
    _, executed = m.shares(10 * SECOND)
    assert executed[0] == pytest.approx(0.75, abs=0.01)


def test_one_held_lease_survives_a_restart_and_a_second_is_refused():
    out = ffi.new("gs_core **")
    settings = ffi.new("struct gs_arbiter_config *")
    lib.gs_arbiter_defaults(settings)
    assert lib.gs_core_create(out, settings, 0) == 0
    core = ffi.gc(out[0], lib.gs_core_destroy)
    share = ffi.new("struct gs_share *", {"guarantee_milli": 500, "limit_milli": 1000, "weight": 1})
    assert lib.gs_core_add(core, 3, share, 1, 0) == 1
    assert lib.gs_core_add(core, 4, share, 1, 0) == 0
    assert lib.gs_core_holder(core) == 3


def test_a_short_sleeper_is_served_promptly_beside_a_trainer():
    """Inference: 1 ms of work every 10 ms with a guarantee of 200 milli, next to a tenant that always has work."""
    m = machine({"guarantee": 200}, {"guarantee": 800})
    m.want(0, work=0)
    m.run(SECOND)
    m.waits.clear()
    for _ in range(100):
        m.want(0, work=MS)
        m.run(10 * MS)
    waits = sorted(wait for _, wait in m.waits)
    assert len(waits) == 100
    assert waits[98] <= OVERLAP_NS


def test_one_that_sleeps_after_its_work_hands_the_device_on_at_once():
    """1 ms of work every 10 ms, next to a tenant that always has work: the arbiter does not wait during its pauses."""
    m = machine({"guarantee": 200}, {"guarantee": 800})
    m.want(0, work=0)
    m.run(SECOND)

    def requests(count, work, pause):
        idle, start = m.device().idle_with_waiters_ns, m.now
        for _ in range(count):
            m.want(0, work=work)
            m.run(pause)
        return (m.device().idle_with_waiters_ns - idle) / (m.now - start)

    requests(5, MS, 10 * MS)
    assert requests(100, MS, 10 * MS) < 0.001
    # A holder that resumes soon keeps the device over the pause.
    requests(5, MS // 50, 3 * MS // 20)
    leases = m.stats(0).leases
    requests(100, MS // 50, 3 * MS // 20)
    assert m.stats(0).leases - leases < 10


def test_wakes_and_waits_are_counted_apart():
    m = machine({"guarantee": 500}, {"guarantee": 500})
    stats = m.stats(0)
    assert sum(stats.wake_to_lease) == 1  # one start, many waits after it
    assert stats.waits > 10
    assert stats.leases + m.stats(1).leases == m.device().leases
    assert any(action == WAKE for _, action, _, _, _ in m.decisions)
    assert any(action == HANDOVER for _, action, _, _, _ in m.decisions)
    assert any(action == CONTENDED for _, action, _, _, _ in m.decisions)


def test_more_grants_than_one_answer_holds_are_all_notified():
    m = Model()
    for number in range(100):
        m.add(number, guarantee=10)
    for number in range(100):
        m.want(number)
    m.run(MS)
    assert all(tenant.contended == 1 for tenant in m.tenants.values())
    m.run(2 * SECOND)
    assert {grant for _, grant in m.leases} == set(range(100))


def test_a_grant_that_comes_into_a_tier_starts_where_those_in_it_are():
    m = Model()
    m.add(0, tier=1)
    m.add(1)
    m.want(0)
    m.run(60 * SECOND)
    m.want(1)
    m.change(1, tier=1)
    assert m.shares(SECOND)[1] == pytest.approx({0: 0.5, 1: 0.5}, abs=0.03)


def test_what_was_borrowed_in_another_tier_delays_no_longer_than_a_tail():
    m = Model()
    for number in range(2):
        m.add(number, weight=1000, tier=1)
    m.change(0, weight=1, tier=0)
    m.want(0)
    m.run(60 * SECOND)
    m.want(0, 0)
    m.want(1)
    m.run(SECOND)
    m.change(0, weight=1000, tier=1)
    m.want(0)
    m.run(11 * SECOND)
    assert m.shares(SECOND)[1] == pytest.approx({0: 0.5, 1: 0.5}, abs=0.03)
