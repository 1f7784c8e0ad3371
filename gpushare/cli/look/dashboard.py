"""gpushare dashboard"""

import argparse

from gpushare.cli.command import add_socket
from gpushare.cli.parser import Parser

PORT = 9419


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no port: give a number up to 65535, or 0 for any")
    return int(text)


class DashboardCommand:
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
        parser.add_argument(
            "--port", type=_port, default=PORT, metavar="N", help=f"port on loopback (default {PORT}; 0: any free port)"
        )
        parser.add_argument(
            "--allow-changes",
            action="store_true",
            help="let the page release and resize grants, as the user who starts it (not root)",
        )
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        from gpushare.dashboard.main import serve
        from gpushare.dashboard.sources import sources

        serve(sources(args.node, args.socket), args.port, changes=args.allow_changes)
        return 0
