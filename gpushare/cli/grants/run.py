"""gpushare run."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from gpushare.cli.command import Command, add_common, client, is_closed_to_user, print_json, say
from gpushare.cli.grants.grant import add_share_options, add_wait, say_rounding, share_request
from gpushare.cli.parser import Parser
from gpushare.cli.program import EXIT_GPUSHARE, command, missing, replace
from gpushare.client import AWAY_SECONDS, Client, new_asker
from gpushare.errors import GpushareError, RefusedError, UnreachableError, UsageError

# Time to live of the reservation. The bind follows in one round trip; if this process is killed in between, the share
# comes back after this time.
RESERVE_SECONDS = 10
# Interval between attempts while the previous user of the place is ending.
AGAIN_SECONDS = 0.2


class RunCommand(Command):
    """run a command with a share of a device"""

    examples = (
        ("gpushare run --memory 8GiB --time 30% -- python3 train.py", "8 GiB, 30 % of the time, and what is idle"),
        ("gpushare run --memory 4GiB --time 0 -- python3 batch.py", "only the time that others leave idle"),
        (
            "gpushare run --memory 35% --time 50% --time-limit 50% -- ./bench",
            "half of the time, and no more even when it is idle",
        ),
        ("gpushare run --grant g-1a2b3c -- python3 infer.py", "in a grant that was made with --keep"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.epilog = (
            "exit status: the command's own; 125 if gpushare failed or refused, 126 or 127 if the command cannot be "
            "run or found, 2 for a malformed request, 4 if you are not allowed to talk to the daemon. A command that "
            "root runs has a mount namespace of its own: what it mounts is not seen outside"
        )
        add_share_options(parser, instead="--grant")
        parser.option(
            "--grant", "ID", "run in this grant, made with --keep (default: a new one, which ends with the command)"
        )
        add_wait(parser)
        add_common(parser)
        parser.add_argument(
            "argv", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command and its arguments"
        )

    def run(self, args: argparse.Namespace) -> int:
        argv = command(args.argv)
        if status := missing(argv):
            return status
        daemon = client(args).patient(AWAY_SECONDS)
        try:
            if args.grant is not None:
                _replace(daemon, argv, daemon.bind(args.grant, "process"))
            if args.memory is None or args.time is None:
                raise UsageError("give --memory and --time, or --grant ID (see `gpushare run --help`)")
            start(daemon, {**share_request(args), "wait_seconds": args.wait}, argv)
        except GpushareError as error:
            status = _status(daemon, error)
            if args.json:
                print_json({"error": {"code": error.code, "message": str(error)}, "exit_status": status})
            say(f"gpushare: {error}", sys.stderr)
            return status


def start_in_turn(daemon: Client, request: dict[str, Any], argv: list[str], seconds: float) -> int:
    """As `start`, for a scheduler whose previous job in the same place may still be ending: retries refusals and an
    unreachable daemon for `seconds`. Returns, with the exit status, only if the command does not start."""
    if status := missing(argv):
        return status
    deadline, asker = time.monotonic() + seconds, new_asker()
    while True:
        patience = {"wait_seconds": max(0.0, deadline - time.monotonic()), "asker": asker}
        try:
            start(daemon, {**request, **patience}, argv)
        except GpushareError as error:
            passing = isinstance(error, (RefusedError, UnreachableError))
            if not passing or time.monotonic() >= deadline:
                say(f"gpushare: {error}", sys.stderr)
                return EXIT_GPUSHARE
            time.sleep(AGAIN_SECONDS)


def _replace(daemon: Client, argv: list[str], binding: Mapping[str, Any]) -> NoReturn:
    from gpushare.inject.process import merge

    environment = merge(os.environ, binding["env"], binding["unset"])
    if os.geteuid() == 0:
        from gpushare.inject import apart  # here, since it loads ctypes, which other users' commands do not need

        apart.enter(Path(binding["dir"]), environment, daemon.path)
    replace(argv, environment)


def start(daemon: Client, request: dict[str, Any], argv: list[str]) -> NoReturn:
    """Replaces this process by the command, in a new grant. `request`: arguments of Client.create. If that fails,
    releases the grant and raises."""
    grant = daemon.create(**request, ttl_seconds=RESERVE_SECONDS)
    try:
        binding = daemon.bind(grant["id"], "process")
        say_rounding(grant, request.get("memory"))
        _replace(daemon, argv, binding)
    except BaseException:
        # If the grant is bound already, the release is refused, and the grant ends with this process.
        with contextlib.suppress(GpushareError):
            daemon.release(grant["id"])
        raise


def _status(daemon: Client, error: GpushareError) -> int:
    if isinstance(error, UsageError):
        return error.exit_code
    if isinstance(error, UnreachableError) and is_closed_to_user(daemon.path):
        return error.exit_code
    return EXIT_GPUSHARE
