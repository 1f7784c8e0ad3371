"""gpushare adapter kubernetes"""

import argparse
import os
import signal
from pathlib import Path

from gpushare.cli.adapters import extra
from gpushare.cli.command import Command, client
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

KUBELET = Path("/var/lib/kubelet")


class KubernetesAdapter(Command):
    """serve pods' resource claims as a DRA driver (Kubernetes 1.34 and later; root)"""

    examples = (("sudo gpushare adapter kubernetes --node n1 --kubeconfig /etc/n1.conf", "outside a pod"),)

    def prepare_parser(self, parser: Parser) -> None:
        parser.option("--node", "NAME", "the node's name (default $NODE_NAME)", default=os.environ.get("NODE_NAME"))
        parser.option(
            "--kubeconfig", "FILE", "kubeconfig file for the API server (default: the pod's service account)", Path
        )
        parser.option("--kubelet-dir", "DIR", f"kubelet's directory (default {KUBELET})", Path, default=KUBELET)

    def run(self, args: argparse.Namespace) -> int:
        import logging

        if not args.node:
            raise UsageError("which node is this? give --node, or set NODE_NAME as the DaemonSet does")
        try:
            from gpushare.adapters.kubernetes.cluster import Cluster
            from gpushare.adapters.kubernetes.driver import Driver
        except ImportError as error:
            raise extra.missing(error, "kubernetes") from None
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        driver = Driver(client(args), Cluster(args.kubeconfig), args.node, args.kubelet_dir)
        signal.signal(signal.SIGTERM, lambda *_: driver.stop())
        signal.signal(signal.SIGINT, lambda *_: driver.stop())
        driver.run()
        return 0
