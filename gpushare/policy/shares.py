"""What each grant gets on each device, as the arbiter wants it: guarantee, limit, weight, tier.

A grant's guarantee is what admission reserved for it, and what its tenant's guarantee has left unreserved, split over
the tenant's grants by their time. A tenant's weight is split the same way: two grants borrow no more than one.
"""

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpushare.policy.entitlement import Part, water_fill

DEVICE_MILLI = 1000
_WEIGHT_SCALE = 1000
_WEIGHT_MAX = 2**32 - 1


class Workload(enum.IntEnum):
    """`class` of a grant; the values are enum gs_grant_class."""

    INTERACTIVE = 0
    INFERENCE = 1
    TRAINING = 2


@dataclass(frozen=True, slots=True)
class Share:
    """struct gs_share: of one grant on one device."""

    guarantee_milli: int
    limit_milli: int = DEVICE_MILLI
    weight: int = 1
    tier: int = 0
    workload: Workload = Workload.TRAINING


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """`guarantee_milli`: of the whole node. `weight` 0: a scavenger."""

    name: str
    guarantee_milli: int
    weight: int = 1
    tier: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """One grant on one device: `time_milli` asked, `guaranteed_milli` of it reserved out of the tenant's guarantee."""

    grant: str
    tenant: str
    device: str
    time_milli: int
    guaranteed_milli: int
    limit_milli: int = DEVICE_MILLI
    workload: Workload = Workload.TRAINING


def shares(
    tenants: Mapping[str, TenantPolicy], placed: Collection[Placed], runnable: Collection[str] | None = None
) -> dict[tuple[str, str], Share]:
    """(grant, device) -> share. `runnable`: grants with work, over which their tenant's guarantee is split; the idle
    ones keep what was reserved for them, so that they start promptly. None: all of them."""
    guaranteed = _guarantees(tenants, placed)
    result = {}
    for (tenant, device), rows in _by_tenant_and_device(placed).items():
        working = [row for row in rows if runnable is None or row.grant in runnable] or rows
        split = _split(guaranteed[tenant, device], working)
        policy = tenants[tenant]
        total = sum(row.time_milli for row in working)
        for row in rows:
            milli = split[row.grant] if row in working else row.guaranteed_milli
            weight = (
                policy.weight * _WEIGHT_SCALE * row.time_milli // max(1, total) if row in working else policy.weight
            )
            result[row.grant, device] = Share(
                guarantee_milli=min(milli, row.limit_milli),
                limit_milli=row.limit_milli,
                weight=min(max(weight, 1), _WEIGHT_MAX) if policy.weight else 0,
                tier=policy.tier,
                workload=row.workload,
            )
    return result


def _by_tenant_and_device(placed: Iterable[Placed]) -> dict[tuple[str, str], list[Placed]]:
    rows: dict[tuple[str, str], list[Placed]] = {}
    for row in placed:
        rows.setdefault((row.tenant, row.device), []).append(row)
    return rows


def _split(milli: int, rows: list[Placed]) -> dict[str, int]:
    """By time; equally where nobody asked for any. Nobody above its limit, which leaves the rest to the others."""
    asked = any(row.time_milli for row in rows)
    parts = [Part(row.grant, row.time_milli if asked else 1, row.limit_milli) for row in rows]
    given = water_fill(milli, [part for part in parts if part.weight > 0])
    return {row.grant: given.get(row.grant, 0) for row in rows}


def _guarantees(tenants: Mapping[str, TenantPolicy], placed: Collection[Placed]) -> dict[tuple[str, str], int]:
    """What each tenant is guaranteed on each device: what is reserved there, plus its part of what nobody reserved."""
    groups = _by_tenant_and_device(placed)
    reserved = {key: sum(row.guaranteed_milli for row in rows) for key, rows in groups.items()}
    asked = {key: sum(row.time_milli for row in rows) for key, rows in groups.items()}
    result = dict(reserved)
    for device in {device for _, device in groups}:
        here = [tenant for tenant, on in groups if on == device]
        free = DEVICE_MILLI - sum(reserved[tenant, device] for tenant in here)
        extra = []
        for tenant in here:
            everywhere = sum(milli for (name, _), milli in asked.items() if name == tenant)
            due = tenants[tenant].guarantee_milli * asked[tenant, device] // max(1, everywhere)
            more = max(0, due - reserved[tenant, device])
            extra.append(Part(tenant, max(1, more), more))
        for tenant, milli in water_fill(max(0, free), extra).items():
            result[tenant, device] += milli
    return result
