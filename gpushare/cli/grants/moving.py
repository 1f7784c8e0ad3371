"""gpushare grant suspend | resume"""

import argparse
import math
import time
from typing import Any

from gpushare.cli.command import answer, client, say
from gpushare.cli.parser import Parser, checked
from gpushare.errors import CannotMoveError, FailedError
from gpushare.text.units import format_size, parse_duration

_AGAIN_SECONDS = 0.02


def add_verbs(parser: Parser) -> tuple[Parser, ...]:
    """Adds both verbs, and returns their parsers."""
    suspend = parser.verb(
        "suspend",
        _suspend,
        "move a grant's memory to host memory; its processes live on and wait when they need it\n\n"
        "The memory comes back by itself with the next call of its programs that needs it.",
        ("gpushare grant suspend g-1a2b3c --wait", "until its memory is in host memory"),
        ("gpushare grant suspend g-1a2b3c --hold", "until `gpushare grant resume`, whatever its programs call"),
    )
    suspend.add_argument("id", help="the grant's id")
    suspend.flag("--hold", "it stays away until it is resumed (default: until its programs need their memory)")
    add_wait(suspend, "its memory is in host memory")

    resume = parser.verb(
        "resume",
        _resume,
        "move a suspended grant's memory back to its device, as soon as there is room",
        ("gpushare grant resume g-1a2b3c --wait=30", "and wait for at most 30 s until it is there"),
    )
    resume.add_argument("id", help="the grant's id")
    add_wait(resume, "its memory is on the device")
    return suspend, resume


def add_wait(parser: Parser, until: str) -> None:
    """Adds `--wait`, for verbs that move memory. `until`: what it waits for."""
    parser.add_argument(
        "--wait",
        nargs="?",
        const=math.inf,
        type=checked(seconds),
        metavar="S",
        help=f"return once {until}, or after S, as 30s or 5m, with an error (default: at once; without S, no limit)",
    )


def seconds(text: str) -> float:
    """A time to wait, as parse_duration reads it. Raises UsageError."""
    return parse_duration(text, 0, math.inf)


def _suspend(args: argparse.Namespace) -> int:
    daemon = client(args)
    grant = daemon.suspend(args.id, hold=args.hold)
    if args.wait is not None:
        grant = wait_for(daemon, grant, "suspended", args.wait)
    return answer(args, grant, lambda: show(grant))


def _resume(args: argparse.Namespace) -> int:
    daemon = client(args)
    grant = daemon.resume(args.id)
    if args.wait is not None:
        grant = wait_for(daemon, grant, "resident", args.wait)
    return answer(args, grant, lambda: show(grant))


def wait_for(daemon: Any, grant: Any, wanted: str, most: float) -> Any:
    """Returns the grant once its memory is where it is wanted. Raises CannotMoveError where it does not leave, and
    FailedError after `most` seconds."""
    deadline = time.monotonic() + most
    while grant["residency"] is None or grant["residency"]["where"] != wanted:
        now = grant["residency"]
        if now is None:
            raise CannotMoveError(f"grant {grant['id']} has ended meanwhile ({grant['reason']})")
        if wanted == "suspended" and now["where"] in ("resident", "resuming"):
            why = now["why"] or "its programs needed it again"
            raise CannotMoveError(f"the memory of grant {grant['id']} stays where it is: {why}")
        if time.monotonic() >= deadline:
            waits = now["waits"] or "it is being moved"
            raise FailedError(f"grant {grant['id']} is {now['where']} after {most:g} s: {waits}")
        time.sleep(_AGAIN_SECONDS)
        grant = daemon.grant(grant["id"])
    return grant


def show(grant: Any) -> None:
    """Prints where the grant's memory is."""
    hosted, now = sum(device["memory_hosted_bytes"] for device in grant["devices"]), grant["residency"]
    text = f"{grant['id']} is {now['where']}"
    if hosted:
        text += f", {format_size(hosted)} of its memory in host memory"
    say(f"{text}: {now['waits']}" if now["waits"] else text)
