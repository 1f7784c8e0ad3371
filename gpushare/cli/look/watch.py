"""gpushare watch | events"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from gpushare.cli.command import Command, add_common, add_socket, answer, client, print_json, say_each
from gpushare.cli.look import render
from gpushare.cli.parser import Parser
from gpushare.client.verbs import query_of
from gpushare.errors import UnreachableError
from gpushare.text import links, rules, sentences


class WatchCommand(Command):
    """print every change as it happens, one JSON object per line"""

    examples = (
        ("gpushare watch", "grants, devices and tenants, from now on"),
        ("gpushare watch --since 118", "first what happened after 118, the rv of an earlier answer"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.option("--since", "RV", "start with changes after this number, `rv` in JSON (default: from now on)", int)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        for event in client(args).watch(args.since):
            print(json.dumps(event), flush=True)
        raise UnreachableError("the daemon ended: list again when it is back")


class EventsCommand(Command):
    """receipts: who waited for whom, how long, and why

    Who got, lost or handed over a device, on whose behalf, by which rule, and how long it took.
    """

    examples = (
        ("gpushare events --limit 20", "the latest twenty"),
        ("gpushare events --tenant research --kind revoke", "when the tenant's grants had to give a device back"),
        ("gpushare events --summary", "how long each tenant waited in total"),
        ("gpushare events --attachments --limit 20", "who used the node from other machines, and how that ended"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.option("--after", "SEQ", "only events after this number, `seq` in JSON (default: the latest)", int)
        parser.option(
            "--epoch", "N", "run of the daemon that --after belongs to; fails if that run has ended (default any)", int
        )
        parser.option("--limit", "N", "at most N events (default 4096)", int)
        parser.option("--grant", "ID", "only events of this grant, or on its behalf")
        parser.option("--tenant", "NAME", "only events of this tenant's grants, or on their behalf")
        parser.option("--device", "N", "only events on this device, by index or id")
        parser.add_argument(
            "--kind", choices=rules.EVENT_KINDS, metavar="KIND", help=f"only {', '.join(rules.EVENT_KINDS)}"
        )
        parser.flag("--attempts", "instead: containers without a share that asked for a GPU in NVIDIA's ways")
        parser.flag("--findings", "instead: processes past their share or without one, and what was done")
        parser.flag("--attachments", "instead: machines whose programs began or ceased to use a grant, and over what")
        parser.flag("--summary", "instead: how long each tenant waited in total")
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.summary:
            found = client(args).call("GET", "/v1/waits")
            return answer(args, found, lambda: render.waits(found["tenants"]))
        if args.attempts:
            return _listed(args, "attempts", sentences.attempt)
        if args.findings:
            return _listed(args, "findings", sentences.finding)
        if args.attachments:
            return _attachments(args)
        names = ("after", "epoch", "limit", "grant", "tenant", "device", "kind")
        asked = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        found = client(args).call("GET", f"/v1/events?{query_of(asked)}")
        if args.json:
            print_json(found)
            return 0
        say_each([sentences.event(event) for event in found["events"]] or ["no events"])
        if found["lost"]:
            print(f"gpushare: {found['lost']} older events are not in the record any more", file=sys.stderr)
        return 0


def _attachments(args: argparse.Namespace) -> int:
    """Prints what began and ended, the latest last."""
    mine = client(args).remote(grant=args.grant)["attachments"]

    def show() -> None:
        began = [(one["created_ns"], one["grant"], links.attached(one)) for one in mine]
        ended = [(one["ended_ns"], one["grant"], links.detached(one)) for one in mine if one["ended_ns"] is not None]
        lines = [f"{sentences.clock(at, sentences.DAY)}  {grant}  {text}" for at, grant, text in sorted(began + ended)]
        say_each((lines[-args.limit :] if args.limit else lines) or ["no attachments"])

    return answer(args, {"attachments": mine}, show)


def _listed(args: argparse.Namespace, what: str, sentence: Callable[[Any], str]) -> int:
    """Prints a line for each of what `/v1/WHAT` lists."""
    found = client(args).call("GET", f"/v1/{what}")
    return answer(args, found, lambda: say_each([sentence(one) for one in found[what]] or [f"no {what}"]))
