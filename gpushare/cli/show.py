"""gpushare devices | ps | top"""

import argparse
import sys
import time

from gpushare.cli import render
from gpushare.cli.command import add_json, add_socket, checked, client, print_json, table
from gpushare.errors import UsageError


class DevicesCommand:
    """devices of this node, and how much of them is granted"""

    name = "devices"
    examples = (("gpushare devices", "a line for each"), ("gpushare devices --json", "with all that is known of them"))

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        daemon = client(args)
        devices = daemon.devices()
        if args.json:
            print_json({"devices": devices})
            return 0
        if daemon.node()["simulated"]:
            print("These devices are simulated: no NVIDIA GPU is used.")
        render.devices(devices)
        return 0


class PsCommand:
    """grants with their use against their share"""

    name = "ps"
    examples = (
        ("gpushare ps", "who has what share, and what it got in the last second"),
        ("gpushare ps --all --json", "with the latest that have ended, for programs"),
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--all", action="store_true", help="also the latest that have ended")
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        grants = client(args).grants(ended=args.all)
        if args.json:
            print_json({"grants": grants})
        else:
            render.grants(grants)
        return 0


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise UsageError(f"{text!r} is not an interval: give 0.1 to 3600 seconds")
    return seconds


class TopCommand:
    """ps, refreshed at an interval"""

    name = "top"
    examples = (("gpushare top", "each second"), ("gpushare top --interval 5 --count 12", "a minute, then it ends"))

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--interval",
            type=checked(_interval),
            default=1.0,
            metavar="S",
            help="seconds between refreshes (default 1)",
        )
        parser.add_argument(
            "--count", type=checked(_count), default=0, metavar="N", help="stop after N refreshes (default never)"
        )
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        daemon = client(args)
        shown = 0
        live = sys.stdout.isatty()
        while True:
            grants, devices = daemon.grants(), daemon.devices()
            if live:
                sys.stdout.write("\x1b[H\x1b[2J")  # home, clear
            render.devices(devices)
            print()
            table(render.GRANT_TITLES, render.grant_rows(grants))
            render.grant_notices(grants)
            sys.stdout.flush()
            shown += 1
            if shown == args.count:
                return 0
            time.sleep(args.interval)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{text!r} is not a number of refreshes: give 1 or more")
    return int(text)
