"""What a grant is taken to have had of the device covers what it executed, whatever others claim, in virtual time: so
an honest tenant is never found to use more than it reports (gpushare.policy.audit.overuse)."""

import random

import pytest
from forgers import Claims, Flickers, Random
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_device import Model
from virtual_node import MS

from gpushare.policy.audit.overuse import DOUBT_NS, Account

SECOND = 1000 * MS
LIARS = (0, 1)

lengths = st.sampled_from([MS // 20, MS // 2, 5 * MS, 20 * MS, 100 * MS, 700 * MS])
deep = st.builds(lambda depth: {"depth": depth}, lengths)
waits = st.builds(
    lambda kernel, gap, ahead: {"kernel": kernel, "gap": max(1, int(kernel * gap)), "ahead": ahead},
    lengths, st.sampled_from([0, 0.1, 0.5, 2, 20]), st.integers(0, 1),
)  # fmt: skip
honest = st.tuples(st.one_of(deep, waits), st.integers(0, 400), st.integers(0, 2), st.integers(1, 4))
liars = st.one_of(
    st.builds(Claims, st.sampled_from([1, 16])),
    st.builds(Flickers, st.sampled_from([10, 100, 2000]), st.sampled_from([1, 16])),
    st.builds(Random, st.integers(0, 2**32)),
)


class Judge:
    """An account of each honest tenant by what the device executed for it, to which nothing is due but what it had."""

    def __init__(self, m, numbers):
        self.m, self.accounts = m, {number: Account() for number in numbers}
        self.seen = {number: self.totals(number) for number in numbers}

    def totals(self, number):
        return self.m.tenants[number].executed, self.m.stats(number).had_ns

    def follow(self, wall):
        for number, account in self.accounts.items():
            now = self.totals(number)
            executed, had = (after - before for after, before in zip(now, self.seen[number], strict=True))
            self.seen[number] = now
            account.follow(int(executed), had, 0, wall)
            assert not account.found, (number, account.owed_ns)


def disturb(m, pick, numbers):
    """A tenant is stopped, goes on, sleeps or wakes."""
    number = pick.choice(numbers)
    tenant = m.tenants[number]
    if pick.random() < 0.5:
        m.stop(number, not tenant.stopped)
    else:
        m.want(number, work=pick.choice([None, 0, 30 * MS, SECOND]))


@settings(max_examples=12, deadline=None)
@given(st.lists(honest, min_size=1, max_size=4), st.tuples(liars, liars), st.integers(0, 2**32))
def test_no_honest_tenant_is_found_beside_those_who_lie_and_stop(tenants, lies, seed):
    m, pick = Model(), random.Random(seed)
    m.raw.exclusive = 0
    for number, forger in zip(LIARS, lies, strict=True):
        m.add(number, guarantee=pick.choice([0, 100, 500]))
        forger.begin(m.tenants[number])
    numbers = range(len(LIARS), len(LIARS) + len(tenants))
    for number, (shape, guarantee, workload, processes) in zip(numbers, tenants, strict=True):
        m.add(number, guarantee=guarantee, weight=max(1, guarantee), workload=workload, processes=processes, **shape)
        m.want(number)
    judge = Judge(m, numbers)
    for _ in range(20):
        began = m.now
        for _ in range(200):
            for number, forger in zip(LIARS, lies, strict=True):
                forger.change(m.tenants[number], m.now)
            m.step()
            m.run(pick.choice([1, 1, 5, 13]) * MS)
            if pick.random() < 0.02:
                disturb(m, pick, numbers[1:] or numbers)
        judge.follow(m.now - began)


@pytest.mark.parametrize(
    "forger", [Claims(), Claims(16), Flickers(100), Flickers(2000)], ids=["busy", "16", "100", "2000"]
)
def test_who_is_charged_for_half_had_all_of_it(forger):
    """What the device executed, against what was charged beside one that claims to run: the rest of it was had."""
    m = Model()
    m.raw.exclusive = 0
    m.add(0, guarantee=100)
    m.add(1, guarantee=500)
    forger.begin(m.tenants[0])
    m.want(1)
    for _ in range(3000):
        forger.change(m.tenants[0], m.now)
        m.step()
        m.run(MS)
    executed, had, charged = m.tenants[1].executed, m.stats(1).had_ns, m.stats(1).leased_ns
    assert charged < 0.85 * executed  # else this shows nothing
    assert executed - had < 0.02 * executed
    assert had <= 3 * SECOND


def test_who_runs_without_a_lease_and_reports_nothing_is_found():
    m = Model()
    m.add(0, guarantee=500)
    m.add(1, guarantee=500)
    m.want(0)
    before = m.stats(1).had_ns
    m.run(3 * SECOND)
    assert m.stats(1).had_ns == before
    account = Account()
    for _ in range(4):
        account.follow(SECOND, m.stats(1).had_ns - before, 500, SECOND)
    assert account.owed_ns >= DOUBT_NS
    assert account.found
