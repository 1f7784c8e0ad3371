"""gpushare drain | undrain"""

import argparse

from gpushare.cli.command import Command, add_common, answer, client
from gpushare.cli.parser import Parser


class DrainCommand(Command):
    """stop new grants on a device; existing grants continue"""

    examples = (
        ("gpushare drain 0", "device 0 gets no new grants"),
        ('gpushare drain 0 --reason "fan replaced at 14:00"', "the reason is shown with each refusal"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument("device", help="its index or id, as `gpushare devices` shows them")
        parser.option(
            "--reason", "TEXT", "reason shown when a grant is refused because of it (default none)", default=""
        )
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        device = client(args).drain(args.device, args.reason)
        return answer(args, device, lambda: print(f"device {device['index']} ({device['id']}) is {device['state']}"))


class UndrainCommand(Command):
    """allow grants on a drained device again"""

    examples = (("gpushare undrain 0", "device 0 gets grants again"),)

    def prepare_parser(self, parser: Parser) -> None:
        parser.add_argument("device", help="its index or id, as `gpushare devices` shows them")
        add_common(parser)

    def run(self, args: argparse.Namespace) -> int:
        device = client(args).undrain(args.device)
        return answer(args, device, lambda: print(f"device {device['index']} ({device['id']}) takes grants again"))
