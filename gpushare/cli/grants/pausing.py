"""gpushare pause | resume"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from gpushare.cli.command import Command, add_common, answer, client, say
from gpushare.cli.grants import moving
from gpushare.cli.parser import Parser
from gpushare.errors import FailedError, GpushareError, NotFoundError, RefusedError, UsageError


class _Done:
    """`grants`: those that move, as they are now. `stay`: by grant, why its memory is not where it is to be."""

    def __init__(self) -> None:
        self.grants: list[Any] = []
        self.stay: dict[str, GpushareError] = {}


class PauseCommand(Command):
    """move grants off their devices until they are resumed

    For a game or a demo on the same device. Programs live on and wait when they need their memory. What cannot be moved
    is listed with its reason, and the exit status is 3; the rest is moved all the same.
    """

    examples = (
        ("gpushare pause --all --wait", "all that is yours (for root: all of the node), until it has left"),
        ("gpushare pause g-1a2b3c", "this one"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        _add_which(parser, "all of this user's grants, or if root asks all of the node", "its memory is in host memory")

    def run(self, args: argparse.Namespace) -> int:
        daemon = client(args)
        # Those with nothing on the device need not go anywhere.
        grants = _named(daemon, args, lambda grant: grant["phase"] in ("active", "suspended") and _holds(grant))
        done = _each(grants, lambda grant: daemon.suspend(grant, hold=True), named=not args.all)
        return _end(daemon, args, done, "suspended")


class ResumeCommand(Command):
    """move paused grants back to their devices

    Each comes back as soon as there is room for it. What left its device by itself, or because others needed the room,
    is none of those that --all means.
    """

    examples = (
        ("gpushare resume --all --wait=30", "all that is held, and wait for at most 30 s until it is there"),
        ("gpushare resume g-1a2b3c", "this one"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        _add_which(
            parser,
            "all grants of this user, or if root asks of the node, that are held in host memory",
            "its memory is on the device",
        )

    def run(self, args: argparse.Namespace) -> int:
        daemon = client(args)
        grants = _named(daemon, args, lambda grant: grant["residency"] is not None and grant["residency"]["hold"])
        done = _each(grants, daemon.resume, named=not args.all)
        return _end(daemon, args, done, "resident")


def _add_which(parser: Parser, every: str, until: str) -> None:
    parser.add_argument("id", nargs="*", help="the grants' ids (default: none; or give --all)")
    parser.flag("--all", every)
    moving.add_wait(parser, until)
    add_common(parser)


def _named(daemon: Any, args: argparse.Namespace, counts: Callable[[Any], bool]) -> list[str]:
    """Returns the grants that are meant, all of which exist. `counts`: which of all are meant by --all."""
    if bool(args.id) == args.all:
        raise UsageError("which grants? give their ids, or --all")
    if args.id:
        return [daemon.grant(grant)["id"] for grant in args.id]
    uid = os.geteuid()
    return [grant["id"] for grant in daemon.grants() if uid in (0, grant["uid"]) and counts(grant)]


def _holds(grant: Any) -> bool:
    return any(device["memory_bytes"] for device in grant["devices"])


def _each(grants: list[str], move: Callable[[str], Any], *, named: bool) -> _Done:
    """Begins all moves. `named`: an ended grant is an error."""
    done = _Done()
    for grant in grants:
        try:
            done.grants.append(move(grant))
        except RefusedError as refusal:
            done.stay[grant] = refusal
        except NotFoundError:  # it has ended since it was listed, and has left
            if named:
                raise
    return done


def _end(daemon: Any, args: argparse.Namespace, done: _Done, wanted: str) -> int:
    if args.wait is not None:
        _await(daemon, done, wanted, args.wait)

    def show() -> None:
        for grant in done.grants:
            moving.show(grant)
        for error in done.stay.values():
            say(f"gpushare: {error}", sys.stderr)
        if not done.grants and not done.stay:
            say("there is nothing to move")

    stay = [{"grant": grant, "reason": str(error)} for grant, error in done.stay.items()]
    answer(args, {"grants": done.grants, "stay": stay}, show)
    return max((error.exit_code for error in done.stay.values()), default=0)


def _await(daemon: Any, done: _Done, wanted: str, most: float) -> None:
    """Waits for all of them at once: they move at the same time."""
    deadline = time.monotonic() + most
    begun, done.grants = done.grants, []
    for grant in begun:
        left = max(0.0, deadline - time.monotonic()) if most < math.inf else math.inf
        try:
            done.grants.append(moving.wait_for(daemon, grant, wanted, left))
        except (RefusedError, FailedError) as error:
            done.stay[grant["id"]] = error
