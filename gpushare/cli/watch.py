"""gpushare watch | events"""

import argparse
import json

from gpushare.cli.command import add_json, add_socket, client, print_json
from gpushare.errors import UnreachableError


class WatchCommand:
    """changes of grants, devices and tenants as they happen, one JSON object a line"""

    name = "watch"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--since", type=int, metavar="RV", help="what happened after that, first")
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        for event in client(args).watch(args.since):
            print(json.dumps(event), flush=True)
        raise UnreachableError("the daemon ended: list again when it is back")


class EventsCommand:
    """the arbiter's record: who got, lost or handed over a device, and how long it took"""

    name = "events"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--after", type=int, default=0, metavar="SEQ", help="what was recorded after that number")
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        found = client(args).call("GET", f"/v1/events?after={args.after}")
        if args.json:
            print_json(found)
            return 0
        for event in found["events"]:
            other = f" ({event['other']})" if event["other"] else ""
            after = f" {event['value_ns'] / 1e6:.3f} ms" if event["value_ns"] else ""
            print(
                f"{event['t_ns'] / 1e9:.6f}  device {event['device']}  {event['kind']:8} {event['grant']}{other}{after}"
            )
        return 0
