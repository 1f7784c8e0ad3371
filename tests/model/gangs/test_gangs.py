"""Gangs in virtual time: leases on all devices or on none, shares, the effect on other grants, restarts."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from virtual_node import AGAIN, BESIDE, LEASE, MS, REVOKE, START, Node, lib

SECOND = 1000 * MS
OVERLAP_NS, LEASE_NS = MS, 20 * MS


def node(*grants, devices=2, warm=SECOND):
    """Returns a node whose grants (places, settings) have endless work, after the start phase."""
    n = Node(devices)
    for number, (places, settings_) in enumerate(grants):
        n.add(number, places, **settings_)
    for number in range(len(grants)):
        n.want(number)
    n.run(warm)
    return n


def grant(*places, **settings_):
    return places, settings_


def changes(n, number):
    """Returns (time, action) of a grant's leases, one entry for all its devices."""
    return sorted({(t, action) for t, _, action, g, _ in n.trace if g == number and action in (LEASE, AGAIN, REVOKE)})


def longest_wait(n, number, start):
    """Returns the longest time from the end of a lease to the next lease."""
    worst, since = 0, start
    for t, action in changes(n, number):
        if action == REVOKE:
            since = max(t, start)
        elif t >= start:
            worst = max(worst, t - since)
    return worst


@pytest.mark.parametrize("guarantees", [(500, 500), (250, 750), (100, 900), (340, 330, 330)], ids=str)
def test_gangs_on_the_same_devices_split_them_by_guarantees(guarantees):
    n = node(*(grant(0, 1, guarantee=milli) for milli in guarantees))
    executed, idle = n.shares(10 * SECOND)
    for number, milli in enumerate(guarantees):
        assert executed[number] == [pytest.approx(milli / 1000, abs=0.01)] * 2
    assert max(idle) <= 0.005


@pytest.mark.parametrize(
    "grants",
    [
        [grant(0, 1, guarantee=500), grant(0, guarantee=500), grant(1, guarantee=500)],
        [grant(0, 1, guarantee=250), grant(0, guarantee=750), grant(1, guarantee=350), grant(1, guarantee=400)],
        [grant(0, 1, guarantee=100), grant(0, guarantee=900), *(grant(1, guarantee=300) for _ in range(3))],
        [grant(0, 1, guarantee=700), *(grant(0, guarantee=100) for _ in range(3)), grant(1, guarantee=300)],
        [grant(0, 1, guarantee=400), grant(0, 1, guarantee=300), grant(0, guarantee=300), grant(1, guarantee=300)],
    ],
    ids=lambda grants: " ".join(f"{''.join(map(str, places))}:{kw['guarantee']}" for places, kw in grants),
)
def test_a_gang_beside_grants_of_one_device_leaves_everybody_its_guarantee(grants):
    n = node(*grants)
    executed, idle = n.shares(10 * SECOND)
    for number, (_, settings_) in enumerate(grants):
        for part in executed[number]:
            assert part == pytest.approx(settings_["guarantee"] / 1000, abs=0.01)
    assert max(idle) <= 0.005


def test_gangs_that_overlap_in_part_take_turns():
    n = node(*(grant(*places, guarantee=300) for places in ((0, 1), (1, 2), (0, 2))), devices=3)
    start = n.now
    executed, idle = n.shares(10 * SECOND)
    for parts in executed.values():
        assert parts == [pytest.approx(1 / 3, abs=0.02)] * 2  # only one of them fits at a time
    assert max(longest_wait(n, number, start) for number in range(3)) <= 5 * LEASE_NS
    assert max(idle) <= 0.005


def test_what_overlapping_gangs_leave_goes_to_grants_of_one_device():
    pairs = ((0, 1), (1, 2), (0, 2))
    gangs = [grant(*places, guarantee=250) for places in pairs]
    n = node(*gangs, *(grant(place, guarantee=300) for place in range(3)), devices=3)
    executed, _ = n.shares(10 * SECOND)
    for number in range(3):
        assert min(executed[number]) >= 0.24
        assert executed[3 + number][0] >= 0.3
    for place in range(3):  # no device time is lost while gangs wait for both devices
        both = sum(executed[g][places.index(place)] for g, places in enumerate(pairs) if place in places)
        assert both + executed[3 + place][0] >= 0.99


@pytest.mark.parametrize("guarantee", [0, 20])
def test_a_gang_of_a_small_share_is_not_starved_by_those_whose_turns_never_meet(guarantee):
    n = node(
        grant(0, 1, guarantee=guarantee),
        grant(0, guarantee=900),
        *(grant(1, guarantee=300) for _ in range(3)),
    )
    start = n.now
    executed, _ = n.shares(20 * SECOND)
    assert min(executed[0]) >= max(0.01, guarantee / 1000 - 0.005)
    assert longest_wait(n, 0, start) <= 2 * SECOND
    assert executed[1][0] >= 0.89


def test_a_waking_gang_takes_what_is_on_loan_at_once_and_everywhere():
    n = node(grant(0, 1, guarantee=600), grant(0, guarantee=200), grant(1, guarantee=200))
    n.want(0, work=0)
    n.run(SECOND)
    assert not n.held(0)
    for device in n.devices:
        device.waits.clear()
    n.want(0)
    n.run(50 * MS)
    for device in n.devices:
        number, waited = next(wait for wait in device.waits if wait[0] == 0)
        assert (number, waited <= OVERLAP_NS) == (0, True)


def test_while_a_gang_waits_for_one_device_the_other_is_used():
    """Another grant uses device 0 for most of the time: the time that the gang leaves on device 1 goes to its
    neighbour."""
    n = node(grant(0, 1, guarantee=200), grant(0, guarantee=800), grant(1, guarantee=100))
    executed, idle = n.shares(10 * SECOND)
    assert executed[0][1] == pytest.approx(0.2, abs=0.01)
    assert executed[2][0] == pytest.approx(0.8, abs=0.01)
    assert max(idle) <= 0.005


def test_the_device_of_a_rank_that_sleeps_is_lent_until_it_wakes():
    n = node(grant(0, 1, guarantee=500), grant(0, guarantee=500), grant(1, guarantee=500))
    n.want(0, work=0, only=1)
    n.run(SECOND)
    executed, idle = n.shares(5 * SECOND)
    assert executed[0] == [pytest.approx(0.5, abs=0.03), 0]
    assert executed[2][0] >= 0.98
    assert max(idle) <= 0.012  # a lease counts as unused after 0.2 ms
    while not n.held(0):
        n.run(MS)
    n.run(2 * MS)
    assert n.devices[1].tenants[2].held
    revokes = [t for t, action in changes(n, 0) if action == REVOKE]
    n.want(0, only=1)  # in the middle of a lease, without a bell, as it holds its lease
    n.run(2 * MS)
    assert not n.devices[1].tenants[2].held
    assert [t for t, action in changes(n, 0) if action == REVOKE] == revokes
    executed, _ = n.shares(5 * SECOND)
    assert executed[0] == [pytest.approx(0.5, abs=0.02)] * 2


def test_a_gang_that_is_idle_on_all_devices_hands_them_on():
    n = node(grant(0, 1, guarantee=500), grant(0, guarantee=250), grant(1, guarantee=250))
    while not n.held(0):
        n.run(MS)
    n.want(0, work=0)
    n.run(5 * MS)
    executed, _ = n.shares(100 * MS)
    assert not n.held(0)
    assert executed[1][0] >= 0.99
    assert executed[2][0] >= 0.99


def test_a_stopped_gang_costs_others_little():
    n = node(grant(0, 1, guarantee=500), grant(0, guarantee=500), grant(1, guarantee=500))
    while n.held(0):
        n.run(MS)
    n.stop(0)
    n.run(SECOND)
    executed, _ = n.shares(5 * SECOND)
    assert min(executed[1][0], executed[2][0]) >= 0.9
    n.stop(0, stopped=False)
    n.run(SECOND)
    executed, _ = n.shares(5 * SECOND)
    assert executed[0] == [pytest.approx(0.5, abs=0.03)] * 2


def test_a_gang_that_does_not_drain_runs_beside_its_successors_for_one_term():
    n = node(grant(0, 1, guarantee=500), grant(0, guarantee=500), grant(1, guarantee=500))
    while not n.held(0):
        n.run(MS)
    n.devices[0].tenants[0].queued = 60 * MS  # like a kernel that spins for one that the other rank has not submitted
    n.stop(0, only=0)
    start = n.now
    n.run(100 * MS)
    seen = [(t, action) for t, action in changes(n, 0) if t > start]
    assert [action for _, action in seen[:3]] == [REVOKE, AGAIN, REVOKE]
    revoked, again, over = (t for t, _ in seen[:3])
    assert again - revoked == pytest.approx(5 * MS, abs=MS // 10)
    assert over - again == pytest.approx(LEASE_NS, abs=MS // 10)
    held = {(t, place) for t, place, action, g, _ in n.trace if action == AGAIN and g == 0}
    assert held == {(again, 0), (again, 1)}
    # other grants keep their leases meanwhile
    assert not any(t == again and action == REVOKE for t, _, action, g, _ in n.trace if g)


@pytest.mark.parametrize(("kernel", "spins"), [(40 * MS, 0), (150 * MS, 1), (40 * MS, 1)])
def test_what_a_gang_runs_beside_others_is_paid_by_its_guarantee(kernel, spins):
    gang = grant(0, 1, guarantee=250, kernel=kernel, gap=1000, says_spins=spins)
    executed, _ = node(gang, grant(0, guarantee=750), grant(1, guarantee=750)).shares(20 * SECOND)
    assert executed[1][0] >= 0.74 <= executed[2][0]


def test_a_gang_that_leaves_its_devices_idle_shares_them_as_others_do():
    lean = {"kernel": MS // 20, "gap": MS // 10}
    n = node(grant(0, 1, guarantee=300, **lean), grant(0, guarantee=300, **lean), grant(1, guarantee=300, **lean))
    n.run(2 * SECOND)
    assert n.held(0)
    assert n.held(1)
    assert n.held(2)
    leases = sum(device.books().leases for device in n.devices)
    n.run(SECOND)
    assert sum(device.books().leases for device in n.devices) <= leases + 4


@pytest.mark.parametrize("beside", [200, 300])
def test_a_grant_with_peers_elsewhere_is_never_alone_and_never_waited_for(beside):
    n = Node(1)
    n.add(0, [0], guarantee=1000 - beside)
    n.add(1, [0], guarantee=beside, flags=BESIDE)
    for number in (0, 1):
        n.want(number)
    n.run(SECOND)
    revokes = [t for t, _, action, g, other in n.trace if action == REVOKE and g == 0]
    executed, idle = n.shares(10 * SECOND)
    assert executed[1][0] == pytest.approx(beside / 1000, abs=0.02)
    assert executed[0][0] == pytest.approx(1 - beside / 1000, abs=0.02)
    assert idle == [0]
    assert [t for t, _, action, g, other in n.trace if action == REVOKE and g == 0] == revokes
    # once awake, it does not wait for the end of another grant's term
    n.want(1, work=0)
    n.run(SECOND)
    n.devices[0].waits.clear()
    n.want(1, work=5 * MS)
    n.run(MS)
    assert n.devices[0].waits == [(1, 0)]


def test_a_grant_beside_borrows_what_nobody_wants():
    n = Node(1)
    n.add(0, [0], guarantee=700)
    n.add(1, [0], guarantee=200, limit=600, flags=BESIDE)
    n.want(1)
    n.run(SECOND)
    executed, _ = n.shares(5 * SECOND)
    assert executed[1][0] == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "half"])
def test_leases_from_before_a_restart_are_kept_or_taken_back_together(whole):
    n = Node(2)
    if not whole:
        assert n.add(1, [1], guarantee=500, held=True)
    assert n.add(0, [0, 1], guarantee=500, held=True) == whole
    assert n.held(0) == whole
    for core in (device.core for device in n.devices):
        assert bool(lib.gs_core_holds(core, 0)) == whole
    for number in n.places:
        n.want(number)
    n.run(SECOND)
    executed, _ = n.shares(2 * SECOND)
    assert min(executed[0]) >= 0.48


@pytest.mark.parametrize("moment", ["held", "called", "waiting"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_one_that_is_removed_at_any_moment_leaves_the_devices_to_the_others(moment, victim):
    n = node(
        grant(0, 1, guarantee=300, depth=20 * MS),
        grant(0, 1, guarantee=300, depth=20 * MS),
        grant(0, guarantee=400, depth=20 * MS),
    )
    if moment == "called":  # between the revocation of the others and the lease
        called = False
        while not called or n.held(0) or n.held(1):
            count = len(n.trace)
            n.run(MS // 20)
            called = any(action == REVOKE and other in (0, 1) for _, _, action, _, other in n.trace[count:])
    else:
        while n.held(victim) != (moment == "held"):
            n.run(MS // 10)
    n.remove(victim)
    n.run(SECOND)
    executed, idle = n.shares(2 * SECOND)
    assert set(executed) == {0, 1, 2} - {victim}
    for number in executed:
        assert min(executed[number]) >= 0.29
    assert max(idle) <= 0.005


def test_a_killed_gang_leaves_its_devices_to_others():
    n = node(grant(0, 1, guarantee=500), grant(0, guarantee=500), grant(1, guarantee=500))
    while not n.held(0):
        n.run(MS)
    n.kill(0)
    n.run(5 * MS)
    assert not n.held(0)
    executed, _ = n.shares(SECOND)
    assert min(executed[1][0], executed[2][0]) >= 0.99


class Histories(RuleBasedStateMachine):
    """Gangs, grants of one device and grants that share leases start, end, sleep, stop and die on three devices. The
    node checks after each decision that a gang has all of its devices or none."""

    def __init__(self):
        super().__init__()
        self.n = Node(3)

    @precondition(lambda self: len(self.n.places) < 6)
    @rule(
        places=st.sampled_from([(0, 1), (1, 2), (0, 2), (0, 1, 2), (0,), (1,), (2,)]),
        beside=st.sampled_from([False, False, False, True]),
        guarantee=st.integers(0, 160),
        limit=st.sampled_from([200, 500, 1000, 1000]),
        weight=st.integers(0, 3),
        depth=st.sampled_from([MS // 10, 2 * MS, 50 * MS]),
        gap=st.sampled_from([0, 0, MS // 10]),
        held=st.booleans(),
    )
    def add(self, places, beside, held, **tenant):
        number = next(n for n in range(6) if n not in self.n.places)
        self.n.add(number, places, held=held, flags=BESIDE if beside else None, **tenant)

    @precondition(lambda self: self.n.places)
    @rule(data=st.data())
    def remove(self, data):
        self.n.remove(data.draw(st.sampled_from(sorted(self.n.places))))

    @precondition(lambda self: self.n.places)
    @rule(data=st.data())
    def kill(self, data):
        self.n.kill(data.draw(st.sampled_from(sorted(self.n.places))))

    @precondition(lambda self: self.n.places)
    @rule(data=st.data(), work=st.sampled_from([None, None, 0, MS // 20, 3 * MS, 100 * MS]), one=st.booleans())
    def want(self, data, work, one):
        number = data.draw(st.sampled_from(sorted(self.n.places)))
        self.n.want(number, work, only=self.n.places[number][-1] if one else None)

    @precondition(lambda self: self.n.places)
    @rule(data=st.data(), stopped=st.booleans(), one=st.booleans())
    def stop(self, data, stopped, one):
        number = data.draw(st.sampled_from(sorted(self.n.places)))
        self.n.stop(number, stopped, only=self.n.places[number][0] if one else None)

    @rule(duration=st.sampled_from([MS // 20, MS, 7 * MS, 50 * MS, 400 * MS]))
    def run(self, duration):
        steps = self.n.steps
        self.n.run(duration)
        assert self.n.steps - steps < 300 + duration / MS * 200

    @invariant()
    def books_add_up_to_the_wall(self):
        for device in self.n.devices:
            books = device.books()
            assert books.leased_ns + books.idle_ns + books.switch_ns == books.wall_ns == self.n.now - START

    @invariant()
    def no_device_lies_idle_beside_one_that_could_use_it_alone(self):
        for device in self.n.devices:
            if any(t.held for t in device.tenants.values()):
                continue
            # It is kept for a gang that waits for what is still at work on another of its devices.
            coming = [number for number, t in device.tenants.items() if t.waiting and number in self.n.gangs]
            places = {device.place, *(place for number in coming for place in self.n.gangs[number])}
            if any(self.n.now - self.n.devices[place].revoked < 2 * OVERLAP_NS for place in places):
                continue
            for number, t in device.tenants.items():
                fit = t.waiting and t.live and t.limit == 1000 and not t.stopped and t.queued == 0
                assert number in self.n.gangs or not fit

    def teardown(self):
        """Every waiting grant is served in the end."""
        for number in self.n.places:
            for place in self.n.places[number]:
                tenant = self.n.devices[place].tenants[number]
                tenant.live, tenant.depth, tenant.gap = 1, 2 * MS, 0
            self.n.stop(number, stopped=False)
            self.n.want(number)
        start = {number: sum(self.n.executed(number)) for number in self.n.places}
        self.n.run(8 * SECOND)
        for number, places in self.n.places.items():
            tenant = self.n.devices[places[0]].tenants[number]
            if tenant.weight or tenant.guarantee >= 20:
                assert sum(self.n.executed(number)) > start[number], f"{number} starves"


class ManyHistories(Histories):
    """The same with more examples."""


def count(examples):
    return settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestHistories = Histories.TestCase
TestManyHistories = pytest.mark.timeout(300)(pytest.mark.slow(ManyHistories.TestCase))
TestHistories.settings, TestManyHistories.settings = count(15), count(40)
