"""gpushare adapter ...

A verb per engine or scheduler, each a Command in a file `adapter_NAME.py` of its own.
"""

import argparse

from gpushare.cli.adapter_deviceplugin import DevicePluginAdapter
from gpushare.cli.adapter_htcondor import HtcondorAdapter
from gpushare.cli.adapter_kubernetes import KubernetesAdapter
from gpushare.cli.adapter_nomad import NomadAdapter
from gpushare.cli.adapter_nri import NriAdapter
from gpushare.cli.adapter_prometheus import PrometheusAdapter
from gpushare.cli.adapter_ray import RayAdapter
from gpushare.cli.adapter_slurm import SlurmAdapter
from gpushare.cli.command import Command, add_socket, add_verb

ADAPTERS: tuple[Command, ...] = (
    DevicePluginAdapter(),
    HtcondorAdapter(),
    KubernetesAdapter(),
    NomadAdapter(),
    NriAdapter(),
    PrometheusAdapter(),
    RayAdapter(),
    SlurmAdapter(),
)


class AdapterCommand:
    """serve an engine or a scheduler as its plugin"""

    name = "adapter"
    examples = (
        ("gpushare adapter prometheus", "metrics at http://127.0.0.1:9417/metrics"),
        ("sudo gpushare adapter slurm conf", "lines for slurm.conf and gres.conf"),
    )

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(metavar="VERB", required=True)
        for adapter in ADAPTERS:
            verb = add_verb(verbs, adapter.name, str(adapter.__doc__), *adapter.examples)
            adapter.prepare_parser(verb)
            add_socket(verb)
            verb.set_defaults(adapter=adapter)

    def run(self, args: argparse.Namespace) -> int:
        adapter: Command = args.adapter
        return adapter.run(args)
