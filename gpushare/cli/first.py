"""`gpushare` alone: what this node lacks, and what to do first."""

from collections.abc import Iterator

from gpushare import __version__

Step = tuple[str, str]
"""A command, and what it is for."""


def _on_a_node(grants: int) -> Iterator[Step]:
    from gpushare.engines import configuration
    from gpushare.engines.edit import Options

    for one in configuration.status(Options(), None):
        if not one.configured:
            command = f"sudo gpushare runtime configure --engine {one.engine} --restart"
            yield command, f"{one.engine} gives no shares yet"
    if not grants:
        yield "gpushare run --memory 4GiB --time 30% -- python3 train.py", "a program in a share"
    yield "gpushare ps", "who has what, and uses it"


def _without_a_daemon(error: str) -> Iterator[Step]:
    from gpushare.doctor.installed import unit

    if unit() is None:
        yield "gpushare demo", "two containers share a simulated device: needs no GPU, changes nothing"
        yield "sudo gpushare install", "units, configuration and hooks of this node; then the daemon runs"
    else:
        yield "sudo systemctl start gpushare", error


def show() -> None:
    """Prints it."""
    from gpushare.client import Client
    from gpushare.errors import GpushareError

    print(f"gpushare {__version__}: exact shares of NVIDIA GPUs for many containers on one node\n")
    client = Client()
    try:
        devices, grants = client.devices(), client.grants()
    except GpushareError as error:
        print(f"{error}\n")
        steps = list(_without_a_daemon("the daemon does not run"))
    else:
        count = f"{len(devices)} device{'s' * (len(devices) != 1)}, {len(grants)} grant{'s' * (len(grants) != 1)}"
        print(f"The daemon at {client.path} answers: {count}.\n")
        steps = list(_on_a_node(len(grants)))
    steps += [("gpushare doctor", "what else is missing here"), ("gpushare --help", "all verbs")]
    width = max(len(command) for command, _ in steps)
    for command, what in steps:
        print(f"  {command:{width}}  {what}")
