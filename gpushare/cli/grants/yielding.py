"""gpushare yield."""

import argparse
import os

from gpushare.cli.command import Command
from gpushare.cli.parser import Parser
from gpushare.errors import FailedError
from gpushare.paths import YIELD


class YieldCommand(Command):
    """say, inside a share, that its programs are idle

    Memory that the share lends may then leave the device at once, as if they had been idle for long, and comes back
    with the next call that needs it. Needs no node socket and no privilege, and does nothing where there is no share:
    a shell may call it at each prompt. In a container it is also there as /run/gpushare/lib/gpushare-yield.
    """

    examples = (
        ("gpushare yield", "idle from now on; the memory moves when others need the room"),
        ("gpushare yield --now", "the memory moves now"),
        ("gpushare yield --back", "it comes back ahead of the next call that needs it"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--now", action="store_true", help="move it to host memory now (default: when needed)")
        which.add_argument("--back", action="store_true", help="no longer idle: move it back to the device")

    def run(self, args: argparse.Namespace) -> int:
        option = ["--now"] if args.now else ["--back"] if args.back else []
        try:
            pid = os.posix_spawn(YIELD, [os.fspath(YIELD), *option], os.environ)
        except OSError as error:
            raise FailedError(f"{YIELD} cannot be started ({error.strerror}): install again") from None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
