"""gpushare demo."""

import argparse

from gpushare.cli.command import Command, add_json, print_json, whole
from gpushare.cli.parser import Parser

_seconds = whole("a number of seconds", 2, 600)


class DemoCommand(Command):
    """show two containers sharing one device: live table, verdict

    Runs real containers under runc on this machine's device, or on a simulated one if there is no NVIDIA driver, and
    checks shares, lending, reclaim and limits. Needs root; leaves nothing behind. Exit status 0 if all claims hold.
    With `--scenario teams` a phase in which other programs keep the processors busy is measured again, up to three
    times in all; what cannot be judged then makes the verdict BUSY.
    """

    examples = (
        ("sudo gpushare demo", "two containers on one device"),
        ("sudo gpushare demo --scenario teams", "teams with quotas on eight simulated devices, about a minute"),
        ("sudo gpushare demo --scenario notebooks", "notebooks and a trainer with more memory than the device has"),
        ("sudo gpushare demo --phase-seconds 2 --json", "shorter, with the result as JSON"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument(
            "--scenario",
            choices=("containers", "teams", "notebooks"),
            default="containers",
            help="containers: two under runc on one device (default); teams: quotas, lending and reclaim on eight"
            " simulated devices; notebooks: idle memory is lent and comes back, on one",
        )
        parser.option(
            "--phase-seconds",
            "S",
            "length of each measurement, 2 to 600 seconds (default 5 for containers, 2 for teams, 3 for notebooks)",
            _seconds,
        )
        add_json(parser)

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.demo import screen
        from gpushare.demo.main import SCENARIOS

        value, claims = SCENARIOS[args.scenario](args.phase_seconds, quiet=args.json)
        if args.json:
            print_json(value)
        else:
            screen.verdict(claims)
        return 0 if all(claim.ok for claim in claims) else 1
