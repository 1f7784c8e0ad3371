"""Tenants' standings, from what their grants had in a second."""

from gpushare.policy.quota.standing import Had, now
from gpushare.policy.quota.tenant import TenantPolicy

LAB = {
    "ml": TenantPolicy("ml", 1000),
    "ml/a": TenantPolicy("ml/a", 2000, parent="ml"),
    "ml/b": TenantPolicy("ml/b", 3000, parent="ml"),
    "sales": TenantPolicy("sales", 2000),
}


def notified(had, short=(), capacity=8000):
    return {
        name: (one.state, one.entitlement, one.used, one.borrowed, one.lent)
        for name, one in now(LAB, had, capacity, frozenset(short)).items()
    }


def test_what_a_family_lends_itself_is_not_lent_by_it():
    had = {"ml/b": Had(8000, 6000), "sales": Had(2000, 2000)}
    assert notified(had) == {
        "ml": ("in_quota", 6000, 6000, 0, 0),
        "ml/a": ("idle", 0, 0, 0, 2000),
        "ml/b": ("borrowing", 6000, 6000, 3000, 0),
        "sales": ("in_quota", 2000, 2000, 0, 0),
    }


def test_what_leaves_a_family_is():
    had = {"ml": Had(1000, 1000), "sales": Had(8000, 7000)}
    assert notified(had)["sales"] == ("borrowing", 7000, 7000, 5000, 0)
    assert notified(had)["ml"] == ("in_quota", 1000, 1000, 0, 5000)
    assert (notified(had)["ml/a"], notified(had)["ml/b"]) == (("idle", 0, 0, 0, 2000), ("idle", 0, 0, 0, 3000))


def test_who_waits_below_what_it_should_get_is_starved_and_who_rests_is_not():
    had = {"ml/a": Had(2000, 1000, waited=900), "sales": Had(8000, 7000)}
    assert notified(had)["ml/a"][0] == "starved" and notified(had)["sales"][0] == "borrowing"
    assert notified({"ml/a": Had(2000, 1000)})["ml/a"][0] == "in_quota"
    assert notified({"ml/a": Had(2000, 1960, waited=40)})["ml/a"][0] == "in_quota"
    assert notified(had, short={"sales"}, capacity=7000)["sales"][0] == "degraded"


def test_what_could_be_had_on_other_devices_only_starves_nobody():
    policies = {name: TenantPolicy(name, 2000) for name in ("a", "b")}
    for used, due, state in ((490, 500, "in_quota"), (400, 500, "starved"), (490, None, "starved")):
        had = {name: Had(wants=1000, used=used, waited=500, due=due) for name in policies}
        found = now(policies, had, 4000, frozenset())
        assert {(one.state, one.entitlement) for one in found.values()} == {(state, 1000)}
