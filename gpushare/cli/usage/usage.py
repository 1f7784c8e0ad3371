"""gpushare usage"""

import argparse
import contextlib
import csv
import io
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare.cli.command import Command, add_common, client, print_json, table
from gpushare.cli.parser import Parser
from gpushare.cli.usage import replay
from gpushare.cli.usage.replay import hours, shown_hour
from gpushare.errors import FailedError, UsageError
from gpushare.paths import PRICES
from gpushare.text.units import format_size

if TYPE_CHECKING:
    from decimal import Decimal

    from gpushare.policy.usage.billing import Prices

_AGO = re.compile(r"([0-9]{1,6})([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_TIMES = ("guaranteed_ns", "borrowed_ns", "scavenged_ns", "lent_ns", "waited_ns")
_NUMBERS = (
    *(*_TIMES, "waited_owed_ns", "waited_limit_ns", "busy_ns"),
    *("memory_byte_s", "hosted_byte_s", "moved_out_bytes", "moved_in_bytes", "stalled_ns", "stalls"),
    *("waits", "reclaims", "launches"),
)
_ALL = frozenset(_NUMBERS)
_NAMES = {
    "tenant": ("tenant",),
    "grant": ("grant", "tenant"),
    "device": ("device", "tenant"),
    "hour": ("hour", "tenant"),
    "holder": ("tenant", "holder_tenant", "holder"),
}
_OF_HOLDERS = ("stalled_ns", "stalls")
_TITLES = ("GUARANTEED", "BORROWED", "SCAVENGED", "LENT", "WAITED", "MEMORY")
_BAR = 24
_INDENTED = 1000
"""Maximum number of JSON rows that are indented: a longer list is for programs, and would take a second to indent."""


def moment(text: str) -> int:
    """Parses `30d`, `12h`, `90m` ago, or an ISO 8601 date or time (default UTC); returns ns. Raises UsageError."""
    if match := _AGO.fullmatch(text.strip()):
        return time.time_ns() - int(match[1]) * _SECONDS[match[2]] * 10**9
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"{text!r} is no time: give 30d, 12h or 90m ago, or a date as 2026-11-01") from None
    when = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return max(0, int(when.timestamp() * 10**9))


def _add_span(parser: Parser) -> None:
    parser.option("--since", "T", "start: 30d, 12h or 90m ago, or 2026-11-01 in UTC (default 30d)", moment)
    parser.option("--until", "T", "end, written as --since (default now)", moment)


class UsageCommand(Command):
    """what tenants used, borrowed, lent and waited, and the cost

    Read from the ledger, which can be audited (verify) and replayed under other quotas (replay).
    """

    examples = (
        ("gpushare usage", "by tenant, over the last 30 days"),
        ("gpushare usage --since 7d --by device --format csv", "a week, by device, for a spreadsheet"),
        ("gpushare usage --since 2026-11-01 --prices prices.toml", "with the cost"),
        ("gpushare usage --since 1d --by holder", "who waited for memory, and for whose"),
        ("gpushare usage --since 3d --format svg --output usage.svg", "a chart of use over time"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        self._options(parser)
        verify = parser.verb(
            "verify",
            self._verify,
            "audit the ledger's hash chain and sums; names the first bad row",
            ("sudo gpushare usage verify", "the daemon's ledger"),
        )
        verify.option("--file", "FILE", "ledger file (default: the daemon's, which needs root)", Path)
        add_common(verify)
        other = parser.verb(
            "replay",
            replay.run,
            "replay the record under other quotas: who would have waited, what would have been idle",
            ("gpushare usage replay --tenants new.toml --since 30d", "before new.toml becomes tenants.toml"),
        )
        other.option("--tenants", "FILE", "quotas to replay under, in the format of tenants.toml", Path, required=True)
        _add_span(other)
        other.add_argument("--format", choices=("table", "json"), help="output format (default table)")
        add_common(other)

    def _options(self, parser: Parser) -> None:
        parser.add_argument(
            "--by",
            choices=tuple(_NAMES),
            default="tenant",
            help="what each row is for (default tenant)",
        )
        _add_span(parser)
        parser.option("--tenant", "T", "only this tenant and those below it (default all)")
        parser.add_argument(
            "--format",
            choices=("table", "csv", "json", "focus", "svg"),
            help="output format; svg: a chart of tenants over time (default table)",
        )
        parser.option("--output", "FILE", "file to write to (default stdout)", Path)
        parser.option("--prices", "FILE", f"price list (default {PRICES}, if it exists)", Path)
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        form = "json" if args.json else args.format or "table"
        if args.output is None:
            return self._print(args, form)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self._print(args, form)
        try:
            args.output.write_text(printed.getvalue(), encoding="utf-8")
        except OSError as error:
            raise FailedError(f"{args.output} cannot be written: {error.strerror}") from None
        return 0

    def _print(self, args: argparse.Namespace, form: str) -> int:
        if form == "svg":
            return self._picture(args)
        from gpushare.cli.usage import focus, prices

        cost = prices.load(args.prices)
        by: Any = "charge" if form == "focus" else args.by
        found: dict[str, Any] = {**client(args).usage(by=by, since=args.since, until=args.until, tenant=args.tenant)}
        rows = [row if row.keys() >= _ALL else {**dict.fromkeys(_NUMBERS, 0), **row} for row in found["rows"]]
        if form == "json":
            if cost is not None:
                rows = [{**row, "cost": str(_rounded(row, cost))} for row in rows]
                found["currency"] = cost.currency
            print_json({**found, "rows": rows}, indent=2 if len(rows) <= _INDENTED else None)
        elif form == "focus":
            focus.write(sys.stdout, {**found, "rows": rows}, cost, os.uname().nodename)
        elif form == "csv":
            _csv(rows, by, cost)
        else:
            _table(found, rows, by, cost)
        return 0

    def _picture(self, args: argparse.Namespace) -> int:
        from gpushare.cli.usage.picture import picture

        if args.by != "tenant":
            raise UsageError("a picture is of tenants over time: leave --by out")
        api = client(args)
        found = api.usage_slots(since=args.since, until=args.until)
        print(picture(found, args.tenant, api.node()["simulated"]), end="")
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
        return [shown_hour(row.get("begins_ns", 0)), row.get("tenant", "")]
    return [row.get(name, "") for name in _NAMES[by]]


def _cost(row: Any, cost: "Prices") -> "Decimal":
    from gpushare.policy.usage import billing

    return billing.cost(row, cost)


def _rounded(row: Any, cost: "Prices") -> Any:
    return round(_cost(row, cost), 6)


def _csv(rows: Sequence[Any], by: str, cost: "Prices | None") -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    if by == "holder":
        cost = None  # nobody pays for having waited
    numbers = _OF_HOLDERS if by == "holder" else _NUMBERS
    out.writerow([*_NAMES[by], *numbers, *(("cost", "currency") if cost else ())])
    for row in rows:
        priced = (_rounded(row, cost), cost.currency) if cost else ()
        out.writerow([*_named(row, by), *(row[name] for name in numbers), *priced])


def _table(found: Any, rows: Sequence[Any], by: str, cost: "Prices | None") -> None:
    if by == "holder":
        _holders(rows)
        return
    if not rows:
        print("nothing was used")
    else:
        titles = [*(name.upper() for name in _NAMES[by]), *_TITLES]
        lines = [
            [*_named(row, by), *[hours(row[name]) for name in _TIMES], _memory(row["memory_byte_s"])] for row in rows
        ]
        for title, shown in _OF_MOVES.items():
            texts = [shown(row) for row in rows]
            if any(texts):  # on most nodes nothing is ever moved
                titles.append(title)
                for line, text in zip(lines, texts, strict=True):
                    line.append(text or "-")
        if cost:
            titles.append(f"COST {cost.currency}")
            for line, row in zip(lines, rows, strict=True):
                line.append(f"{_cost(row, cost):.2f}")
        if sys.stdout.isatty() and shutil.get_terminal_size().columns >= 120:
            titles.append("USED")
            used = [sum(row[name] for name in _TIMES[:3]) for row in rows]
            most = max(1, *used)
            for line, whole in zip(lines, used, strict=True):
                line.append("█" * round(_BAR * whole / most))
        table(titles, lines)
        if cost:
            print(f"together {sum(_cost(row, cost) for row in rows):.2f} {cost.currency}")
    print(_devices(found["devices"]))


def _holders(rows: Sequence[Any]) -> None:
    """Who waited for memory of whom, the longest first."""
    if not rows:
        print("nobody waited for memory")
        return
    table(
        ["TENANT", "WAITED FOR", "GRANT", "STALLED", "TIMES"],
        [
            [
                row.get("tenant", ""),
                row.get("holder_tenant", "") or "(copy)",
                row.get("holder", "") or "-",
                hours(row["stalled_ns"]),
                str(row["stalls"]),
            ]
            for row in sorted(rows, key=lambda row: -row["stalled_ns"])
        ],
    )


def _memory(byte_s: int) -> str:
    """Returns memory over time as text, in GiB hours."""
    return f"{byte_s / (3600 << 30):.2f}GiBh" if byte_s else "-"


def _moved(row: Any) -> str:
    size = row["moved_out_bytes"] + row["moved_in_bytes"]
    return format_size(size) if size else ""


_OF_MOVES: dict[str, Callable[[Any], str]] = {
    "HOSTED": lambda row: _memory(row["hosted_byte_s"]) if row["hosted_byte_s"] else "",
    "MOVED": _moved,
    "STALLED": lambda row: hours(row["stalled_ns"]) if row["stalled_ns"] else "",
}
"""Columns that are shown where there is something in them."""


def _devices(spent: Any) -> str:
    wall = spent["wall_ns"]
    if not wall:
        return "devices: nothing is recorded"
    parts = [("used", spent["used_ns"]), ("idle", spent["idle_ns"]), ("switching", spent["switching_ns"])]
    parts += [("without a daemon", spent["missed_ns"])] if spent["missed_ns"] else []
    parts_of_time = ", ".join(f"{100 * ns / wall:.1f} % {name}" for name, ns in parts)
    if spent["idle_with_waiters_ns"]:
        parts_of_time += f" ({hours(spent['idle_with_waiters_ns'])} of it idle while grants waited)"
    return f"devices: {parts_of_time}; of {hours(wall)}"
