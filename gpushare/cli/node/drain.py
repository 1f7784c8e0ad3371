"""gpushare drain | undrain"""

import argparse

from gpushare.cli.command import add_json, add_socket, client, print_json
from gpushare.cli.parser import Parser


class DrainCommand:
    """stop new grants on a device; existing grants continue"""

    examples = (
        ("gpushare drain 0", "device 0 gets no new grants"),
        ('gpushare drain 0 --reason "fan replaced at 14:00"', "the reason is shown with each refusal"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument("device", help="its index or id, as `gpushare devices` shows them")
        parser.add_argument(
            "--reason",
            default="",
            metavar="TEXT",
            help="reason shown when a grant is refused because of it (default none)",
        )
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        device = client(args).drain(args.device, args.reason)
        if args.json:
            print_json(device)
        else:
            print(f"device {device['index']} ({device['id']}) is {device['state']}")
        return 0


class UndrainCommand:
    """allow grants on a drained device again"""

    examples = (("gpushare undrain 0", "device 0 gets grants again"),)

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument("device", help="its index or id, as `gpushare devices` shows them")
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        device = client(args).undrain(args.device)
        if args.json:
            print_json(device)
        else:
            print(f"device {device['index']} ({device['id']}) takes grants again")
        return 0
