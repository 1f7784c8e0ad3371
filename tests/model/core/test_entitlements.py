"""Over many seconds, the core gives tenants what the policy entitles them to, with the shares that the daemon would
assign to their grants."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from virtual_device import Model
from virtual_node import MS

from gpushare.policy.quota import tree
from gpushare.policy.quota.capacity import shrink
from gpushare.policy.quota.entitlement import TenantState, entitle
from gpushare.policy.quota.shares import DEVICE_MILLI, Placed, shares
from gpushare.policy.quota.tenant import TenantPolicy

SECOND = 1000 * MS
SETTLING, SPAN = 2 * SECOND, 20 * SECOND
POINT = 10  # milli
DEVICE = "d0"


@dataclass(frozen=True)
class Want:
    """A grant that demands `demand` milli, as one request every `period`. A demand of the whole device means endless
    work."""

    demand: int = DEVICE_MILLI
    time: int = 100
    guaranteed: int = 0
    limit: int = DEVICE_MILLI
    period: int = 200 * MS


@dataclass(frozen=True)
class Case:
    """A tenant and the demands of its grants; by default, one grant with the tenant's whole guarantee. `parent`: number
    of the case out of whose guarantee this one's comes."""

    guarantee: int = 0
    weight: int = 1
    tier: int = 0
    limit: int | None = None
    demand: int = DEVICE_MILLI
    period: int = 200 * MS
    grants: tuple[Want, ...] = ()
    parent: int | None = None

    def wants(self, given: int = 0):
        own = self.guarantee - given
        return self.grants or (Want(self.demand, own or 100, own, period=self.period),)


def below(cases, number):
    """Returns the sum of the guarantees of a tenant's children."""
    return sum(case.guarantee for case in cases if case.parent == number)


def entitled(cases):
    states = [
        TenantState(
            name=str(number),
            guarantee=case.guarantee,
            demand=sum(min(want.demand, want.limit) for want in case.wants()),
            weight=case.weight,
            tier=case.tier,
            limit=case.limit,
            parent=None if case.parent is None else str(case.parent),
        )
        for number, case in enumerate(cases)
    ]
    result = tree.entitle(DEVICE_MILLI, states)
    assert not result.degraded
    below = [sum(result.milli[child.name] for child in states if child.parent == state.name) for state in states]
    return [result.milli[state.name] - others for state, others in zip(states, below, strict=True)]


def run(m, requests, duration):
    """`requests`: for each grant without endless work, its period and its work per period."""
    end = m.now + duration
    due = dict.fromkeys(requests, m.now)
    while m.now < end:
        for number, (period, work) in requests.items():
            if due[number] <= m.now:
                m.want(number, (m.tenants[number].work or 0) + work)
                due[number] += period
        m.run(min([end, *due.values()]) - m.now)


def served(cases):
    """Returns the milli that each tenant executes, and the milli that it is charged."""
    policies = {
        str(number): TenantPolicy(
            str(number),
            case.guarantee - below(cases, number),
            case.weight,
            case.tier,
            case.limit,
            None if case.parent is None else str(case.parent),
        )
        for number, case in enumerate(cases)
    }
    owners = [(number, want) for number, case in enumerate(cases) for want in case.wants(below(cases, number))]
    placed = [
        Placed(str(grant), str(number), DEVICE, want.time, want.guaranteed, want.limit)
        for grant, (number, want) in enumerate(owners)
    ]
    served_with = shares(policies, placed, {str(grant) for grant, (_, want) in enumerate(owners) if want.demand})
    m = Model()
    requests = {}
    for grant, (_, want) in enumerate(owners):
        share = served_with[str(grant), DEVICE]
        m.add(grant, guarantee=share.guarantee_milli, limit=share.limit_milli, weight=share.weight, tier=share.tier)
        if 0 < want.demand < DEVICE_MILLI:
            requests[grant] = (want.period, want.period * want.demand / 1000)
    for grant, (_, want) in enumerate(owners):
        if want.demand >= DEVICE_MILLI:
            m.want(grant)
    run(m, requests, SETTLING)
    charged = {grant: m.stats(grant).leased_ns for grant in m.tenants}
    executed = {grant: tenant.executed for grant, tenant in m.tenants.items()}
    run(m, requests, SPAN)
    did, paid = [0.0] * len(cases), [0.0] * len(cases)
    for grant, (number, _) in enumerate(owners):
        did[number] += 1000 * (m.tenants[grant].executed - executed[grant]) / SPAN
        paid[number] += 1000 * (m.stats(grant).leased_ns - charged[grant]) / SPAN
    return did, paid


def check(*cases, within=POINT):
    want = entitled(cases)
    did, paid = served(cases)
    assert did == pytest.approx(want, abs=within)
    assert paid == pytest.approx(want, abs=within)


HUNGRY = {
    "guarantees that fill the device": [Case(250), Case(340), Case(5), Case(405)],
    "surplus to a higher tier first": [Case(100, tier=1), Case(300), Case(0)],
    "surplus by weight beside guarantees": [Case(100, weight=3), Case(300, weight=1), Case(0, weight=2)],
    "weights within each tier": [Case(0, tier=1, limit=300), Case(100, weight=2), Case(100), Case(0)],
    "weights far apart": [Case(300, weight=1000), Case(0, weight=10), Case(200, weight=100)],
    "scavengers have what is left, equally": [Case(200, weight=0), Case(weight=0), Case(100, limit=500)],
    "scavengers have nothing while others want all": [Case(200, weight=0), Case(weight=0, tier=5), Case(100)],
    "what a limit leaves goes to others by weight": [
        Case(100, limit=200),
        Case(300, limit=350),
        Case(),
        Case(weight=2),
    ],
    "limits alone leave the device idle": [Case(100, limit=200), Case(300, limit=350)],
    "a limit below guarantees' turns": [Case(429), Case(185), Case(185), Case(58), Case(31, tier=2, limit=143)],
    "the rest of a high limit, with a limit": [Case(tier=1, limit=950), Case(limit=50), Case(weight=0)],
    "the rest of a high limit, and nobody else": [Case(tier=1, limit=950), Case(limit=50)],
}


@pytest.mark.parametrize("cases", HUNGRY.values(), ids=HUNGRY.keys())
def test_who_wants_all_gets_what_it_is_entitled_to(cases):
    check(*cases)


PARTLY = {
    "a guarantee partly used": [Case(500, demand=100), Case(100, weight=3), Case()],
    "a guarantee not used": [Case(500, demand=0), Case(100), Case(300)],
    "surplus partly used": [Case(demand=300), Case(), Case()],
    "beyond its guarantee": [Case(200, demand=400), Case(), Case(300)],
    "a higher tier": [Case(demand=400, tier=1), Case(200), Case(300)],
    "a scavenger": [Case(demand=100, weight=0), Case(weight=0), Case(300, limit=600)],
    "seldom and much": [Case(300, demand=250, period=700 * MS), Case(), Case(400)],
    "often and little": [Case(300, demand=250, period=30 * MS), Case(), Case(400)],
}


@pytest.mark.parametrize("cases", PARTLY.values(), ids=PARTLY.keys())
def test_what_one_does_not_want_goes_to_others_as_they_are_entitled_to_it(cases):
    check(*cases)


def two(guarantee, *, reserved=True, **more):
    """A tenant with two grants of half its guarantee each, one of them idle."""
    half = Want(time=guarantee // 2, guaranteed=guarantee // 2 if reserved else 0)
    idle = Want(demand=0, time=half.time, guaranteed=half.guaranteed)
    return Case(guarantee, grants=(half, idle), **more)


WITHIN = {
    "to the same tenant's": [two(400), Case(600)],
    "not to a higher tier": [two(400), Case(200, tier=3)],
    "nor more than that": [two(400), Case(200), Case(100, weight=3)],
    "what the highest tier leaves is the others'": [two(170), Case(150), Case(80, tier=1, limit=540)],
    "a scavenger has no more than its own": [two(26, weight=0), Case(weight=2), Case(270, weight=0, tier=1)],
    "its own for a scavenger beside a full device": [two(200, weight=0), Case(700)],
    "a limit of the tenant": [two(200, limit=300), Case(100), Case(300, limit=400)],
    "nobody reserved it": [two(400, reserved=False), Case(200, tier=3), Case()],
}


@pytest.mark.parametrize("cases", WITHIN.values(), ids=WITHIN.keys())
def test_what_an_idle_grant_leaves_stays_its_tenants_own(cases):
    check(*cases)


IDLE = Case(demand=0)
FAMILIES = {
    "what a child leaves is its siblings'": [
        Case(600, demand=0), Case(300, demand=0, parent=0), Case(300, parent=0), Case(200),
    ],
    "and its parent's": [Case(600), Case(300, demand=0, parent=0), Case(200, parent=0), Case(400)],
    "what nobody is guaranteed is split over families": [
        Case(400, demand=0), Case(200, parent=0), Case(100, parent=0, weight=3), Case(200),
    ],
    "weights say nothing outside": [IDLE, Case(weight=1000, parent=0), Case(weight=10, parent=0), Case()],
    "nor do tiers": [IDLE, Case(tier=5, parent=0), Case(tier=-5, parent=0), Case(tier=1, limit=400)],
    "a family's weight": [Case(0, weight=3, demand=0), Case(parent=0), Case(parent=0), Case()],
    "a family's limit": [
        Case(200, limit=300, demand=0), Case(100, parent=0), Case(100, parent=0, weight=2), Case(100),
    ],
    "scavengers of a family are before others": [Case(500, demand=0), Case(weight=0, parent=0), Case(200)],
    "three levels": [
        Case(700, demand=0), Case(500, demand=0, parent=0), Case(300, demand=0, parent=1), Case(100, parent=1),
        Case(200, parent=0), Case(300),
    ],
}  # fmt: skip


@pytest.mark.parametrize("cases", FAMILIES.values(), ids=FAMILIES.keys())
def test_families_split_what_is_theirs_first(cases):
    check(*cases)


@pytest.mark.parametrize("depth", [5, 20, 50])
@pytest.mark.parametrize(
    ("grants", "milli"),
    [
        ([{"guarantee": 453, "weight": 10}, {"guarantee": 47, "weight": 1000, "limit": 815}], [458, 542]),
        ([{"guarantee": 500}, {"tier": 1}], [500, 500]),
        ([{"guarantee": 42}, {"guarantee": 65, "tier": 1}, {"tier": 2, "limit": 800}], [42, 158, 800]),
    ],
    ids=["by weight", "by tier", "by limit"],
)
def test_who_borrows_with_long_kernels_is_not_passed_over_for_what_they_overrun(grants, milli, depth):
    m = Model()
    for number, grant in enumerate(grants):
        m.add(number, depth=(depth if number == len(grants) - 1 else 2) * MS, **grant)
    for number in range(len(grants)):
        m.want(number)
    m.run(SETTLING)
    _, did = m.shares(SPAN)
    assert [1000 * did[number] for number in range(len(grants))] == pytest.approx(milli, abs=POINT)


@pytest.mark.parametrize(("waited", "saved"), [(True, 0.5), (False, 0.1)], ids=["waiting", "asleep"])
def test_a_limit_saves_up_for_who_is_held_up_and_hardly_for_who_sleeps(waited, saved):
    m = Model()
    m.add(0, limit=200)
    m.add(1, tier=1)
    m.want(1)
    m.want(0, None if waited else 0)
    m.run(3 * SECOND)
    assert m.tenants[0].executed == 0
    m.want(1, 0)
    m.want(0)
    for duration in (SECOND, 10 * SECOND):
        _, did = m.shares(duration)
        assert did[0] == pytest.approx(0.2 * (1 + saved * SECOND / duration), abs=0.02)
        saved = 0


@pytest.mark.parametrize("promised", [(1000, 500), (600, 600, 300), (2000, 6000), (5, 1000, 700)], ids=str)
def test_promises_that_do_not_fit_any_more_are_served_in_proportion(promised):
    states = [TenantState(str(i), milli, DEVICE_MILLI) for i, milli in enumerate(promised)]
    short = entitle(DEVICE_MILLI, states)
    assert short.degraded
    left = shrink(DEVICE_MILLI, {str(i): milli for i, milli in enumerate(promised)})
    did, _ = served([Case(left[str(i)]) for i in range(len(promised))])
    assert did == pytest.approx([short.milli[str(i)] for i in range(len(promised))], abs=POINT)


@st.composite
def mixes(draw, partly=False):
    """Draws 2-8 tenants whose guarantees fit. The first has endless work, so that no tenant keeps the device over its
    pauses."""
    count = draw(st.integers(2, 8))
    most = draw(st.sampled_from([1000, 900, 500, 0]))
    cuts = sorted(draw(st.lists(st.integers(0, most), min_size=count, max_size=count)))
    result = []
    for number, milli in enumerate(b - a for a, b in zip([0, *cuts], cuts, strict=False)):
        guarantee = milli if milli >= 5 else 0  # the smallest guarantee that is admitted
        limit = draw(st.one_of(st.none(), st.integers(50, 1000))) if number else None
        demand = st.one_of(st.just(0), st.integers(20, 999), st.just(DEVICE_MILLI))
        result.append(
            Case(
                guarantee,
                weight=draw(st.one_of(st.integers(0, 3), st.integers(0, 1000))),
                tier=draw(st.integers(-1, 2)),
                limit=None if limit is None else max(limit, guarantee),
                demand=draw(demand) if partly and number else DEVICE_MILLI,
                period=draw(st.sampled_from([100, 200, 500])) * MS,
            )
        )
    return result


@pytest.mark.parametrize("examples", [30, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("partly", [False, True], ids=["who want all", "who want a part"])
def test_any_tenants_get_what_they_are_entitled_to(partly, examples):
    @settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(mixes(partly=partly))
    def any_mix(cases):
        check(*cases)

    any_mix()


@st.composite
def families(draw):
    """The same, but each tenant may be the child of an earlier one, whose guarantee grows by the child's. Each wants
    all or nothing: the moments that a tenant leaves go to all by their parts, not to its family first."""
    cases = [replace(case, limit=None) for case in draw(mixes())]
    idle = draw(st.sets(st.integers(1, len(cases) - 1)))
    cases = [replace(case, demand=0) if i in idle else case for i, case in enumerate(cases)]
    level = [1] * len(cases)
    for number in range(1, len(cases)):
        above = draw(st.none() | st.integers(0, number - 1))
        if above is not None and level[above] < 3:
            level[number] = level[above] + 1
            cases[number] = replace(cases[number], parent=above)
            while above is not None:
                cases[above] = replace(cases[above], guarantee=cases[above].guarantee + cases[number].guarantee)
                above = cases[above].parent
    return cases


@pytest.mark.parametrize("examples", [25, pytest.param(80, marks=pytest.mark.slow)])
def test_any_families_get_what_they_are_entitled_to(examples):
    @settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(families())
    def any_families(cases):
        check(*cases)

    any_families()
