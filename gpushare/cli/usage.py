"""gpushare usage"""

import argparse
import csv
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpushare.cli import focus, prices
from gpushare.cli.command import add_json, add_socket, add_verb, checked, client, print_json, table
from gpushare.errors import FailedError, UsageError
from gpushare.policy import billing
from gpushare.policy.billing import Prices

_AGO = re.compile(r"([0-9]{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_TIMES = ("guaranteed_ns", "borrowed_ns", "scavenged_ns", "lent_ns", "waited_ns")
_NUMBERS = (*_TIMES, "busy_ns", "memory_byte_s", "waits", "reclaims")
_NAMES = {
    "tenant": ("tenant",),
    "grant": ("grant", "tenant"),
    "device": ("device", "tenant"),
    "hour": ("hour", "tenant"),
}
_TITLES = ("GUARANTEED", "BORROWED", "SCAVENGED", "LENT", "WAITED", "MEMORY")
_BAR = 24


def moment(text: str) -> int:
    """`30d`, `12h`, `90m` ago, or a date or time in ISO 8601 (UTC where it says none) -> ns. Raises UsageError."""
    if match := _AGO.fullmatch(text.strip()):
        return time.time_ns() - int(match[1]) * _SECONDS[match[2]] * 10**9
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{text!r} is no time: give 30d, 12h or 90m ago, or a date as 2026-11-01") from None
    when = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return max(0, int(when.timestamp() * 10**9))


class UsageCommand:
    """what tenants used, borrowed, lent and waited, with what it costs; and whether the ledger is what was written"""

    name = "usage"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        self._options(parser)
        parser.set_defaults(verb=self._show)
        verbs = parser.add_subparsers(metavar="VERB")
        verify = add_verb(verbs, "verify", "audit the ledger's chain of rows and its sums; names the first bad row")
        verify.add_argument("--file", type=Path, metavar="F", help="a ledger; without it the daemon's (root)")
        verify.set_defaults(verb=self._verify)
        add_json(verify)
        add_socket(verify)

    def _options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--by",
            choices=tuple(_NAMES),
            default="tenant",
            help="what a row is of (default tenant)",
        )
        parser.add_argument("--since", type=checked(moment), metavar="T", help="30d, 12h, 2026-11-01 (default 30d)")
        parser.add_argument("--until", type=checked(moment), metavar="T", help="default now")
        parser.add_argument("--tenant", metavar="T", help="of this one and those below it alone")
        parser.add_argument("--format", choices=("table", "csv", "json", "focus"), help="default table")
        parser.add_argument(
            "--prices", type=Path, metavar="F", help=f"what an hour costs (default {prices.DEFAULT}, where it is)"
        )
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        status: int = args.verb(args)
        return status

    def _show(self, args: argparse.Namespace) -> int:
        form = "json" if args.json else args.format or "table"
        cost = prices.load(args.prices)
        by = "charge" if form == "focus" else args.by
        found = client(args).usage(by=by, since=args.since, until=args.until, tenant=args.tenant)
        rows = [{**dict.fromkeys(_NUMBERS, 0), **row} for row in found["rows"]]
        if form == "json":
            if cost is not None:
                rows = [{**row, "cost": str(_rounded(row, cost))} for row in rows]
                found["currency"] = cost.currency
            print_json({**found, "rows": rows})
        elif form == "focus":
            focus.write(sys.stdout, {**found, "rows": rows}, cost, os.uname().nodename)
        elif form == "csv":
            _csv(rows, by, cost)
        else:
            _table(found, rows, by, cost)
        return 0

    def _verify(self, args: argparse.Namespace) -> int:
        from gpushare.ledger.verify import verify

        path = args.file or Path(client(args).node()["state_dir"]) / "ledger.db"
        found = verify(path)
        if args.json:
            print_json(found)
        else:
            for line in found["lines"]:
                print(line)
        if not found["ok"]:
            raise FailedError(f"{path}: {found['fault']}")
        return 0


def _named(row: Any, by: str) -> list[str]:
    if by == "hour":
        begins = datetime.fromtimestamp(row.get("begins_ns", 0) // 10**9, UTC)
        return [begins.strftime("%Y-%m-%dT%H:%MZ"), row.get("tenant", "")]
    return [row.get(name, "") for name in _NAMES[by]]


def _rounded(row: Any, cost: Prices) -> Any:
    return round(billing.cost(row, cost), 6)


def _csv(rows: Sequence[Any], by: str, cost: Prices | None) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*_NAMES[by], *_NUMBERS, *(("cost", "currency") if cost else ())])
    for row in rows:
        priced = (_rounded(row, cost), cost.currency) if cost else ()
        out.writerow([*_named(row, by), *(row[name] for name in _NUMBERS), *priced])


def _table(found: Any, rows: Sequence[Any], by: str, cost: Prices | None) -> None:
    if not rows:
        print("nothing was used")
    else:
        bars = sys.stdout.isatty() and shutil.get_terminal_size().columns >= 120
        used = [sum(row[name] for name in _TIMES[:3]) for row in rows]
        titles = [*(name.upper() for name in _NAMES[by]), *_TITLES]
        titles += [f"COST {cost.currency}"] if cost else []
        lines = []
        for row, whole in zip(rows, used, strict=True):
            line = [*_named(row, by), *(_hours(row[name]) for name in _TIMES), _memory(row["memory_byte_s"])]
            line += [f"{billing.cost(row, cost):.2f}"] if cost else []
            lines.append([*line, "█" * round(_BAR * whole / max(used)) if max(used) else ""] if bars else line)
        table([*titles, "USED"] if bars else titles, lines)
        if cost:
            print(f"together {sum(billing.cost(row, cost) for row in rows):.2f} {cost.currency}")
    print(_devices(found["devices"]))


def _hours(ns: int) -> str:
    """Of one device."""
    if not ns:
        return "-"
    if ns < 60 * 10**9:
        return f"{ns / 1e9:.1f}s"
    return f"{ns / 3.6e12:.2f}h" if ns >= 3600 * 10**9 else f"{ns / 60e9:.1f}min"


def _memory(byte_s: int) -> str:
    """GiB times hours."""
    return f"{byte_s / (3600 << 30):.2f}GiBh" if byte_s else "-"


def _devices(spent: Any) -> str:
    wall = spent["wall_ns"]
    if not wall:
        return "devices: nothing is recorded"
    parts = [("used", spent["used_ns"]), ("idle", spent["idle_ns"]), ("switching", spent["switching_ns"])]
    parts += [("without a daemon", spent["missed_ns"])] if spent["missed_ns"] else []
    told = ", ".join(f"{100 * ns / wall:.1f} % {name}" for name, ns in parts)
    if spent["idle_with_waiters_ns"]:
        told += f" ({_hours(spent['idle_with_waiters_ns'])} of it idle while grants waited)"
    return f"devices: {told}; of {_hours(wall)}"
