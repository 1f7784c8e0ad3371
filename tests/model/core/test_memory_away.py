"""A grant whose memory is away from the device gets no lease, loses the one it has, and does not wait for one."""

import pytest
from virtual_device import Model, machine
from virtual_node import MS, REVOKE, lib

SECOND = 1000 * MS


def revokes(m, grant):
    return [
        (when, receipt.rule)
        for (when, action, whose, *_), receipt in zip(m.decisions, m.receipts, strict=True)
        if (action, whose) == (REVOKE, grant)
    ]


@pytest.mark.parametrize("others", [0, 1, 3])
def test_it_loses_its_lease_at_once(others):
    m = machine({"guarantee": 400}, *({"guarantee": 100} for _ in range(others)))
    while not m.tenants[0].held:
        m.run(MS)
    m.tenants[0].away = 1
    gone = m.now
    m.run(MS)
    [(when, rule)] = [row for row in revokes(m, 0) if row[0] >= gone]
    assert when <= gone + MS
    assert rule == lib.GS_RULE_AWAY
    m.run(SECOND)
    assert not [when for when, grant in m.leases if grant == 0 and when > gone]


def test_others_have_the_device_meanwhile_and_it_waits_for_none():
    m = machine({"guarantee": 500}, {"guarantee": 250}, {"guarantee": 250})
    m.tenants[0].away = 1
    m.run(20 * MS)
    waited = m.stats(0).wait_ns
    _, executed = m.shares(2 * SECOND)
    assert executed[0] == 0
    assert executed[1] == pytest.approx(0.5, abs=0.02)
    assert m.stats(0).wait_ns == waited
    assert not m.stats(0).waiting
    assert m.stats(1).wait_ns > 0


def test_it_has_its_share_again_as_soon_as_it_is_back():
    m = machine({"guarantee": 500}, {"guarantee": 500})
    m.tenants[0].away = 1
    m.run(5 * SECOND)
    m.tenants[0].away = 0
    back = m.now
    m.run(100 * MS)
    assert any(grant == 0 and when < back + 30 * MS for when, grant in m.leases)
    m.run(SECOND)
    _, executed = m.shares(2 * SECOND)
    assert executed[0] == pytest.approx(0.5, abs=0.02)


def test_one_that_holds_together_with_others_leaves_them_theirs():
    m = Model()
    for number in range(3):
        m.add(number, guarantee=300, kernel=MS // 10, gap=MS // 2)
        m.want(number)
    m.run(3 * SECOND)
    m.tenants[1].away = 1
    gone = m.now
    m.run(2 * SECOND)
    assert [rule for when, rule in revokes(m, 1) if when >= gone] in ([], [lib.GS_RULE_AWAY])
    assert not m.tenants[1].held
    assert all(grant != 1 for when, grant in m.leases if when > gone)
    _, executed = m.shares(SECOND)
    assert executed[0] > 0.1
    assert executed[2] > 0.1


def test_a_lie_about_it_gains_nothing():
    """Whoever says that its memory is away, off and on, has no more of the device than without that."""
    m = machine({"guarantee": 500}, {"guarantee": 500})
    executed = {0: 0.0, 1: 0.0}
    for turn in range(200):
        m.tenants[0].away = turn % 2
        _, part = m.shares(25 * MS)
        executed = {n: executed[n] + part[n] / 200 for n in executed}
    assert executed[0] <= 0.51
    assert executed[1] >= 0.47
