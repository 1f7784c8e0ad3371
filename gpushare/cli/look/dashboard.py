"""gpushare dashboard"""

import argparse
from pathlib import Path

from gpushare.cli.command import Command, add_socket, whole
from gpushare.cli.parser import Parser
from gpushare.paths import PRICES

PORT = 9419


_port = whole("a port", 0, 65535, "give a number up to 65535, or 0 for any")


class DashboardCommand(Command):
    """serve a live web page about one or more nodes

    Listens on loopback and prints the page's URL, which contains an access token.
    """

    examples = (
        ("gpushare dashboard", "prints the page's URL"),
        ("gpushare dashboard --node a=/run/gpushare/node.sock --node b=ssh:b", "this node and another on one page"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument(
            "--node",
            action="append",
            default=[],
            metavar="NAME=WHERE",
            help="a node to show, by its socket or as ssh:HOST[:/PATH] (repeatable; default: this node)",
        )
        parser.option("--port", "N", f"port on loopback (default {PORT}; 0: any free port)", _port, default=PORT)
        parser.option("--prices", "FILE", f"price list for its usage section (default {PRICES}, if it exists)", Path)
        parser.flag("--allow-changes", "let the page release and resize grants, as the user who starts it (not root)")
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.cli import prices
        from gpushare.dashboard.main import serve
        from gpushare.dashboard.sources import sources

        priced = prices.load(args.prices)  # now: root's dashboard gives up its rights
        serve(sources(args.node, args.socket), args.port, priced, changes=args.allow_changes)
        return 0
