"""gpushare usage"""

import argparse
import contextlib
import csv
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare.cli.command import Command, add_common, client, print_json, table
from gpushare.cli.parser import Parser
from gpushare.cli.usage import replay
from gpushare.cli.usage.span import add_span, query, slots
from gpushare.errors import FailedError, UsageError
from gpushare.paths import PRICES
from gpushare.text import calendar

if TYPE_CHECKING:
    from gpushare.policy.usage.bill import Asked

_BYS = ("tenant", "grant", "device", "hour", *calendar.PERIODS, "holder", "origin")
_BAR = 24
_INDENTED = 1000
"""Maximum number of JSON rows that are indented: a longer list is for programs, and would take a second to indent."""


class UsageCommand(Command):
    """what tenants used, borrowed, lent and waited, and the cost

    Read from the ledger, which can be audited (verify) and replayed under other quotas (replay).
    """

    examples = (
        ("gpushare usage", "by tenant, over the last 30 days"),
        ("gpushare usage --since 7d --by device --format csv", "a week, by device, for a spreadsheet"),
        (
            "gpushare usage --since last-month --until this-month --by week",
            "last month's weeks, in local time",
        ),
        ("gpushare usage --since 2026-11 --prices prices.toml", "with the cost"),
        ("gpushare usage --since 1d --by holder", "who waited for memory, and for whose"),
        ("gpushare usage --since 7d --by origin", "by the machine whose programs used the devices"),
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
        add_span(other)
        other.add_argument("--format", choices=("table", "json"), help="output format (default table)")
        add_common(other)

    def _options(self, parser: Parser) -> None:
        parser.add_argument(
            "--by",
            choices=_BYS,
            metavar="WHAT",
            default="tenant",
            help=f"what each row is for: {', '.join(_BYS)} (default tenant)",
        )
        add_span(parser)
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
        from gpushare.cli import prices
        from gpushare.cli.usage import focus
        from gpushare.policy.usage import bill

        asked = bill.Asked(args.by, prices.load(args.prices), args.tz)
        by = "charge" if form == "focus" else args.by
        found: dict[str, Any] = {**client(args).usage(tenant=args.tenant, **query(args, by))}
        rows = [{**dict.fromkeys(bill.NUMBERS, 0), **row} for row in found["rows"]]
        if form == "json":
            if asked.prices is not None:
                rows = [{**row, "cost": bill.exact(row, asked.prices)} for row in rows]
                found["currency"] = asked.prices.currency
            print_json({**found, "rows": rows}, indent=2 if len(rows) <= _INDENTED else None)
        elif form == "focus":
            focus.write(sys.stdout, {**found, "rows": rows}, asked.prices, os.uname().nodename)
        elif form == "csv":
            csv.writer(sys.stdout, lineterminator="\n").writerows(bill.records(found, rows, asked))
        elif args.by == "holder":
            _holders(rows)
        else:
            _table(found, rows, asked)
        return 0

    def _picture(self, args: argparse.Namespace) -> int:
        from gpushare.cli.usage.picture import picture

        if args.by != "tenant":
            raise UsageError("a picture is of tenants over time: leave --by out")
        api = client(args)
        found = api.usage_slots(**slots(args))
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


def _table(found: Any, rows: Sequence[Any], asked: "Asked") -> None:
    from gpushare.policy.usage import bill

    if not rows:
        print("nothing was used")
    else:
        made = bill.table(rows, asked)
        if sys.stdout.isatty() and shutil.get_terminal_size().columns >= 120:
            made.titles.append("")
            most = max(1, *made.used)
            for line, ns in zip(made.rows, made.used, strict=True):
                line.append("█" * round(_BAR * ns / most))
            made.total.append("")
        table(made.titles, [*made.rows, made.total])
    print(bill.devices(found["devices"], asked.prices))
    if asked.prices is None:
        print(bill.hint(PRICES))


def _holders(rows: Sequence[Any]) -> None:
    """Who waited for memory of whom, the longest first."""
    from gpushare.text import amounts

    if not rows:
        print("nobody waited for memory")
        return
    shown = amounts.unit(row["stalled_ns"] for row in rows)
    table(
        ["TENANT", "WAITED FOR", "GRANT", "STALLED", "TIMES"],
        [
            [
                row.get("tenant", ""),
                row.get("holder_tenant", "") or "(copy)",
                row.get("holder", "") or "-",
                shown.text(row["stalled_ns"]),
                str(row["stalls"]),
            ]
            for row in sorted(rows, key=lambda row: -row["stalled_ns"])
        ],
    )
