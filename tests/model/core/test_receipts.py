"""The core's receipts for each wait and each revoked lease, in virtual time: duration, reason, numbers."""

import pytest
from virtual_device import Model
from virtual_node import DRAINED, HANDOVER, LEASE, LEFT, MS, REVOKE, ffi, lib

SECOND = 1000 * MS
RULES = {getattr(lib, name): name.removeprefix("GS_RULE_").lower() for name in dir(lib) if name.startswith("GS_RULE_")}


def receipts(m, *actions):
    """Returns (when, action, grant, other, receipt) of each decision with one of these actions."""
    found = zip(m.decisions, m.receipts, strict=True)
    return [(*decision[:4], receipt) for decision, receipt in found if decision[1] in actions]


def rules(m, action, grant=None):
    return {RULES[receipt.rule] for _, _, g, _, receipt in receipts(m, action) if grant in (None, g)}


def waits(m):
    """Returns (grant, from, to) of each wait by the model's clock, if threads wait as soon as they lose the lease."""
    since, found = {}, []
    for when, action, grant, *_ in m.decisions:
        if action == REVOKE:
            since[grant] = when
        elif action == LEASE and grant in since:
            found.append((grant, since.pop(grant), when))
    return found


@pytest.fixture
def busy():
    """Two tenants that always have work."""
    m = Model()
    for number, milli in enumerate((250, 750)):
        m.add(number, guarantee=milli)
        m.want(number)
    m.run(10 * SECOND)
    return m


def test_every_lease_shows_how_long_was_waited_for_it(busy):
    waited_for = {(grant, when): receipt.wait_ns for when, _, grant, _, receipt in receipts(busy, LEASE)}
    own = waits(busy)
    assert len(own) > 200
    for grant, begin, end in own:
        assert waited_for[grant, end] == end - begin
    assert len(waited_for) - len(own) <= 2, "their first leases"
    for grant in (0, 1):
        spans = busy.stats(grant).waited
        assert spans.n == sum(spans.bucket) == sum(g == grant for g, _ in waited_for)
        assert spans.total_ns == sum(waited for (g, _), waited in waited_for.items() if g == grant)
        assert spans.max_ns == max(waited for (g, _), waited in waited_for.items() if g == grant)


def test_every_lease_that_is_taken_in_mid_work_shows_when_its_work_was_done(busy):
    taken = {
        (g, when): other for when, _, g, other, r in receipts(busy, REVOKE) if RULES[r.rule] not in {"idle", "gone"}
    }
    done = [(grant, when - r.reclaim_ns, other) for when, _, grant, other, r in receipts(busy, DRAINED)]
    assert 0 <= len(taken) - len(done) <= 1, "but for one that drains right now"
    assert all(taken[grant, since] == other for grant, since, other in done)
    for grant in (0, 1):
        spans = busy.stats(grant).reclaimed
        assert spans.n == sum(g == grant for g, _, _ in done)
        assert spans.total_ns == sum(r.reclaim_ns for _, _, g, _, r in receipts(busy, DRAINED) if g == grant)


def test_a_lease_names_who_was_waited_for_and_the_numbers_behind_it(busy):
    late = [row for row in receipts(busy, LEASE, REVOKE) if row[0] > 3 * SECOND]
    for _, action, grant, other, r in late:
        whose = grant if action == LEASE else other
        assert action == LEASE or other == 1 - grant
        assert r.guarantee_milli == (250, 750)[whose]
        assert r.had_milli == pytest.approx((250, 750)[whose], abs=60)
    handed = {(next_, when): r.reclaim_ns for when, _, _, next_, r in receipts(busy, HANDOVER)}
    assert handed
    for when, _, grant, _, r in receipts(busy, LEASE):
        assert r.reclaim_ns == handed.get((grant, when), 0) <= max(r.wait_ns, r.reclaim_ns)


def test_a_wake_differs_from_other_waits():
    m = Model()
    m.add(0, guarantee=750)
    m.add(1, guarantee=250)
    m.want(1)
    m.run(SECOND)
    for _ in range(5):
        m.want(0, 3 * MS)
        m.run(100 * MS)
    woke = [(r.flags & lib.GS_RECEIPT_WOKE, r.wait_ns) for _, _, g, _, r in receipts(m, LEASE) if g == 0]
    assert woke == [(lib.GS_RECEIPT_WOKE, waited) for grant, waited in m.waits if grant == 0]
    assert m.stats(0).wake_to_lease_ns == sum(waited for _, waited in woke)
    assert rules(m, REVOKE, 1) == {"wake"}
    taken = [r for _, _, g, _, r in receipts(m, REVOKE) if g == 1]
    assert all(r.guarantee_milli == 750 and r.had_milli < 100 for r in taken)


def test_the_end_of_a_term_a_tier_and_a_limit_are_distinct():
    m = Model()
    m.add(0, tier=0)
    m.add(1, tier=0)
    m.add(2, tier=1, limit=300)
    for number in (0, 1):
        m.want(number)
    m.run(SECOND)
    assert rules(m, REVOKE) == {"term"}
    m.want(2)
    m.run(2 * SECOND)
    assert rules(m, REVOKE, 2) == {"limit"}
    assert "tier" in rules(m, REVOKE, 0) | rules(m, REVOKE, 1)
    assert "limit" in rules(m, LEASE, 2), "it waited for its own limit, not for others"
    levels = {r.level for *_, r in receipts(m, LEASE)}
    assert levels == {lib.GS_LEVEL_SURPLUS}


def test_a_guarantee_that_was_lent_is_taken_back_with_its_reason():
    m = Model()
    m.add(0, guarantee=100)
    m.add(1)
    for number in (0, 1):
        m.want(number)
    m.run(5 * SECOND)
    back = [r for _, _, g, other, r in receipts(m, REVOKE) if (g, other) == (1, 0)]
    assert {RULES[r.rule] for r in back} >= {"guarantee"}
    assert all(r.guarantee_milli == 100 and r.level == lib.GS_LEVEL_SURPLUS for r in back)


def test_one_of_several_that_hold_together_has_its_receipts_too():
    m = Model()
    for number in range(3):
        m.add(number, guarantee=300, kernel=MS // 10, gap=MS // 2)
        m.want(number)
    m.run(3 * SECOND)
    m.change(2, guarantee=50, limit=100)
    begin = m.now
    m.run(2 * SECOND)
    together = [row for row in receipts(m, REVOKE, DRAINED) if row[0] > begin and row[2] == 2]
    limited = [when for when, action, *_, r in together if (action, RULES[r.rule]) == (REVOKE, "limit")]
    assert len(limited) > 5, "the others go on"
    done = [when - r.reclaim_ns for when, action, *_, r in together if action == DRAINED]
    assert done in (limited, limited[:-1])
    assert max(r.reclaim_ns for *_, r in receipts(m, DRAINED)) < 3 * MS
    assert "room" in rules(m, LEASE)


def test_a_wait_that_ends_without_a_lease_has_its_receipt():
    m = Model()
    m.add(0, guarantee=500)
    m.add(1)
    m.want(0)
    m.run(50 * MS)
    m.want(1)
    began = m.now
    m.run(2 * MS)
    m.want(1, 0)
    [(when, _, grant, _, r)] = receipts(m, LEFT)
    assert (when, grant, r.wait_ns) == (m.now, 1, m.now - began)
    assert m.stats(1).waited.n == 1


def test_a_grant_that_ends_leaves_nothing_open():
    m = Model()
    for number in (0, 1):
        m.add(number, guarantee=500)
        m.want(number)
    m.run(SECOND + 7 * MS)
    out = ffi.new("struct gs_core_decision[3]")
    decided = {}
    for number in (0, 1):
        n = lib.gs_core_close(m.core, number, m.now, out)
        decided[number] = [(d.action, RULES[d.receipt.rule]) for d in out[0:n]]
    holder = 0 if m.tenants[0].held else 1
    assert decided[holder] == [(REVOKE, "ended")]
    assert decided[1 - holder][0][0] == LEFT
