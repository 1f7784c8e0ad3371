"""gpushare adapter nri"""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from gpushare.cli.command import Command, client
from gpushare.cli.parser import Parser

NRI_SOCKET = Path("/var/run/nri/nri.sock")


def _end(_signal: int, _frame: object) -> NoReturn:
    sys.exit(0)


class NriAdapter(Command):
    """give containers their shares under containerd (1.7 and later) and CRI-O (root)"""

    examples = (("sudo gpushare adapter nri", "as gpushare-nri.service runs it"),)

    def prepare_parser(self, parser: Parser) -> None:
        parser.option(
            "--nri-socket", "PATH", f"the engine's NRI socket (default {NRI_SOCKET})", Path, default=NRI_SOCKET
        )

    def run(self, args: argparse.Namespace) -> int:
        import http.client  # noqa: F401 - imported now, not while the first container waits
        import logging

        from gpushare.adapters.nri.plugin import Plugin

        logging.basicConfig(level=logging.INFO, format="%(message)s")
        signal.signal(signal.SIGTERM, _end)
        Plugin(client(args), args.nri_socket).run()
        return 0
