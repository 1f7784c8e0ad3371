"""The data that pages show of a node, made from the node API's answers: pure. Fields that are 0, empty or null, as most
are, are left out, since a page is sent a row for each grant that changed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from gpushare.text import links, overview, sentences

Json: TypeAlias = Any
"""A wire type of gpushare.api as a plain dict, or the part of it that pages show."""

RECEIPTS_MAX = 40
_OF_WAITS = frozenset(("lease", "left", "late", "lie"))
"""Kinds of receipts that say how long a grant waited, for which one and why; the others are steps in between."""
_WAITED_NS = 1000
"""A shorter wait does not count: the device was free."""


def _some(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value}


def grant(found: Json) -> Json:
    """Returns the row of a Grant."""
    gang, part = found["gang"] or {}, found["part_of"]
    eviction, workload, attachments = found["eviction"], found["workload"], found.get("attachments") or []
    return _some(
        id=found["id"],
        tenant=found["tenant"],
        phase=found["phase"],
        class_=found["class"],
        key=found["key"],
        gang=gang.get("id") or (part and f"{part['gang']} {part['part']}"),
        kind=found["kind"],
        pids=len(found["processes"]),
        program=overview.without_directory(workload["program"]),
        container=overview.short_id(workload["container"]),
        pod=workload["pod"] and f"{workload['pod']['namespace']}/{workload['pod']['name']}",
        uid=found["uid"],
        created_ns=found["created_ns"],
        notice=found["notice"],
        evicted=eviction is not None,
        hosts=links.hosts(attachments),
        link_class=links.worst(attachments),
        attached=[links.living(one) for one in attachments],
        open_walls=[wall["name"] for wall in found["walls"] if not wall["holds"]],
        devices=[_part(part) for part in found["devices"]],
    )


def _part(found: Json) -> Json:
    """Returns the row of a GrantDevice, with short field names."""
    return _some(
        device=found["index"],
        asked=found["time_milli"],
        limit=found["time_limit_milli"],
        entitled=found["entitled_milli"],
        got=found["used_milli"],
        borrowed=found["borrowed_milli"],
        lent=found["lent_milli"],
        waited=found["waited_milli"],
        memory=found["memory_bytes"],
        memory_limit=found["memory_limit_bytes"],
        memory_borrowed=found["memory_borrowed_bytes"],
        memory_hosted=found["memory_hosted_bytes"],
        waits=found["waits"],
        wait_max_ns=found["wait_max_ns"],
        lost=found["health"] != "healthy",
        marked=found["marked"],
    )


def device(found: Json, before: Json | None, grants: Sequence[Json]) -> Json:
    """Returns the row of a Device. `before`, `grants`: as in overview.device_time."""
    time = overview.device_time(found, before, grants)
    parts = [part for one in grants for part in one["devices"] if part["id"] == found["id"]]
    return _some(
        id=found["id"],
        index=found["index"],
        name=found["name"],
        healthy=found["health"] == "healthy",
        health_reason=found["health_reason"],
        state=found["state"],
        drain_reason=found["drain_reason"],
        guaranteed=time.guaranteed,
        borrowed=time.borrowed,
        switching=time.switching,
        idle=time.idle,
        promised=found["guaranteed"]["time"],
        capacity=found["capacity"]["memory"],
        granted=sum(part["memory_limit_bytes"] for part in parts),
        memory=found["memory_used_bytes"],
        asleep=found["memory_asleep_bytes"],
        idle_memory=found["memory_idle_bytes"],
        grants=len(parts),
    ) | {"index": found["index"]}


def tenant(found: Json, waits: Mapping[str, Json]) -> Json:
    """Returns the row of a Tenant. `waits`: TenantWaits by name."""
    now, waited = found["now"], waits.get(found["name"], {})
    return _some(
        name=found["name"],
        parent=found["parent"],
        state=now["state"],
        guarantee=found["guarantee"]["time"],
        memory=found["guarantee"]["memory"],
        have=found["have"]["time"] if found["degraded"] else 0,
        degraded=found["degraded"],
        limit=found["limit_time"],
        weight=now["weight"],
        tier=found["tier"],
        entitled=now["entitlement_milli"],
        used=now["used_milli"],
        borrowed=now["borrowed_milli"],
        lent=now["lent_milli"],
        waited=now["waited_milli"],
        grants=found["grants"],
        allocated=found["allocated"]["memory"],
        waits=waited.get("waits"),
        wait_max_ns=waited.get("wait_max_ns"),
    )


def facts(found: Json) -> Json:
    """Returns the health facts of a Node."""
    ledger = found["ledger"]
    return {
        "version": found["version"],
        "epoch": found["epoch"],
        "pid": found["pid"],
        "simulated": found["simulated"],
        "driver": found["driver_version"],
        "devices": found["devices"],
        "working": found["devices_working"],
        "degraded": found["degraded"],
        "started_ns": found["started_ns"],
        "loop_ns": found["loop_latency_max_ns"],
        "ledger": {name: ledger[name] for name in ("healthy", "reason", "waiting", "lost", "set_aside", "damaged")},
        "enforce": found["enforce"],
        "walls": [{name: wall[name] for name in ("name", "keeps", "holds", "why", "lost")} for wall in found["walls"]],
    }


def observed(findings: Json, attempts: Json) -> Json:
    """Returns the sentences of Findings and Attempts, latest first."""
    return {
        "open": findings["open"],
        "findings": [sentences.finding(one) for one in reversed(findings["findings"][-RECEIPTS_MAX:])],
        "attempts": [sentences.attempt(one) for one in reversed(attempts["attempts"][-RECEIPTS_MAX:])],
        "attempts_total": attempts["total"],
    }


def standing(found: Json) -> Json:
    """Returns the sentences of a Standing, with the grants and tenants that they are about."""
    return {
        "idle": [
            {"grant": one["grant"], "tenant": one["tenant"], "text": one["text"], "in_the_way": len(one["in_the_way"])}
            for one in found["idle_holders"]
        ],
        "waiting": [{"tenant": one["tenant"], "text": one["text"]} for one in found["waiting"]],
    }


def receipts(events: Iterable[Json]) -> list[Json]:
    """Returns receipts of waits, latest first. `events`: LeaseEvents, oldest first."""
    waits = [
        one for one in events if one["kind"] in _OF_WAITS and (one["kind"] != "lease" or one["wait_ns"] >= _WAITED_NS)
    ]
    return [
        {"kind": one["kind"], "grant": one["grant"], "text": sentences.event(one)}
        for one in reversed(waits[-RECEIPTS_MAX:])
    ]


def usage(found: Json, columns: int, step_ns: int) -> Json:
    """Returns the chart of UsageSlots per device, `columns` columns for each device up to `until_ns`. A column has for
    each tenant milli of the time recorded in it; null: nothing was recorded. `tenants`: heaviest user first, with the
    device hours that each had."""
    end = -(-found["until_ns"] // step_ns) * step_ns
    begin = end - columns * step_ns
    sums: dict[str, list[tuple[int, dict[str, int]] | None]] = {}
    totals: dict[str, int] = {}
    for slot in found["slots"]:
        at = (slot["begins_ns"] - begin) // step_ns
        if not 0 <= at < columns:
            continue
        row = sums.setdefault(slot["device"], [None] * columns)
        capacity, used = row[at] or (0, {})
        for name, ns in slot["used_ns"].items():
            used[name] = used.get(name, 0) + ns
            totals[name] = totals.get(name, 0) + ns
        row[at] = capacity + slot["capacity_ns"], used
    names = sorted(totals, key=lambda name: (-totals[name], name))
    place = {name: i for i, name in enumerate(names)}
    return {
        "end_ns": end,
        "step_ns": step_ns,
        "tenants": [{"name": name, "hours": round(totals[name] / 3.6e12, 4)} for name in names],
        "devices": {
            device: [one and _shares(one[0], {place[name]: ns for name, ns in one[1].items()}) for one in row]
            for device, row in sums.items()
        },
    }


def _shares(capacity_ns: int, used_ns: dict[int, int]) -> dict[int, int]:
    """Returns milli by tenant. Rows of several grants may end slightly apart; the sum is kept within the whole."""
    whole = max(capacity_ns, sum(used_ns.values()), 1)
    return {one: milli for one, ns in sorted(used_ns.items()) if (milli := round(1000 * ns / whole))}
