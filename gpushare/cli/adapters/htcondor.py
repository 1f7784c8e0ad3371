"""gpushare adapter htcondor"""

import argparse
import os

from gpushare.cli.command import Command, client
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

TURN_SECONDS = 10.0
"""Maximum wait for the end of the previous job in the same slot."""


class HtcondorAdapter(Command):
    """give HTCondor jobs slots of devices

    Without a command, prints devices in the format of condor_gpu_discovery; with one, runs it in the share of the
    job's slots.
    """

    examples = (
        ("gpushare adapter htcondor --slots 4", "each device listed four times, for GPU discovery"),
        ("gpushare adapter htcondor --slots 4 -- ./job", "in the job wrapper: the job in the share of its slots"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.option("--slots", "N", "slots of each device (default 1)", int, default=1)
        parser.option("--tenant", "T", "tenant that the shares belong to (default: default)", default=None)
        parser.add_argument(
            "argv",
            nargs=argparse.REMAINDER,
            metavar="-- CMD ...",
            help="the job's command, when called from a job wrapper",
        )

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.adapters.htcondor import ads
        from gpushare.cli.grants.run import start_in_turn
        from gpushare.cli.program import command, missing, replace

        if not 1 <= args.slots <= ads.SLOTS_MAX:
            raise UsageError(f"--slots {args.slots}: give 1 to {ads.SLOTS_MAX}")
        if not args.argv:
            print(ads.text(client(args).devices(), args.slots), end="")
            return 0
        argv = command(args.argv)
        assigned = os.environ.get("_CONDOR_AssignedGPUs", "")  # noqa: SIM112 - HTCondor's name
        if not assigned:
            return missing(argv) or replace(argv, os.environ)
        request = {**ads.share(assigned, args.slots), "tenant": args.tenant}
        return start_in_turn(client(args), request, argv, TURN_SECONDS)
