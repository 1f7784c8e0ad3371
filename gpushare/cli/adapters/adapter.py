"""gpushare adapter ...

One verb per engine or scheduler, each a Command in its own file.
"""

from gpushare.cli.command import Family, add_socket, add_verbs
from gpushare.cli.parser import Parser

ADAPTERS = {
    "device-plugin": "adapters.deviceplugin.DevicePluginAdapter",
    "htcondor": "adapters.htcondor.HtcondorAdapter",
    "kubernetes": "adapters.kubernetes.KubernetesAdapter",
    "nomad": "adapters.nomad.NomadAdapter",
    "nri": "adapters.nri.NriAdapter",
    "prometheus": "adapters.prometheus.PrometheusAdapter",
    "ray": "adapters.ray.RayAdapter",
    "slurm": "adapters.slurm.SlurmAdapter",
}


class AdapterCommand(Family):
    """run the adapter for an engine, a scheduler or Prometheus"""

    examples = (
        ("gpushare adapter prometheus", "metrics at http://127.0.0.1:9417/metrics"),
        ("sudo gpushare adapter slurm conf", "this node's lines of slurm.conf and gres.conf"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        for verb in add_verbs(parser, ADAPTERS):
            add_socket(verb)
