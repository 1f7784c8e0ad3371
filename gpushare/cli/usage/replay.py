"""gpushare usage replay: what recorded usage would have been under other quotas."""

import argparse
import functools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare.cli.command import client, print_json, table
from gpushare.cli.usage import span
from gpushare.cli.usage.progress import Progress
from gpushare.errors import UsageError

if TYPE_CHECKING:
    from gpushare.policy.quota.entitlement import TenantState
    from gpushare.policy.usage.replay import Outcome, Replay, Slot

_TITLES = ("TENANT", "USED", "WAITED", "WOULD USE", "BORROWED", "WAIT", "UNUSED", "SHORT", "LONGEST", "WHEN")

_SHOWN = 10
"""Maximum number of tenants without a quota to list by name."""


def run(args: argparse.Namespace) -> int:
    """Replays the daemon's record under the quotas in the file `args.tenants`, and returns the exit status."""
    from dataclasses import asdict, fields

    from gpushare.policy.usage.replay import Slot, replay

    api = client(args)
    node = api.node()["capacity"]
    recorded: Mapping[str, Any] = api.usage_slots(**span.slots(args))
    names = [field.name for field in fields(Slot)]
    slots = [Slot(**{name: slot[name] for name in names if name in slot}) for slot in recorded["slots"]]
    quotas = _quotas(args.tenants, _capacity(slots) or node["time"], node["memory"])
    with Progress("replaying what was recorded") as progress:
        found = replay(progress.over(slots), quotas)
    if args.json or args.format == "json":
        outcome = {**asdict(found), "tenants": [{"name": name, **asdict(one)} for name, one in found.tenants.items()]}
        print_json({"since_ns": recorded["since_ns"], "until_ns": recorded["until_ns"], **outcome})
    else:
        _table(found)
    return 0


def _capacity(slots: Sequence["Slot"]) -> int:
    """Returns the largest capacity that the node had, in milli. Rounded up to devices: their rows end at different
    moments."""
    return 1000 * max((-(-slot.capacity_ns // slot.length_ns) for slot in slots), default=0)


def _quotas(path: Path, time: int, memory: int) -> list["TenantState"]:
    """Returns the quotas of a file, `default` included. Raises UsageError or RefusedError with file and line."""
    from gpushare.policy.quota.entitlement import TenantState
    from gpushare.tenants import quotas

    if not path.exists():
        raise UsageError(f"{path}: there is no such file")
    found = quotas.read(path, quotas.Capacity(time, memory))
    above = quotas.parents(found)
    found = {**found, quotas.DEFAULT: quotas.default(found, above, time)}
    return [
        TenantState(
            name,
            tenant.time,
            0,
            tenant.weight,
            tenant.tier,
            tenant.time_limit if tenant.time_limit < time else None,
            parent=above.get(name),
        )
        for name, tenant in sorted(found.items())
    ]


def _table(found: "Replay") -> None:
    from dataclasses import astuple

    if not found.slots:
        print("nothing is recorded")
        return
    table(_TITLES, [_row(name, one) for name, one in sorted(found.tenants.items()) if any(astuple(one))])
    whole = found.capacity_ns
    print(
        f"idle would have been {_part(found.idle_ns, whole)}, and was {_part(found.was_idle_ns, whole)};"
        f" of {hours(whole)}"
    )
    if found.degraded_ns:
        print(
            f"for {hours(found.degraded_ns)} there was less than is guaranteed and was wanted: all shrink in proportion"
        )
    if found.unknown:
        more = f" and {len(found.unknown) - _SHOWN} others" if len(found.unknown) > _SHOWN else ""
        print(f"without a quota in the file, and so without a guarantee: {', '.join(found.unknown[:_SHOWN])}{more}")


def _row(name: str, one: "Outcome") -> list[str]:
    when = shown_hour(one.worst_at_ns) if one.worst_ns else "-"
    numbers: tuple[Any, ...] = (
        *(one.was_used_ns, one.was_waited_ns, one.used_ns, one.borrowed_ns, one.waited_ns),
        *(one.unused_ns, one.short_ns, one.worst_ns),
    )
    return [name, *map(hours, numbers), when]


def hours(ns: int) -> str:
    """Returns device time as text, in hours, minutes or seconds."""
    if not ns:
        return "-"
    if ns < 60 * 10**9:
        return f"{ns / 1e9:.1f}s"
    return f"{ns / 3.6e12:.2f}h" if ns >= 3600 * 10**9 else f"{ns / 60e9:.1f}min"


@functools.cache
def shown_hour(ns: int) -> str:
    """Returns a moment as text, to the minute, in UTC."""
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _part(ns: int, whole: int) -> str:
    return f"{hours(ns) if ns else '0h'} ({100 * ns / whole:.1f} %)"
