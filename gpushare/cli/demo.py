"""gpushare demo."""

import argparse

from gpushare.cli.command import add_json, checked, print_json
from gpushare.errors import UsageError


def _seconds(text: str) -> float:
    if not text.isascii() or not text.isdecimal() or not 2 <= int(text) <= 600:
        raise UsageError(f"{text!r} is not a number of seconds: give 2 to 600")
    return float(text)


class DemoCommand:
    """two real containers on one device: shares, lending, reclaim, the memory limit; with a verdict"""

    name = "demo"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--phase-seconds", type=checked(_seconds), default=5.0, metavar="S", help="of each measurement"
        )
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.demo import screen
        from gpushare.demo.main import run

        device, facts, claims = run(args.phase_seconds, quiet=args.json)
        if args.json:
            print_json(screen.as_json(device, facts, claims))
        else:
            screen.verdict(claims)
        return 0 if all(claim.ok for claim in claims) else 1
