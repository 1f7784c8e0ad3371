"""The ledger's sums as the API shows them."""

import asyncio
import time

from gpushare.api import usage as types
from gpushare.errors import UsageError
from gpushare.ledger.entries import GAP, IDLE, LARGEST, SWITCHING
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.usage import By, Key, Span, Sums

_MONTH_NS = 30 * 24 * 3600 * 10**9


async def usage(ledger: Ledger, by: By, since: int | None, until: int | None, tenant: str | None) -> types.Usage:
    """What /v1/usage answers. The last 30 days where nothing is said. Raises UsageError or FailedError."""
    # Without an end it is all there is: rows that wait to be written end after this moment.
    end, until = until if until is not None else LARGEST, until if until is not None else time.time_ns()
    since = since if since is not None else max(0, until - _MONTH_NS)
    if since > until:
        raise UsageError("since is out of range: it is after until")
    found = await asyncio.to_thread(ledger.usage, by, Span(since, end, tenant))
    whole = await asyncio.to_thread(ledger.usage, "tenant", Span(since, end)) if by != "tenant" or tenant else found
    rows = [_row(by, key, sums) for key, sums in sorted(found.items()) if not _nobodys(by, key)]
    return types.Usage(since_ns=since, until_ns=until, by=by, rows=rows, devices=_devices(whole))


def _nobodys(by: By, key: Key) -> bool:
    tenant = key[0] if by == "tenant" else key[1]
    return str(tenant).startswith("(")


def _devices(by_tenant: dict[Key, Sums]) -> types.DeviceTime:
    nothing = Sums()
    idle, switching, gap = (by_tenant.get((what,), nothing) for what in (IDLE, SWITCHING, GAP))
    used = sum(sums.used_ns for key, sums in by_tenant.items() if not str(key[0]).startswith("("))
    return types.DeviceTime(
        wall_ns=idle.wall_ns + gap.wall_ns,
        used_ns=used,
        idle_ns=idle.used_ns,
        switching_ns=switching.used_ns,
        missed_ns=gap.used_ns,
        idle_with_waiters_ns=idle.waited_ns,
    )


def _row(by: By, key: Key, sums: Sums) -> types.UsageRow:
    row = types.UsageRow(
        guaranteed_ns=max(0, sums.used_ns - sums.borrowed_ns),
        borrowed_ns=max(0, sums.borrowed_ns - sums.scavenged_ns),
        scavenged_ns=sums.scavenged_ns,
        lent_ns=sums.lent_ns,
        waited_ns=sums.waited_ns,
        busy_ns=sums.busy_ns,
        memory_byte_s=sums.memory_mib_ms * (1 << 20) // 1000,
        waits=sums.waits,
        reclaims=sums.reclaims,
    )
    match by:
        case "tenant":
            row.tenant = str(key[0])
        case "grant":
            row.grant, row.tenant = str(key[0]), str(key[1])
        case "device":
            row.device, row.tenant = str(key[0]), str(key[1])
        case "hour":
            row.begins_ns, row.tenant = int(key[0]), str(key[1])
        case "charge":
            row.begins_ns = int(key[0])
            row.tenant, row.grant, row.device = (str(part) for part in key[1:])
    return row
