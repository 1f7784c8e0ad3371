"""gpushare adapter ray"""

import argparse

from gpushare.cli.command import Command, client
from gpushare.cli.grants.grant import add_share_options, share_request
from gpushare.cli.parser import Parser

TURN_SECONDS = 30.0
"""Maximum wait for the end of the previous worker: Ray reassigns a worker's resources before its process has ended."""


class RayAdapter(Command):
    """run a Ray worker in its own grant (called by gpushare.adapters.ray.plugin)"""

    examples = (("gpushare adapter ray --memory 4GiB --time 30% -- python3 worker.py", "as the plugin calls it"),)

    def prepare_parser(self, parser: Parser) -> None:
        add_share_options(parser)
        parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the worker's command")

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.cli.grants.run import start_in_turn
        from gpushare.cli.program import command

        return start_in_turn(client(args), share_request(args), command(args.argv), TURN_SECONDS)
