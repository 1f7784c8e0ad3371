"""The ledger's sums as the API shows them."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

from gpushare.api import usage as types
from gpushare.errors import UsageError
from gpushare.ledger import entries
from gpushare.ledger.entries import LARGEST
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.slots import Cut
from gpushare.ledger.usage import By, Key, Span, Sums

_MONTH_NS = 30 * 24 * 3600 * 10**9


async def usage(
    ledger: Ledger, by: By, since: int | None, until: int | None, tenant: str | None, cuts: tuple[int, ...] = ()
) -> types.Usage:
    """Returns the answer to GET /v1/usage, by default for the last 30 days. `cuts`: where periods begin. Raises
    UsageError or FailedError."""
    since, until, end = _moments(since, until)
    if bool(cuts) != (by == "period"):
        raise UsageError(
            "cuts is out of range: by=period needs moments at which periods begin, and other ways have none"
        )
    span = Span(since, end, tenant, cuts)
    found = await asyncio.to_thread(ledger.usage, by, span)
    whole = (by, found)
    if tenant is not None or by == "holder":
        # Rows of time that nobody had belong to no tenant.
        of: By = "period" if by == "period" else "tenant"
        whole = (of, await asyncio.to_thread(ledger.usage, of, replace(span, tenant=None)))
    return await asyncio.to_thread(_answer, by, since, until, found, whole)


async def slots(ledger: Ledger, since: int | None, until: int | None, cut: Cut) -> types.UsageSlots:
    """Returns the answer to GET /v1/usage/slots. Defaults and errors as in `usage`."""
    since, until, end = _moments(since, until)
    found = await asyncio.to_thread(ledger.slots, Span(since, end), cut)
    shown = [
        types.UsageSlot(
            begins_ns=slot.begins_ns,
            length_ns=slot.length_ns,
            capacity_ns=slot.capacity_ns,
            used_ns=dict(slot.used_ns),
            waited_ns=dict(slot.waited_ns),
            device=slot.device,
        )
        for slot in found
    ]
    return types.UsageSlots(since_ns=since, until_ns=until, slots=shown)


def _moments(since: int | None, until: int | None) -> tuple[int, int, int]:
    """Returns the beginning, the end to report and the end to read. Raises UsageError."""
    # Without an end everything is read: rows that wait to be written end after this moment.
    end, until = until if until is not None else LARGEST, until if until is not None else time.time_ns()
    since = since if since is not None else max(0, until - _MONTH_NS)
    if since > until:
        raise UsageError("since is out of range: it is after until")
    return since, until, end


def _answer(by: By, since: int, until: int, found: dict[Key, Sums], whole: tuple[By, dict[Key, Sums]]) -> types.Usage:
    """Builds the answer; in a thread, since there may be tens of thousands of rows."""
    rows = [_row(by, key, sums) for key, sums in sorted(found.items()) if not _tenant(by, key).startswith("(")]
    of, sums = whole
    devices = _devices((_tenant(of, key), one) for key, one in sums.items())
    periods = _periods(sums) if by == "period" else []
    return types.Usage(since_ns=since, until_ns=until, by=by, rows=rows, devices=devices, periods=periods)


def _periods(whole: dict[Key, Sums]) -> list[types.UsagePeriod]:
    parts: dict[int, list[tuple[str, Sums]]] = {}
    for (begins, tenant), sums in whole.items():
        parts.setdefault(int(begins), []).append((str(tenant), sums))
    return [types.UsagePeriod(begins_ns=at, devices=_devices(part)) for at, part in sorted(parts.items())]


def _tenant(by: By, key: Key) -> str:
    return str(key[0] if by in ("tenant", "holder") else key[1])


def _devices(whole: Iterable[tuple[str, Sums]]) -> types.DeviceTime:
    time = types.DeviceTime()
    for owner, sums in whole:
        match owner:
            case entries.IDLE:
                time.wall_ns += sums.wall_ns
                time.idle_ns += sums.used_ns
                time.idle_with_waiters_ns += sums.waited_ns
            case entries.GAP:
                time.wall_ns += sums.wall_ns
                time.missed_ns += sums.used_ns
            case entries.SWITCHING:
                time.switching_ns += sums.used_ns
            case tenant if not tenant.startswith("("):
                time.used_ns += sums.used_ns
    return time


def _row(by: By, key: Key, sums: Sums) -> types.UsageRow:
    row = types.UsageRow(
        guaranteed_ns=max(0, sums.used_ns - sums.borrowed_ns - sums.extra_ns),
        extra_ns=sums.extra_ns,
        borrowed_ns=max(0, sums.borrowed_ns - sums.scavenged_ns),
        scavenged_ns=sums.scavenged_ns,
        lent_ns=sums.lent_ns,
        waited_ns=sums.waited_ns,
        waited_owed_ns=sums.waited_owed_ns,
        waited_limit_ns=sums.waited_limit_ns,
        busy_ns=sums.busy_ns,
        memory_byte_s=sums.memory_mib_ms * (1 << 20) // 1000,
        hosted_byte_s=sums.hosted_mib_ms * (1 << 20) // 1000,
        moved_out_bytes=sums.out_bytes,
        moved_in_bytes=sums.in_bytes,
        stalled_ns=sums.stall_ns,
        stalls=sums.stalls,
        waits=sums.waits,
        reclaims=sums.reclaims,
        launches=sums.launches,
    )
    match by:
        case "tenant":
            row.tenant = str(key[0])
        case "grant":
            row.grant, row.tenant = str(key[0]), str(key[1])
        case "device":
            row.device, row.tenant = str(key[0]), str(key[1])
        case "origin":
            row.origin, row.tenant = str(key[0]), str(key[1])
        case "hour" | "period":
            row.begins_ns, row.tenant = int(key[0]), str(key[1])
        case "holder":
            row.tenant, row.holder_tenant, row.holder = (str(part) for part in key)
        case "charge":
            row.begins_ns = int(key[0])
            row.tenant, row.grant, row.device = (str(part) for part in key[1:])
    return row
