"""gpushare daemon."""

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.cli.command import Command, simulated_devices
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

if TYPE_CHECKING:
    from gpushare.daemon.timing import Timing


def _directory(text: str) -> Path:
    if not text.strip():
        raise UsageError("the directory's name is empty")
    return Path(text)


def _timing(text: str) -> "Timing":
    from gpushare.daemon.timing import Timing

    return Timing.parse(text)


class DaemonCommand(Command):
    """run this node's daemon: devices, grants, ledger"""

    examples = (
        ("gpushare daemon", "this machine's devices, configured by /etc/gpushare/gpushare.toml"),
        ("gpushare daemon --simulate 2x16GiB", "two simulated devices of 16 GiB each; needs no GPU"),
        (
            "gpushare daemon --simulate 1x8GiB --state-dir /tmp/node",
            "alongside another daemon: all its files are in that directory",
        ),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.epilog = "SIGHUP (`systemctl reload gpushare`) rereads tenants.toml; from a terminal it ends the daemon"
        parser.option("--config", "FILE", "configuration file (default /etc/gpushare/gpushare.toml)", Path)
        parser.option(
            "--simulate",
            "NxSIZE",
            "serve N simulated devices with SIZE of memory each, as 2x16GiB (default: real ones)",
            simulated_devices,
        )
        parser.option(
            "--state-dir", "DIR", "keep all run-time files below DIR (default: their usual places)", _directory
        )
        parser.option("--socket", "PATH", "the socket to listen on (default /run/gpushare/node.sock)", _directory)
        parser.add_argument(
            "--log-level",
            choices=("debug", "info", "warning", "error"),
            help="lowest level logged to stderr (default info); debug logs every decision",
        )

        parser.option(
            "--timing",
            "NAME=SECONDS,...",
            "for tests: other intervals and deadlines than the default ones, as health=0.1,tick=0.5",
            _timing,
        )

    def run(self, args: argparse.Namespace) -> int:
        if not os.isatty(0):
            # Whoever asks a daemon that starts to reread its files does not mean to end it: it has yet to read them.
            signal.signal(signal.SIGHUP, lambda *_: None)
        from gpushare.daemon import app

        return app.main(args.config, args.simulate, args.state_dir, args.socket, args.log_level, args.timing)
