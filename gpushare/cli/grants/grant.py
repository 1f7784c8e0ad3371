"""gpushare grant ..."""

import argparse
import os
import sys
from typing import Any

from gpushare.cli.command import (
    Family,
    add_common,
    answer,
    client,
    memory_argument,
    say,
    whole,
)
from gpushare.cli.grants import moving
from gpushare.cli.look import grants as table
from gpushare.cli.look import render
from gpushare.cli.parser import Parser, checked
from gpushare.errors import UsageError
from gpushare.text import rules
from gpushare.text.units import PAGE, format_size, parse_idle_after, parse_time

WAIT_SECONDS = 60.0
_count = whole("a number of devices", 1, 16)
time_to_live = whole("a number of seconds", 1, 86400)
EVICTION_SIGNAL_ENV = "GPUSHARE_EVICTION_SIGNAL"


def add_share_options(parser: Parser, *, instead: str | None = None) -> None:
    """Adds the options that describe a share. `share_request` reads them back. `instead`: the option that replaces a
    share, so that --memory and --time are not required here and the caller checks for one or the other."""
    required, needed = instead is None, f" (needed without {instead})" if instead else ""
    parser.option(
        "--memory",
        "SIZE",
        f"memory on each device, as 8GiB (8G and 8GB are the same), 512MiB or 35%% of it{needed}",
        memory_argument,
        required=required,
    )
    parser.option(
        "--time",
        "SHARE",
        f"guaranteed time of each device, as 30%%, 0.3 or 300m; 0: only what others leave idle{needed}",
        parse_time,
        required=required,
    )
    parser.option(
        "--time-limit",
        "SHARE",
        "upper limit of the time, borrowed time included; as --time (default 100%%)",
        parse_time,
    )
    parser.option(
        "--devices", "N", "number of devices, 1 to 16 (default 1)", whole("a number of devices", 1, 16), default=1
    )
    parser.option("--gpu", "ID", "id or index of the device (default any)", default="any")
    parser.option(
        "--selector", "EXPR", "only devices that match, as \"memory >= 40Gi && arch == 'Hopper'\" (default any)"
    )
    add_placement(parser, "default: as the tenant or the node says")
    parser.option("--tenant", "T", "tenant that the share belongs to (default: the tenant `default`)", default=None)
    parser.add_argument(
        "--class",
        dest="class_",
        choices=("interactive", "training", "inference"),
        default="training",
        help="kind of work: interactive is served first when it wakes (default training)",
    )
    parser.option(
        "--gang",
        "ID[:SIZE]",
        "the job that this grant is part of, and the job's total number of devices (default: none)",
    )
    parser.add_argument(
        "--turns",
        dest="leases",
        choices=("together", "independent"),
        help="when a grant with several devices has its turn: on all at the same instant (default), or on each"
        " independently",
    )
    _add_loan_options(parser)
    parser.add_argument(
        "--managed",
        choices=("charge", "refuse"),
        default="charge",
        help="charge managed memory like device memory (default), or refuse it",
    )
    parser.add_argument(
        "--idle-memory",
        choices=("keep", "lend"),
        help="keep the memory on the device (default), or let it be moved to host memory while it is not used (lend)",
    )
    parser.option(
        "--idle-after",
        "S",
        "with --idle-memory lend: without work for so long it counts as not used, as 30s, 5m or 2h (default: as the"
        " tenant or the node says)",
        parse_idle_after,
    )


def add_placement(parser: Parser, otherwise: str, *more: str) -> None:
    """Adds `--placement`. `otherwise`: what holds without it. `more`: what it may be as well."""
    parser.add_argument(
        "--placement",
        choices=("spread", "pack", *more),
        help="which device a single share gets of those where it fits: the one with most free (spread), or the one that"
        f" it leaves least of (pack) ({otherwise})",
    )


def _add_loan_options(parser: Parser) -> None:
    parser.add_argument(
        "--borrow-memory",
        nargs="?",
        const=True,
        type=checked(memory_argument),
        metavar="SIZE",
        help="how much of the memory may be borrowed from what others are guaranteed and do not use; it can be asked "
        "back (default none; without SIZE all of it)",
    )
    parser.add_argument(
        "--reclaim",
        dest="max_rung",
        choices=("demote", "evict", "kill"),
        help="how far it goes when borrowed memory is wanted back: the grant is asked for it (evict, default), and"
        " ended if it does not give it (kill); with --idle-memory lend its memory is moved to the host first, or only"
        " that (demote)",
    )
    parser.option(
        "--grace",
        "S",
        "time to give it back, as 30s or 5m (default and maximum: the node's `[reclaim] grace_seconds`)",
        moving.seconds,
    )
    parser.add_argument(
        "--eviction-signal",
        default=os.environ.get(EVICTION_SIGNAL_ENV) or None,
        type=lambda text: text.upper().removeprefix("SIG"),
        choices=rules.EVICTION_SIGNALS,
        metavar="NAME",
        help=f"signal for the grant's first process when it is asked: {', '.join(rules.EVICTION_SIGNALS)} (default"
        f" ${EVICTION_SIGNAL_ENV}, else none)",
    )
    parser.option("--priority", "N", "among a tenant's grants, the lowest is asked first (default 0)", int)


def add_wait(parser: Parser, seconds: float = WAIT_SECONDS) -> None:
    """Adds `--wait`, for verbs that create grants."""
    parser.option(
        "--wait",
        "S",
        "how long to wait, as 30s or 5m, while others give back memory, or idle memory is moved away"
        " (default %(default)gs)",
        moving.seconds,
        default=seconds,
    )


def share_request(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the options' values as arguments of Client.create."""
    same = (
        *("memory", "time", "time_limit", "devices", "selector", "placement", "tenant", "class_", "managed"),
        *("idle_memory", "borrow_memory", "max_rung", "eviction_signal", "priority"),
    )
    other = {
        "device": args.gpu,
        "grace_seconds": args.grace,
        "gang": _gang(args.gang, args.leases),
        "idle_after_seconds": args.idle_after,
    }
    return {name: getattr(args, name) for name in same} | other


def say_rounding(grant: Any, asked: int | str | None) -> None:
    """Prints to stderr if memory was asked for as a size, not as a part of a device, and no device gives it to the
    byte."""
    for device in grant["devices"] if isinstance(asked, int) else ():
        has, wanted = device["memory_limit_bytes"], device["memory_asked_bytes"]
        if has < wanted:
            line = f"the share has {format_size(has)} of memory, {format_size(wanted)} were asked for"
            say(f"gpushare: {line}: devices give memory in pages of {format_size(PAGE)}", sys.stderr)
            return


def _gang(gang: str | None, leases: str | None) -> str | None:
    """Returns the gang as text, as a GrantRequest takes it."""
    if leases is None:
        return gang
    name, _, size = (gang or "").partition(":")
    return f"{name}:{size}:{leases}"


class GrantCommand(Family):
    """create, show, resize, suspend and release grants"""

    examples = (
        (
            "id=$(gpushare grant create --memory 4GiB --time 25%)",
            "a share, for podman run --device gpushare.dev/gpu=$id",
        ),
        ("gpushare grant resize $id --time 50%", "more time, while it runs"),
        ("gpushare grant release $id", "end it"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        create = parser.verb(
            "create",
            self._create,
            "reserve a share for a container or process, and print the grant's id",
            ("gpushare grant create --memory 4GiB --time 25%", "4 GiB, a quarter of the time, and what is idle"),
            ("gpushare grant create --memory 1GiB --time 0.1 --tenant default", "of a named tenant"),
            ("gpushare grant create --memory 1GiB --time 10% --keep", "kept until it is released, for several runs"),
        )
        add_share_options(create)
        create.option(
            "--key", "NAME", "idempotency key (default none): the same request with the same key returns the same grant"
        )
        create.option(
            "--ttl",
            "S",
            "seconds until an unused grant expires, 1 to 86400 (default 120; with --keep, never)",
            time_to_live,
        )
        create.flag("--keep", "keep the grant until it is released, whatever runs in it")
        add_wait(create)

        show = parser.verb(
            "show", self._show, "one grant: its share, use and processes", ("gpushare grant show g-1a2b3c", "all of it")
        )
        show.add_argument("id", help="the grant's id")

        debug = parser.verb(
            "debug",
            self._debug,
            "internals of a grant: what it shares with the daemon, its processes and their latest events",
            ("gpushare grant debug g-1a2b3c", "when a program hangs, and `gpushare why` does not say why"),
        )
        debug.add_argument("id", help="the grant's id")

        every = parser.verb(
            "list",
            self._list,
            "all grants, as `gpushare ps` shows them",
            ("gpushare grant list --all", "including ended grants"),
        )
        every.flag("--all", "also recently ended grants (default: only live ones)")

        resize = parser.verb(
            "resize",
            self._resize,
            "change a share while it is in use",
            ("gpushare grant resize g-1a2b3c --time 50%", "half of the time from now on"),
            ("gpushare grant resize g-1a2b3c --memory 2GiB --time-limit 50%", "less memory; never more than half"),
        )
        resize.add_argument("id", help="the grant's id")
        resize.option(
            "--memory", "SIZE", "as 8GiB or 35%%, not below what it holds now (default: unchanged)", memory_argument
        )
        resize.option("--time", "SHARE", "as 30%%, 0.3 or 300m (default: unchanged)", parse_time)
        resize.option(
            "--time-limit", "SHARE", "upper limit of the time, written as --time (default: unchanged)", parse_time
        )

        release = parser.verb(
            "release",
            self._release,
            "end grants and kill what runs in them",
            ("gpushare grant release g-1a2b3c", "its memory and time are free again"),
        )
        release.add_argument("id", nargs="+", help="the grants' ids")

        for verb in (create, show, debug, every, resize, release, *moving.add_verbs(parser)):
            add_common(verb)

    def _create(self, args: argparse.Namespace) -> int:
        more = {"key": args.key, "ttl_seconds": args.ttl, "keep": args.keep or None}
        grant = client(args).create(**share_request(args), **more, wait_seconds=args.wait)

        def show() -> None:
            print(grant["id"])
            say_rounding(grant, args.memory)

        return answer(args, grant, show)

    def _show(self, args: argparse.Namespace) -> int:
        grant = client(args).grant(args.id)
        return answer(args, grant, lambda: render.grant(grant))

    def _debug(self, args: argparse.Namespace) -> int:
        found = client(args).debug(args.id)
        return answer(args, found, lambda: render.debug(found))

    def _list(self, args: argparse.Namespace) -> int:
        grants = client(args).grants(ended=args.all)
        return answer(args, {"grants": grants}, lambda: table.show(table.ordered(grants)))

    def _resize(self, args: argparse.Namespace) -> int:
        if args.memory is None and args.time is None and args.time_limit is None:
            raise UsageError("nothing to change: give --memory, --time or --time-limit")
        grant = client(args).resize(args.id, memory=args.memory, time=args.time, time_limit=args.time_limit)

        def show() -> None:
            render.grant(grant)
            say_rounding(grant, args.memory)

        return answer(args, grant, show)

    def _release(self, args: argparse.Namespace) -> int:
        daemon = client(args)
        ended = [daemon.release(grant_id) for grant_id in args.id]
        return answer(args, {"grants": ended})
