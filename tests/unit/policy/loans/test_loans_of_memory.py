"""Which tenants have more memory than they are guaranteed, from an owner's point of view."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.grants.admission import Tenant
from gpushare.policy.loans.loans import Family


def tree(*rows: tuple[str, int]) -> dict[str, Tenant]:
    """Tenants from (name, own bytes) rows; `a/b` is below `a`."""
    names = [name for name, _ in rows]
    return {
        name: Tenant(
            name,
            0,
            memory,
            parent=name.rpartition("/")[0] or None,
            family=tuple(one for one in names if one == name or one.startswith(f"{name}/")),
        )
        for name, memory in rows
    }


def borrowed(found: Family, owner: str, asked: int) -> dict[str, int]:
    return {name: row.borrowed for name, row in found.standings(owner, asked).items() if row.borrowed}


def test_a_guarantee_covers_what_it_is_and_no_more() -> None:
    found = Family(tree(("a", 20), ("b", 80), ("c", 0)), {"a": 50, "b": 30, "c": 10})
    assert borrowed(found, "b", 50) == {"a": 30, "c": 10}
    assert borrowed(found, "b", 51) == {}
    assert borrowed(found, "a", 1) == {}
    assert borrowed(found, "c", 1) == {}


def test_a_parents_guarantee_covers_its_children_against_others_but_not_against_each_other() -> None:
    tenants = tree(("ml", 20), ("ml/x", 30), ("ml/y", 0), ("ops", 50))
    found = Family(tenants, {"ml/x": 10, "ops": 70})
    assert borrowed(found, "ml/y", 40) == {"ops": 20}  # beyond ops' guarantee of 50
    assert borrowed(found, "ml/y", 41) == {}
    found = Family(tenants, {"ml/y": 40, "ops": 20})
    assert borrowed(found, "ml/x", 30) == {"ml/y": 40}
    # What a family holds within its guarantee is not on loan, whichever member holds it.
    assert borrowed(found, "ops", 30) == {}
    found = Family(tenants, {"ml/y": 60, "ops": 20})
    assert borrowed(found, "ops", 30) == {"ml/y": 10}


NAMES = ("a", "a/x", "a/y", "b", "b/z", "c")
BYTES = st.lists(st.integers(0, 100), min_size=len(NAMES), max_size=len(NAMES))


@given(BYTES, BYTES, st.sampled_from(NAMES), st.integers(1, 200))
def test_never_a_tenant_or_a_family_within_its_guarantee(
    guaranteed: list[int], held: list[int], owner: str, asked: int
) -> None:
    """I10, for each victim and all its ancestors that are not the owner's."""
    tenants = tree(*zip(NAMES, guaranteed, strict=True))
    has = dict(zip(NAMES, held, strict=True))
    found = borrowed(Family(tenants, has), owner, asked)
    assert owner not in found
    for name, amount in found.items():
        assert amount <= has[name]
        one: str | None = name
        while one is not None and owner not in tenants[one].family:
            family = tenants[one].family
            assert sum(has[part] for part in family) >= sum(tenants[part].memory_bytes for part in family) + amount
            one = tenants[one].parent
