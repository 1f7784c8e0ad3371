"""gpushare adapter ..."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from gpushare.cli.command import add_socket, add_verb, client

NRI_SOCKET = Path("/var/run/nri/nri.sock")


def _end(_signal: int, _frame: object) -> NoReturn:
    sys.exit(0)


class AdapterCommand:
    """serve an engine or a scheduler as its plugin"""

    name = "adapter"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(metavar="VERB", required=True)
        nri = add_verb(verbs, "nri", "give containers of containerd (1.7 and later) and CRI-O their shares (root)")
        nri.set_defaults(verb=self._nri)
        nri.add_argument(
            "--nri-socket", type=Path, metavar="PATH", default=NRI_SOCKET, help=f"the engine's (default {NRI_SOCKET})"
        )
        add_socket(nri)

    def run(self, args: argparse.Namespace) -> int:
        result: int = args.verb(args)
        return result

    def _nri(self, args: argparse.Namespace) -> int:
        import http.client  # noqa: F401 - not when the first container waits
        import logging

        from gpushare.nri.plugin import Plugin

        logging.basicConfig(level=logging.INFO, format="%(message)s")
        signal.signal(signal.SIGTERM, _end)
        Plugin(client(args), args.nri_socket).run()
        return 0
