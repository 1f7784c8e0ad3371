"""gpushare adapter device-plugin"""

import argparse
import signal
from pathlib import Path

from gpushare.adapters.deviceplugin import RESOURCE
from gpushare.cli.adapters import extra
from gpushare.cli.command import Command, client
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

KUBELET = Path("/var/lib/kubelet")
SLOTS = 10


class DevicePluginAdapter(Command):
    """offer pods slots of devices, on Kubernetes clusters without DRA (root)"""

    examples = (
        ("sudo gpushare adapter device-plugin", "ten slots of each device"),
        (
            "sudo gpushare adapter device-plugin --slots 4 --tenant research",
            "four slots of each device, all for one tenant",
        ),
    )

    def prepare_parser(self, parser: Parser) -> None:
        parser.option("--slots", "N", f"slots of each device (default {SLOTS})", int, default=SLOTS)
        parser.add_argument(
            "--sizes",
            choices=("slots", "annotations"),
            default="slots",
            help="size of a container's share: its part of the device's slots (default), or its pod's annotations, and "
            "its slots where there are none (needs the gpushare runtime handler or NRI plugin)",
        )
        parser.option("--tenant", "NAME", "tenant that the grants belong to, with --sizes slots (default: default)")
        parser.option("--resource", "NAME", f"resource name that pods request (default {RESOURCE})", default=RESOURCE)
        parser.option("--kubelet-dir", "DIR", f"kubelet's directory (default {KUBELET})", Path, default=KUBELET)

    def run(self, args: argparse.Namespace) -> int:
        import logging

        try:
            from gpushare.adapters.deviceplugin.plugin import DevicePlugin, Options
            from gpushare.adapters.deviceplugin.slots import SLOTS_MAX, Sizes
        except ImportError as error:
            raise extra.missing(error, "kubernetes") from None
        if not 1 <= args.slots <= SLOTS_MAX:
            raise UsageError(f"--slots {args.slots}: give 1 to {SLOTS_MAX}")
        if args.sizes == "annotations" and args.tenant:
            raise UsageError("--tenant goes with --sizes slots: else annotations name the tenant")
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        more = {"tenant": args.tenant} if args.tenant else {}
        options = Options(Sizes(args.slots), args.resource, args.sizes == "annotations", more)
        plugin = DevicePlugin(client(args), args.kubelet_dir, options)
        signal.signal(signal.SIGTERM, lambda *_: plugin.stop())
        signal.signal(signal.SIGINT, lambda *_: plugin.stop())
        plugin.run()
        return 0
