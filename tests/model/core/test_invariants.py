"""Invariants of the core (work conservation, bounded waits, exact accounting) over random histories in virtual time."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from virtual_device import Model
from virtual_node import LEASE, MS, START

SECOND = 1000 * MS
BUCKET_NS, LEASE_NS, OVERLAP_NS = 200 * MS, 20 * MS, MS
RESERVE = 0.02


class Histories(RuleBasedStateMachine):
    """Tenants of one device that are added, removed, stopped, changed or idle."""

    def __init__(self):
        super().__init__()
        self.m = Model()
        self.wall = 0

    @precondition(lambda self: len(self.m.tenants) < 6)
    @rule(
        guarantee=st.integers(0, 160),
        limit=st.sampled_from([200, 500, 1000, 1000]),
        weight=st.integers(0, 3),
        tier=st.integers(-1, 1),
        depth=st.sampled_from([MS // 10, 2 * MS, 50 * MS]),
    )
    def add(self, **tenant):
        number = next(n for n in range(6) if n not in self.m.tenants)
        self.m.add(number, **tenant)

    @precondition(lambda self: self.m.tenants)
    @rule(data=st.data())
    def remove(self, data):
        self.m.remove(data.draw(st.sampled_from(sorted(self.m.tenants))))

    @precondition(lambda self: self.m.tenants)
    @rule(data=st.data(), work=st.sampled_from([None, None, 0, MS // 20, 3 * MS, 100 * MS]))
    def want(self, data, work):
        self.m.want(data.draw(st.sampled_from(sorted(self.m.tenants))), work)

    @precondition(lambda self: self.m.tenants)
    @rule(data=st.data(), stopped=st.booleans())
    def stop(self, data, stopped):
        self.m.stop(data.draw(st.sampled_from(sorted(self.m.tenants))), stopped)

    @precondition(lambda self: self.m.tenants)
    @rule(data=st.data(), guarantee=st.integers(0, 160), weight=st.integers(0, 3))
    def change(self, data, guarantee, weight):
        self.m.change(data.draw(st.sampled_from(sorted(self.m.tenants))), guarantee=guarantee, weight=weight)

    @rule(duration=st.sampled_from([MS // 20, MS, 7 * MS, 50 * MS, 400 * MS]))
    def run(self, duration):
        steps, leases = self.m.steps, self.m.device().leases
        self.m.run(duration)
        # No busy loops: the model itself needs one step per 50 us of queue at most.
        assert self.m.steps - steps < 100 + duration / MS * 40
        assert self.m.device().leases - leases < 10 + duration / MS * 6

    @invariant()
    def books_add_up_to_the_wall(self):
        device = self.m.device()
        assert device.leased_ns + device.idle_ns + device.switch_ns == device.wall_ns == self.m.now - START

    @invariant()
    def no_lease_lies_idle_beside_a_waiter_for_long(self):
        """I7: the device is never free while an eligible tenant waits; a revocation ends with the overlap."""
        holders = [t for t in self.m.tenants.values() if t.held]
        assert len(holders) <= 1
        if holders:
            return
        draining = self.m.now - self.m.devices[0].revoked < OVERLAP_NS
        waiting = [t for t in self.m.tenants.values() if t.waiting and t.limit == 1000 and not t.stopped]
        late = [t for t in waiting if t.queued > 0]
        assert draining or not waiting or late


class ManyHistories(Histories):
    """The same with more examples."""


def count(examples):
    return settings(
        max_examples=examples, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestHistories, TestManyHistories = Histories.TestCase, pytest.mark.slow(ManyHistories.TestCase)
TestHistories.settings, TestManyHistories.settings = count(40), count(150)


@st.composite
def mixes(draw):
    """Draws 2-5 tenants whose guarantees fit; the first always has work, the others come and go."""
    n = draw(st.integers(2, 5))
    cuts = sorted(draw(st.lists(st.integers(5, 995), min_size=n, max_size=n, unique=True)))
    guarantees = [b - a for a, b in zip([0, *cuts], cuts, strict=False)]
    guarantees[0] = max(5, guarantees[0])
    return [
        {"guarantee": g, "weight": draw(st.integers(0, 3)), "tier": draw(st.integers(0, 1))} for g in guarantees
    ], draw(st.lists(st.tuples(st.integers(1, n - 1), st.integers(1, 300), st.integers(0, 400)), max_size=25))


@pytest.mark.parametrize("examples", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_continuous_demand_gets_its_guarantee_over_every_window(examples):
    """I8: over any window T >= W at least g (1 - h) (T - W) - (lease + longest kernel + switch)."""
    count(examples)(given(mixes())(check_every_window))()


def check_every_window(mix):
    tenants, events = mix
    m = Model()
    for number, tenant in enumerate(tenants):
        m.add(number, **tenant)
    m.want(0)
    marks = [(m.now, m.tenants[0].executed)]

    def run(duration):
        for _ in range(0, duration, 25 * MS):
            m.run(25 * MS)
            marks.append((m.now, m.tenants[0].executed))

    for number, pause, work in events:
        m.want(number, work * MS or None)
        run(pause * MS)
    run(SECOND)
    guarantee = tenants[0]["guarantee"] / 1000
    slack = LEASE_NS + 2 * MS + OVERLAP_NS
    for i, (start, had) in enumerate(marks):
        for end, has in marks[i + 1 :]:
            window = end - start
            if window >= BUCKET_NS:
                assert has - had >= guarantee * (1 - RESERVE) * (window - BUCKET_NS) - slack


@pytest.mark.parametrize("examples", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_a_waking_owner_waits_at_most_a_lease_for_each_other(examples):
    """I8: from waking below the guarantee to the first lease: at most one lease of each other tenant, and the
    overlap."""
    count(examples)(given(mixes())(check_wait))()


def check_wait(mix):
    tenants, events = mix
    m = Model()
    for number, tenant in enumerate(tenants):
        m.add(number, **tenant)
    for number in range(1, len(tenants)):
        m.want(number)
    m.run(SECOND)
    for number, pause, work in events:
        m.want(number, work * MS or None)
        m.run(pause * MS)
    m.run(SECOND)  # fills the owner's bucket
    m.waits.clear()
    m.want(0)
    m.run(SECOND)
    waits = [wait for number, wait in m.waits if number == 0]
    assert waits
    assert waits[0] <= (len(tenants) - 1) * LEASE_NS + OVERLAP_NS


@pytest.mark.parametrize("seed", range(3))
def test_nobody_with_a_weight_starves_within_its_tier(seed):
    m = Model()
    for number in range(5):
        m.add(number, guarantee=[0, 0, 100, 300, 0][number], weight=1 + (number * seed) % 3)
        m.want(number)
    m.run(2 * SECOND)
    last = dict.fromkeys(range(5), START)
    worst = dict.fromkeys(range(5), 0)
    for time, action, grant, _, _ in m.decisions:
        if action == LEASE:
            worst[grant] = max(worst[grant], time - last[grant])
            last[grant] = time
    assert max(worst.values()) < SECOND
