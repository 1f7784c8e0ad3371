"""Recent borrowing counts: the daemon's rules and the arbiter's core together, in virtual time."""

import math

import pytest
from virtual_device import MS, Model

from gpushare.daemon.state.history import History
from gpushare.policy.quota.shares import DEVICE_MILLI, Placed, shares
from gpushare.policy.quota.standing import Had, now
from gpushare.policy.quota.tenant import TenantPolicy

DEVICE = "d"
SECOND = 1000 * MS
HOUR = 3600
HALF_LIFE = 600


class Node:
    """One device; each tenant has one grant, which wants all or nothing."""

    def __init__(self, policies, factor, half_life):
        self.policies = {policy.name: policy for policy in policies}
        self.history = History(factor, half_life)
        self.model, self.wants = Model(), set()
        self.placed = [Placed(name, name, DEVICE, 1000, 0) for name in self.policies]
        for number, share in enumerate(self.shares()):
            self.model.add(number, guarantee=share.guarantee_milli, weight=share.weight, tier=share.tier)

    def shares(self):
        found = shares(self.policies, self.placed, self.wants or None, self.history.weights)
        return [found[name, DEVICE] for name in self.policies]

    def serve(self):
        for number, share in enumerate(self.shares()):
            self.model.change(number, guarantee=share.guarantee_milli, weight=share.weight, tier=share.tier)

    def want(self, *names):
        self.wants = set(names)
        for number, name in enumerate(self.policies):
            self.model.want(number, None if name in names else 0)
        self.serve()

    def run(self, seconds, step=1):
        """Returns the milli that each tenant had; the history is updated every `step` seconds."""
        whole = dict.fromkeys(self.policies, 0)
        for _ in range(seconds // step):
            _, did = self.model.shares(step * SECOND)
            used = {name: round(1000 * did[number]) for number, name in enumerate(self.policies)}
            had = {name: Had(DEVICE_MILLI if name in self.wants else 0, milli) for name, milli in used.items()}
            stands = now(self.policies, had, DEVICE_MILLI, frozenset(), self.history.weights)
            if self.history.factor and self.history.follow(stands, self.policies, step):
                self.serve()
            whole = {name: milli + used[name] * step for name, milli in whole.items()}
        return {name: milli / seconds for name, milli in whole.items()}


families = pytest.mark.parametrize(
    "tenants",
    [
        [TenantPolicy("a", 0), TenantPolicy("b", 0)],
        [TenantPolicy("f", 0), TenantPolicy("a", 0, parent="f"), TenantPolicy("b", 0, parent="f")],
    ],
    ids=["flat", "family"],
)


@families
def test_who_borrowed_all_for_an_hour_waits_for_the_other_and_then_both_have_the_same(tenants):
    node = Node(tenants, 1, HALF_LIFE)
    node.want("a")
    assert node.run(HOUR, 10)["a"] > 980
    node.want("a", "b")
    got = [node.run(HALF_LIFE // 2, 10) for _ in range(8)]
    # With a factor of 1, the difference of the parts halves in half a half-life.
    first = 500 * 0.5 / math.log(2)
    assert [round(one["b"]) for one in got] == pytest.approx([500 + first * 0.5**n for n in range(8)], abs=20)
    assert sum(got[-1].values()) > 980 and got[-1]["a"] == pytest.approx(got[-1]["b"], abs=20)


@families
def test_without_a_factor_what_was_borrowed_counts_for_nothing(tenants):
    node = Node(tenants, 0, HALF_LIFE)
    node.want("a")
    node.run(100, 10)
    node.want("a", "b")
    got = node.run(100, 10)
    assert (got["a"], got["b"]) == pytest.approx((500, 500), abs=15)


def test_a_guarantee_is_had_whatever_was_borrowed():
    node = Node([TenantPolicy("a", 400), TenantPolicy("b", 100)], 3, HALF_LIFE)
    node.want("a")
    node.run(600, 10)
    node.want("a", "b")
    got = node.run(100, 10)
    assert got["a"] == pytest.approx(400, abs=20) and got["b"] > 570
