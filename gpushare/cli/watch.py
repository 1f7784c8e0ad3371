"""gpushare watch | events"""

import argparse
import json
import sys
from urllib.parse import urlencode

from gpushare import sentences
from gpushare.cli import render
from gpushare.cli.command import add_json, add_socket, client, print_json, say
from gpushare.errors import UnreachableError


class WatchCommand:
    """changes of grants, devices and tenants as they happen, one JSON object a line"""

    name = "watch"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--since", type=int, metavar="RV", help="begin with what happened after this number")
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        for event in client(args).watch(args.since):
            print(json.dumps(event), flush=True)
        raise UnreachableError("the daemon ended: list again when it is back")


class EventsCommand:
    """receipts: who waited, got, lost or handed over a device, for whom, by which rule, and how long it took"""

    name = "events"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--after", type=int, metavar="SEQ", help="events after this number")
        parser.add_argument(
            "--epoch",
            type=int,
            metavar="N",
            help="the run of the daemon that the number is from; fails if that has ended",
        )
        parser.add_argument("--limit", type=int, metavar="N", help="at most N events")
        parser.add_argument("--grant", metavar="ID", help="only events of this grant, or for its sake")
        parser.add_argument("--tenant", metavar="NAME", help="the same for all grants of this tenant")
        parser.add_argument("--device", metavar="N", help="only on this device: index or id")
        parser.add_argument("--kind", help="only lease, revoke, drained, left, lie, ...")
        parser.add_argument(
            "--attempts",
            action="store_true",
            help="instead: containers without a share that asked for a GPU in NVIDIA's ways",
        )
        parser.add_argument(
            "--findings", action="store_true", help="instead: who uses a device without a share, and what was done"
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
        found = client(args).call("GET", f"/v1/events?{urlencode(asked)}")
        if args.json:
            print_json(found)
            return 0
        for event in found["events"]:
            say(sentences.event(event))
        if found["lost"]:
            print(f"gpushare: {found['lost']} older events are not in the record any more", file=sys.stderr)
        return 0

    def _attempts(self, args: argparse.Namespace) -> int:
        found = client(args).call("GET", "/v1/attempts")
        if args.json:
            print_json(found)
        else:
            for attempt in found["attempts"]:
                say(sentences.attempt(attempt))
        return 0

    def _findings(self, args: argparse.Namespace) -> int:
        found = client(args).call("GET", "/v1/findings")
        if args.json:
            print_json(found)
        else:
            for finding in found["findings"]:
                say(sentences.finding(finding))
        return 0

    def _summary(self, args: argparse.Namespace) -> int:
        found = client(args).call("GET", "/v1/waits")
        if args.json:
            print_json(found)
        else:
            render.waits(found["tenants"])
        return 0
