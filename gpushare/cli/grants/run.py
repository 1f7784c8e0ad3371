"""gpushare run."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpushare.cli.command import (
    Command,
    add_common,
    client,
    is_closed_to_user,
    print_json,
    say,
    simulated_devices,
)
from gpushare.cli.grants.away import add_elsewhere, check_elsewhere
from gpushare.cli.grants.grant import add_share_options, add_wait, say_rounding, share_request
from gpushare.cli.parser import Parser
from gpushare.cli.program import EXIT_GPUSHARE, command, missing, replace
from gpushare.client import AWAY_SECONDS, Client, new_asker
from gpushare.errors import GpushareError, RefusedError, UnreachableError, UsageError
from gpushare.paths import PARENT_ENV, SOCKET_ENV

if TYPE_CHECKING:
    from gpushare.cli.grants.attended import Attended

# Time to live of the reservation. The bind follows in one round trip; if this process is killed in between, the share
# comes back after this time.
RESERVE_SECONDS = 10
# Interval between attempts while the previous user of the place is ending.
AGAIN_SECONDS = 0.2
DEVICES = "1x16GiB"
"""What --simulate makes if it is not told."""
_WHOLE_MILLI = 1000


class RunCommand(Command):
    """run a command with a share of a device"""

    examples = (
        (
            "gpushare run --simulate 1x16GiB --memory 4GiB -- python3 train.py",
            "on a simulated device of its own: needs no GPU, no daemon and no root",
        ),
        ("gpushare run --memory 8GiB --time 30% -- python3 train.py", "8 GiB, 30 % of the time, and what is idle"),
        ("gpushare run --memory 4GiB --time 0 -- python3 batch.py", "only the time that others leave idle"),
        (
            "gpushare run --memory 35% --time 50% --time-limit 50% -- ./bench",
            "half of the time, and no more even when it is idle",
        ),
        ("gpushare run --report --memory 8GiB --time 30% -- ./bench", "says at the end what it got and waited"),
        ("gpushare run --grant g-1a2b3c -- python3 infer.py", "in a grant that was made with --keep"),
        (
            "gpushare run --on gpu1 --memory 8GiB --time 30% -- python3 train.py",
            "the program runs on gpu1, by ssh, as fast as any there",
        ),
        (
            "gpushare run --remote gpu1 --memory 8GiB --time 30% -- python3 notebook.py",
            "the program runs here and uses a share of gpu1's device",
        ),
    )

    def __init__(self) -> None:
        self._parser: Parser | None = None

    def prepare_parser(self, parser: Parser) -> None:
        self._parser = parser
        parser.epilog = (
            "exit status: the command's own; 125 if gpushare failed or refused, 126 or 127 if the command cannot be "
            "run or found, 2 for a malformed request, 4 if you are not allowed to talk to the daemon or the other node "
            "cannot be reached; with --remote 3 if it is refused or the link is too slow; with --on 255 also where a "
            "signal ended the command, as ssh says it. A command that root runs has a mount namespace of its own: what "
            "it mounts is not seen outside"
        )
        add_share_options(parser, instead="--grant or --simulate")
        parser.option(
            "--grant", "ID", "run in this grant, made with --keep (default: a new one, which ends with the command)"
        )
        parser.option(
            "--simulate",
            "NxSIZE",
            "on simulated devices of its own, which end with the command: kernels compute nothing and take a modelled"
            f" time, --memory and --time may be left out (default: the daemon's devices; without NxSIZE {DEVICES})",
            simulated_devices,
            nargs="?",
            const=DEVICES,
        )
        parser.flag(
            "--report",
            "say on stderr, when the command has ended, what part of the time it got, how long it waited and its peak"
            " of memory; always with --simulate",
        )
        add_elsewhere(parser)
        add_wait(parser)
        add_common(parser)
        parser.add_argument(
            "argv", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command and its arguments"
        )

    def run(self, args: argparse.Namespace) -> int:
        _end_with_session()
        argv = command(args.argv)
        if args.on is not None or args.remote is not None:
            return self._elsewhere(args, argv)
        if status := missing(argv):
            return status
        return _here(args, argv)

    def _elsewhere(self, args: argparse.Namespace, argv: list[str]) -> int:
        """Runs the command on another node, or with another node's device."""
        check_elsewhere(args)
        if args.remote is not None:
            from gpushare.cli.grants import remotely

            return remotely.run(args, argv)
        from gpushare.cli.grants import there
        from gpushare.remote import nodes

        target = nodes.find(args.on, args.nodes)
        if not target.host:
            args.socket = str(target.socket)
            return missing(argv) or _here(args, argv)
        assert self._parser is not None
        return there.run(target, args, there.options(self._parser, argv), argv)


def _here(args: argparse.Namespace, argv: list[str]) -> int:
    """Runs the command on this machine, with its devices or simulated ones."""
    daemon = client(args).patient(AWAY_SECONDS)
    try:
        if args.simulate is not None:
            return _simulated(args, argv)
        if args.grant is None and (args.memory is None or args.time is None):
            raise UsageError("give --memory and --time, --simulate, or --grant ID (see `gpushare run --help`)")
        if args.report:
            return _end(_attend(daemon, args, argv))
        if args.grant is not None:
            _replace(daemon, argv, daemon.bind(args.grant, "process"))
        start(daemon, {**share_request(args), "wait_seconds": args.wait}, argv)
    except GpushareError as error:
        return _failed(daemon, args, error)


def _nothing_is_there(daemon: Client, error: GpushareError) -> bool:
    return isinstance(error, UnreachableError) and not is_closed_to_user(daemon.path) and not daemon.path.exists()


def _failed(daemon: Client, args: argparse.Namespace, error: GpushareError) -> int:
    """Says why the command did not start. Returns the exit status."""
    elsewhere = args.on is not None and isinstance(error, UnreachableError)
    status = error.exit_code if elsewhere else _status(daemon, error)
    if not elsewhere and _nothing_is_there(daemon, error):
        error = UnreachableError(f"{error}. Without a GPU: `gpushare run --simulate -- CMD` needs no daemon")
    if args.json:
        print_json({"error": {"code": error.code, "message": str(error)}, "exit_status": status})
    say(f"gpushare: {error}", sys.stderr)
    return status


def _simulated(args: argparse.Namespace, argv: list[str]) -> int:
    """Runs the command on devices that exist only for it, and returns its exit status."""
    if args.grant is not None or args.socket is not None:
        raise UsageError("--simulate makes devices of its own: leave out --grant and --socket")
    from gpushare.cli.grants.private import Private

    args.memory = "100%" if args.memory is None else args.memory
    args.time = _WHOLE_MILLI if args.time is None else args.time
    private = Private.start(args.simulate)
    try:
        say(f"gpushare: simulated, {args.simulate}: kernels compute nothing and take a modelled time", sys.stderr)
        os.environ[SOCKET_ENV] = os.fspath(private.client.path)
        attended = _attend(private.client, args, argv)
    finally:
        private.end()
    return _end(attended)


def _attend(daemon: Client, args: argparse.Namespace, argv: list[str]) -> "Attended | int":
    """Runs the command beside this process, and says what it got. Returns the command, or the exit status if it did not
    start."""
    from gpushare.cli.grants.attended import Attended, say_what_it_got

    grant = (
        daemon.grant(args.grant)
        if args.grant is not None
        else daemon.create(**share_request(args), wait_seconds=args.wait, ttl_seconds=RESERVE_SECONDS)
    )
    attended: Attended | int = EXIT_GPUSHARE
    try:
        attended = Attended.start(lambda: _enter(daemon, args, grant, argv))
    finally:
        if isinstance(attended, int) and args.grant is None:
            with contextlib.suppress(GpushareError):
                daemon.release(grant["id"])
    if not isinstance(attended, int):
        seconds = attended.wait()
        say_what_it_got(daemon, grant, seconds, last=args.simulate is not None)
    return attended


def _enter(daemon: Client, args: argparse.Namespace, grant: Mapping[str, Any], argv: list[str]) -> int:
    """Replaces this process by the command in a grant. If that fails, says why and returns the exit status."""
    try:
        binding = daemon.bind(grant["id"], "process")
        if args.grant is None:
            say_rounding(grant, args.memory)
        _replace(daemon, argv, binding, apart=args.simulate is None)
    except GpushareError as error:
        return _failed(daemon, args, error)


def _end_with_session() -> None:
    """On a node to which ssh has come for `run --on`: with the end of ssh's session this process, and the command that
    replaces it, get SIGTERM. Without a terminal sshd leaves them running."""
    session = os.environ.pop(PARENT_ENV, "")
    if session:
        from gpushare.processes.helper import end_with_parent  # here, since it loads ctypes

        end_with_parent()
        if str(os.getppid()) != session:  # it has ended already
            raise SystemExit(EXIT_GPUSHARE)


def _end(attended: "Attended | int") -> int:
    return attended if isinstance(attended, int) else attended.end()


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


def _replace(daemon: Client, argv: list[str], binding: Mapping[str, Any], *, apart: bool = True) -> NoReturn:
    """`apart`: in a mount namespace of its own if root runs it."""
    from gpushare.inject.process import merge

    environment = merge(os.environ, binding["env"], binding["unset"])
    if apart and os.geteuid() == 0:
        from gpushare.inject.apart import enter  # here, since it loads ctypes, which other users' commands do not need

        enter(Path(binding["dir"]), environment, daemon.path)
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
