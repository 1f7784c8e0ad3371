"""gpushare devices | ps | top"""

import argparse
import os
import sys
import time
from collections.abc import Callable

from gpushare.cli import render
from gpushare.cli.command import add_json, add_socket, checked, client, print_json, say, table
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

INTERVAL_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J"
"""Moves the cursor home and clears the screen."""
_NO_VIEW = "the whole-screen view needs Textual: pip install 'gpushare[tui]'; --plain is this table without this line"


class DevicesCommand:
    """devices of this node, and how much of them is granted"""

    examples = (("gpushare devices", "a line for each"), ("gpushare devices --json", "with all that is known of them"))

    def prepare_parser(self, parser: Parser) -> None:
        add_json(parser)
        add_socket(parser)

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


class PsCommand:
    """grants with their use against their share"""

    examples = (
        ("gpushare ps", "who has what share, and what it got in the last second"),
        ("gpushare ps --all --json", "with the latest that have ended, for programs"),
        ("gpushare ps --watch --interval 10", "again each 10 s, also into a pipe"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument("--all", action="store_true", help="also the latest that have ended")
        parser.add_argument("--watch", action="store_true", help="again and again; with --json an object a line")
        _add_pace(parser)
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        if not args.watch and (args.interval, args.count) != (INTERVAL_SECONDS, 0):
            raise UsageError("--interval and --count are of --watch: give that too")
        daemon = client(args)

        def show() -> None:
            grants = daemon.grants(ended=args.all)
            if args.json:
                print_json({"grants": grants}, None if args.watch else 2)
                return
            if args.watch:
                _begin_again()
            render.grants(grants)
            if args.watch and not _redraws():
                print()

        return _again(args.interval, args.count if args.watch else 1, show)


class TopCommand:
    """devices, grants and tenants on a whole screen, live"""

    examples = (
        ("gpushare top", "? shows its keys; docs/top.md says what the columns mean"),
        ("gpushare top --interval 5 --count 12", "a minute, then it ends"),
        ("gpushare top --plain", "the table alone"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        _add_pace(parser)
        parser.add_argument("--plain", action="store_true", help="the table, also where there is a whole screen")
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        daemon = client(args)
        missing = False
        if not args.plain and _can_draw():
            try:
                from gpushare.tui import app
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] not in ("textual", "rich"):
                    raise
                missing = True
            else:
                return app.run(daemon, args.interval, args.count)

        def show() -> None:
            grants, devices = daemon.grants(), daemon.devices()
            _begin_again()
            render.devices(devices)
            print()
            table(render.GRANT_TITLES, render.grant_rows(grants))
            render.grant_notices(grants)

        try:
            return _again(args.interval, args.count, show)
        finally:
            if missing:  # at the end, since each table clears the screen
                print(f"gpushare: {_NO_VIEW}", file=sys.stderr)


def _add_pace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=checked(_interval),
        default=INTERVAL_SECONDS,
        metavar="S",
        help="seconds between refreshes (default %(default)g)",
    )
    parser.add_argument(
        "--count", type=checked(_count), default=0, metavar="N", help="stop after N refreshes (default never)"
    )


def _again(interval: float, count: int, show: Callable[[], None]) -> int:
    """Shows it each `interval` seconds, `count` times or for ever (0)."""
    shown = 0
    while True:
        show()
        sys.stdout.flush()
        shown += 1
        if shown == count:
            return 0
        time.sleep(interval)


def _redraws() -> bool:
    """Whether the next table takes the place of the last one."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _begin_again() -> None:
    if _redraws():
        sys.stdout.write(_CLEAR)


def _can_draw() -> bool:
    """Whether there is a whole screen, which Textual reads from and draws on by stdin and stderr."""
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


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} is not a number of refreshes: give 1 or more")
    return int(text)
