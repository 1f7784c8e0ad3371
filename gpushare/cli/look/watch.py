"""gpushare watch | events"""

import argparse
import json
import sys

from gpushare.cli.command import add_json, add_socket, client, print_json, say
from gpushare.cli.look import render
from gpushare.cli.parser import Parser
from gpushare.client.verbs import query_of
from gpushare.errors import UnreachableError
from gpushare.text import rules, sentences


class WatchCommand:
    """print every change as it happens, one JSON object per line"""

    examples = (
        ("gpushare watch", "grants, devices and tenants, from now on"),
        ("gpushare watch --since 118", "first what happened after 118, the rv of an earlier answer"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument(
            "--since",
            type=int,
            metavar="RV",
            help="start with changes after this number, `rv` in JSON (default: from now on)",
        )
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        for event in client(args).watch(args.since):
            print(json.dumps(event), flush=True)
        raise UnreachableError("the daemon ended: list again when it is back")


class EventsCommand:
    """receipts: who waited for whom, how long, and why

    Who got, lost or handed over a device, on whose behalf, by which rule, and how long it took.
    """

    examples = (
        ("gpushare events --limit 20", "the latest twenty"),
        ("gpushare events --tenant research --kind revoke", "when the tenant's grants had to give a device back"),
        ("gpushare events --summary", "how long each tenant waited in total"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument(
            "--after",
            type=int,
            metavar="SEQ",
            help="only events after this number, `seq` in JSON (default: the latest)",
        )
        parser.add_argument(
            "--epoch",
            type=int,
            metavar="N",
            help="run of the daemon that --after belongs to; fails if that run has ended (default any)",
        )
        parser.add_argument("--limit", type=int, metavar="N", help="at most N events (default 4096)")
        parser.add_argument("--grant", metavar="ID", help="only events of this grant, or on its behalf")
        parser.add_argument("--tenant", metavar="NAME", help="only events of this tenant's grants, or on their behalf")
        parser.add_argument("--device", metavar="N", help="only events on this device, by index or id")
        parser.add_argument(
            "--kind", choices=rules.EVENT_KINDS, metavar="KIND", help=f"only {', '.join(rules.EVENT_KINDS)}"
        )
        parser.add_argument(
            "--attempts",
            action="store_true",
            help="instead: containers without a share that asked for a GPU in NVIDIA's ways",
        )
        parser.add_argument(
            "--findings",
            action="store_true",
            help="instead: processes past their share or without one, and what was done",
        )
        parser.add_argument("--summary", action="store_true", help="instead: how long each tenant waited in total")
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        if args.summary:
            return self._summary(args)
        if args.attempts:
            return self._attempts(args)
        if args.findings:
            return self._findings(args)
        names = ("after", "epoch", "limit", "grant", "tenant", "device", "kind")
        asked = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        found = client(args).call("GET", f"/v1/events?{query_of(asked)}")
        if args.json:
            print_json(found)
            return 0
        _print([sentences.event(event) for event in found["events"]], "no events")
        if found["lost"]:
            print(f"gpushare: {found['lost']} older events are not in the record any more", file=sys.stderr)
        return 0

    def _attempts(self, args: argparse.Namespace) -> int:
        found = client(args).call("GET", "/v1/attempts")
        if args.json:
            print_json(found)
        else:
            _print([sentences.attempt(attempt) for attempt in found["attempts"]], "no attempts")
        return 0

    def _findings(self, args: argparse.Namespace) -> int:
        found = client(args).call("GET", "/v1/findings")
        if args.json:
            print_json(found)
        else:
            _print([sentences.finding(finding) for finding in found["findings"]], "no findings")
        return 0

    def _summary(self, args: argparse.Namespace) -> int:
        found = client(args).call("GET", "/v1/waits")
        if args.json:
            print_json(found)
        else:
            render.waits(found["tenants"])
        return 0


def _print(lines: list[str], without: str) -> None:
    for line in lines or [without]:
        say(line)
