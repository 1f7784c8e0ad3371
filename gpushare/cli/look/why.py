"""gpushare why"""

import argparse
from typing import Any

from gpushare.cli.command import Command, add_common, answer, client, say, say_each, whole
from gpushare.cli.parser import Parser
from gpushare.client.verbs import segment
from gpushare.errors import UnreachableError, UsageError

_number = whole("a number", 0, 10**9 - 1, "give 0 or more")


class WhyCommand(Command):
    """why a grant is slow or was refused memory, and what to do

    With the latest decisions about it. Without a grant: inside a share about that one; elsewhere who holds idle
    devices, and who waits while others have more than they are entitled to.
    """

    examples = (
        ("gpushare why", "who holds idle devices; who waits while others have too much"),
        ("gpushare why g-1a2b3c", "what holds this grant back and what to do, and the decisions about it"),
        ("gpushare why --idle-holders --idle-seconds 600", "who has held memory for ten minutes without work"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument(
            "grant",
            nargs="?",
            help="the grant's id, also of an ended one (default: that of the share it runs in, else the whole node)",
        )
        parser.option("--limit", "N", "with a grant: show at most N decisions about device time (default 20)", _number)
        parser.flag("--idle-holders", "only who holds memory and computes nothing")
        parser.flag("--waiting", "only who waits with less than they are entitled to, while others have more")
        parser.option("--idle-seconds", "S", "seconds without work that count as idle (default 30)", _number)
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.grant is not None:
            if args.idle_holders or args.waiting or args.idle_seconds is not None:
                raise UsageError("a grant is named: --idle-holders and --waiting are questions about the whole node")
            return _grant(args)
        if not args.idle_holders and not args.waiting and args.idle_seconds is None:
            from gpushare.inject.grantdir import own_grant  # here: it takes 10 ms to import

            if (own := own_grant()) is not None:
                args.grant = own
                return _own(args)
        if args.limit is not None:
            raise UsageError("--limit is for the decisions about a grant: name one")
        query = "" if args.idle_seconds is None else f"?idle_seconds={args.idle_seconds}"
        found = client(args).call("GET", f"/v1/explain{query}")
        asked = [name for name in ("idle_holders", "waiting") if getattr(args, name)] or ["idle_holders", "waiting"]

        def show() -> None:
            for name in asked:
                say_each([row["text"] for row in found[name]] or [_NOBODY[name]])

        return answer(args, {name: found[name] for name in asked}, show)


_NOBODY = {
    "idle_holders": "no grant holds a device without work",
    "waiting": "nobody waits for time that is due",
}


def _own(args: argparse.Namespace) -> int:
    try:
        return _grant(args)
    except UnreachableError as error:
        raise UnreachableError(f"this is share {args.grant}, and its node cannot be asked from here: {error}") from None


def _grant(args: argparse.Namespace) -> int:
    query = "" if args.limit is None else f"?limit={args.limit}"
    found = client(args).call("GET", f"/v1/explain/{segment(args.grant)}{query}")
    return answer(args, found, lambda: _show(found))


def _show(found: Any) -> None:
    from gpushare.text.sentences import clock  # here: it needs `decimal`, which takes 4 ms to import

    say(f"{found['grant']} of {found['tenant']}, {found['phase']}")
    say_each(f"why           {line}" for line in found["why"])
    say_each(f"now           {line}" for line in found["now"])
    for decision in found["decisions"]:
        say(f"{clock(decision['at_ns'])[:-3]}  {decision['text']}")
