"""gpushare run."""

import argparse
import contextlib
import os
import shutil
import signal
import sys
from typing import NoReturn

from gpushare.cli.command import add_json, add_socket, client, print_json
from gpushare.cli.grant import add_share_options, share_request
from gpushare.client import Client
from gpushare.errors import GpushareError, UnreachableError, UsageError
from gpushare.inject.process import merge

# The statuses that env, timeout and container engines use for failures of their own.
EXIT_GPUSHARE = 125
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

# Time to live of the reservation. The bind follows in one round trip; if this process is killed in between, the share
# comes back after this time.
RESERVE_SECONDS = 10


class RunCommand:
    """run a command with a share of a device"""

    name = "run"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = (
            "exit status: the command's own; 125 when gpushare failed or refused, 126 or 127 when the command cannot "
            "be run or found, 2 for a malformed request, 4 when you may not talk to the daemon"
        )
        add_share_options(parser)
        add_json(parser)
        add_socket(parser)
        parser.add_argument(
            "argv", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command and its arguments"
        )

    def run(self, args: argparse.Namespace) -> int:
        argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
        if not argv:
            raise UsageError("no command: write it behind --")
        if shutil.which(argv[0]) is None:
            found = os.path.exists(argv[0]) and "/" in argv[0]  # noqa: PTH110 - a name, not yet a path
            print(f"gpushare: {argv[0]}: {'not executable' if found else 'command not found'}", file=sys.stderr)
            return EXIT_NOT_EXECUTABLE if found else EXIT_NOT_FOUND
        daemon = client(args)
        try:
            _start(daemon, args, argv)
        except GpushareError as error:
            status = _status(daemon, error)
            if args.json:
                print_json({"error": {"code": error.code, "message": str(error)}, "exit_status": status})
            print(f"gpushare: {error}", file=sys.stderr)
            return status


def _start(daemon: Client, args: argparse.Namespace, argv: list[str]) -> NoReturn:
    """Replaces this process by the command. Where that fails, releases the grant and raises."""
    grant = daemon.create(**share_request(args), ttl_seconds=RESERVE_SECONDS)
    try:
        binding = daemon.bind(grant["id"], "process")
        # Python ignores these, and an ignored signal stays ignored in the command.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        os.execvpe(argv[0], argv, merge(os.environ, binding["env"]))  # noqa: S606 - it is the user's
    except BaseException as error:
        # A grant that is bound already is refused here, and ends with this process.
        with contextlib.suppress(GpushareError):
            daemon.release(grant["id"])
        if isinstance(error, OSError):
            raise GpushareError(f"{argv[0]} cannot be run: {error.strerror}") from None
        raise


def _status(daemon: Client, error: GpushareError) -> int:
    if isinstance(error, UsageError):
        return error.exit_code
    if isinstance(error, UnreachableError) and _not_allowed(daemon):
        return error.exit_code
    return EXIT_GPUSHARE


def _not_allowed(daemon: Client) -> bool:
    try:
        daemon.path.stat()
    except PermissionError:
        return True
    except OSError:
        return False
    return not os.access(daemon.path, os.W_OK)
