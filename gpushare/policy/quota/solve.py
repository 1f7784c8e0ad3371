"""`gpushare quota solve`: entitlements for a state that a user wrote, which is checked first."""

from collections.abc import Mapping

from gpushare.errors import UsageError
from gpushare.policy.quota import history, tree
from gpushare.policy.quota.entitlement import TenantState

_LARGEST = (1 << 53) - 1
"""JSON readers do not agree on larger numbers."""


def _number(row: Mapping[str, object], key: str, default: int | None, where: str, *, signed: bool = False) -> int:
    """null counts as missing. 1000.0 is an integer in JSON, which has one kind of number."""
    value = row.get(key)
    if value is None:
        value = default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or (value < 0 and not signed) or abs(value) > _LARGEST:
        wanted = "an integer" if signed else "an integer of at least 0"
        raise UsageError(f"{where}: {key} is {repr(value)[:60]}: give {wanted}, and at most {_LARGEST}")
    return value


def _real(row: Mapping[str, object], key: str, where: str) -> float:
    value = row.get(key)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise UsageError(f"{where}: {key} is {repr(value)[:60]}: give a number of at least 0, and at most {_LARGEST}")
    return value


def _parent(row: Mapping[str, object], where: str) -> str | None:
    value = row.get("parent")
    if value is not None and (not isinstance(value, str) or not value):
        raise UsageError(f"{where}: parent is {repr(value)[:60]}: give the name of a tenant, or null")
    return value


def solve(state: object) -> dict[str, object]:
    """{"C", "k", "tenants": [{"name","parent","g","w","tier","limit","demand","usage"}]} -> {"entitlement": {name:
    milli}, "degraded": bool}. `demand` is of a tenant's own grants, its entitlement of them and all below it. Nobody
    gets more than its limit: where that is below g, it is what is guaranteed. `usage` decides ties, and with `k` above
    0 corrects weights (gpushare.policy.quota.history). Raises UsageError with the place of what is wrong."""
    if not isinstance(state, Mapping):
        raise UsageError("the state is not a JSON object with C and tenants")
    capacity, factor = _number(state, "C", None, "state"), _real(state, "k", "state")
    rows = state.get("tenants")
    if not isinstance(rows, list):
        raise UsageError("state: tenants is not a list")
    tenants: dict[str, TenantState] = {}
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping) or not isinstance(row.get("name"), str) or not row["name"]:
            raise UsageError(f"tenants[{i}] is not an object with a name")
        name = str(row["name"])
        where = f"tenant {name!r}"
        if name in tenants:
            raise UsageError(f"{where} is there twice")
        tenants[name] = TenantState(
            name=name,
            guarantee=_number(row, "g", 0, where),
            demand=_number(row, "demand", None, where),
            weight=_number(row, "w", 1, where),
            tier=_number(row, "tier", 0, where, signed=True),
            limit=None if row.get("limit") is None else _number(row, "limit", None, where),
            usage=_real(row, "usage", where),
            parent=_parent(row, where),
        )
    tree.check_guarantees(tree.families(tenants), tenants)
    weights = history.corrected(tenants.values(), factor) if factor else None
    result = tree.entitle(capacity, tenants.values(), weights)
    return {"entitlement": result.milli, "degraded": result.degraded}
