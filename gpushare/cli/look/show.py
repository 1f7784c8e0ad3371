"""gpushare devices | ps | top"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from gpushare.cli.command import Command, add_common, add_socket, client, print_json, say, say_each, whole
from gpushare.cli.look import columns, render
from gpushare.cli.look import grants as table
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

INTERVAL_SECONDS = 2.0
_REFRESHES = whole("a number of refreshes", 1, 10**9 - 1, "give 1 or more")
_NAMES_SECONDS, _NAMES_AGAIN_SECONDS = 0.3, 0.05
"""How long, at most, until the daemon has read what runs in grants that nobody has asked about before, and how often it
is asked meanwhile."""
_CLEAR = "\x1b[H\x1b[2J"
"""Moves the cursor home and clears the screen."""


class DevicesCommand(Command):
    """list devices, and how much of each is granted"""

    examples = (("gpushare devices", "a line for each"), ("gpushare devices --json", "with all known details"))

    def prepare_parser(self, parser: Parser) -> None:
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        daemon = client(args)
        devices = daemon.devices()
        if args.json:
            print_json({"devices": devices})
            return 0
        if daemon.node()["simulated"]:
            say("These devices are simulated: no NVIDIA GPU is used.")
        render.devices(devices)
        return 0


class PsCommand(Command):
    """list grants, with each one's share and use

    Those that got most in the last second come first. On a terminal, columns that say nothing or do not fit are left
    out, and idle grants are dimmed.
    """

    examples = (
        ("gpushare ps", "each grant's share, and what it got in the last second"),
        ("gpushare ps --sort memory --tenant research", "a team's grants, by the memory they hold"),
        ("gpushare ps -o grant,pod,got,command", "these columns, for all grants"),
        ("gpushare ps --all --json", "with recently ended grants, as JSON"),
        ("gpushare ps --watch --interval 10", "every 10 s, also into a pipe"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.flag("--all", "also recently ended grants, and why they ended")
        parser.option("--tenant", "T", "only grants of this tenant and of those below it (default all)")
        parser.option("--sort", "COL", "column to sort by; -COL: in reverse (default got)", columns.order, signed=True)
        parser.option(
            "--output",
            "COL,COL",
            f"columns to show: {', '.join(columns.BY_NAME)} (default: what fits)",
            columns.parse,
            short="-o",
        )
        parser.add_argument("-q", "--quiet", action="store_true", help="print only the grants' ids")
        parser.flag("--watch", "repeat; with --json, one object per line")
        _add_pace(parser)
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        if not args.watch and (args.interval, args.count) != (INTERVAL_SECONDS, 0):
            raise UsageError("--interval and --count are of --watch: give that too")
        if args.json + args.quiet + (args.output is not None) > 1:
            raise UsageError("--json, --quiet and --output are three ways to print: give one of them")
        daemon = client(args)
        shown = set(columns.DEFAULT if args.output is None else (column.name for column in args.output))
        needs_names = not (args.watch or args.quiet) and bool(shown & {"program", "command"})

        def show() -> None:
            found = daemon.grants(ended=args.all)
            deadline = time.monotonic() + (_NAMES_SECONDS if needs_names else 0)
            while time.monotonic() < deadline and any(_is_of(one, args.tenant) and _is_unnamed(one) for one in found):
                time.sleep(_NAMES_AGAIN_SECONDS)
                found = daemon.grants(ended=args.all)
            grants = [grant for grant in found if _is_of(grant, args.tenant)]
            if args.sort is not None or not args.json:
                grants = table.ordered(grants, *(args.sort or ()))
            if args.json:
                print_json({"grants": grants}, None if args.watch else 2)
                return
            if args.watch:
                _begin_again()
            if args.quiet:
                say_each(grant["id"] for grant in grants)
            else:
                table.show(grants, args.output, others=found)
            if args.watch and not _redraws():
                print()

        return _again(args.interval, args.count if args.watch else 1, show)


def _is_unnamed(grant: Any) -> bool:
    """Whether its program is read because of this question, and known to the next."""
    return bool(grant["processes"]) and not grant["workload"]["program"]


def _is_of(grant: Any, tenant: str | None) -> bool:
    return tenant is None or f"{grant['tenant']}/".startswith(f"{tenant}/")


class TopCommand(Command):
    """live full-screen view of devices, grants and tenants"""

    examples = (
        ("gpushare top", "? shows the keys; docs/guides/top.md explains the columns"),
        ("gpushare top --interval 5 --count 12", "for one minute"),
        ("gpushare top --plain", "only the table"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        _add_pace(parser)
        parser.flag("--plain", "print the table even where the full-screen view is available")
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        daemon = client(args)
        if not args.plain and _can_draw():
            from gpushare.tui import app  # here: it takes longer to import than other verbs take to run

            return app.run(daemon, args.interval, args.count)

        def show() -> None:
            grants, devices = daemon.grants(), daemon.devices()
            _begin_again()
            render.devices(devices)
            print()
            table.show(table.ordered(grants))

        return _again(args.interval, args.count, show)


def _add_pace(parser: Parser) -> None:
    parser.option(
        "--interval", "S", "seconds between refreshes (default %(default)g)", _interval, default=INTERVAL_SECONDS
    )
    parser.option("--count", "N", "stop after N refreshes (default never)", _REFRESHES, default=0)


def _again(interval: float, count: int, show: Callable[[], None]) -> int:
    """Calls `show` every `interval` seconds, `count` times or for ever (0)."""
    shown = 0
    while True:
        show()
        sys.stdout.flush()
        shown += 1
        if shown == count:
            return 0
        time.sleep(interval)


def _redraws() -> bool:
    """Returns whether each table replaces the one before it on the screen."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _begin_again() -> None:
    if _redraws():
        sys.stdout.write(_CLEAR)


def _can_draw() -> bool:
    """Returns whether there is a full screen for Textual, which reads from stdin and draws on stderr."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    whole = all(stream.isatty() for stream in streams) and os.environ.get("TERM", "dumb") != "dumb"
    return whole and (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise UsageError(f"{text!r} is not an interval: give 0.1 to 3600 seconds")
    return seconds
