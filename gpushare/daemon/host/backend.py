"""The devices' backend: NVML, or a simulator, which is started or adopted."""

import json
import logging
import subprocess
import sys
from pathlib import Path

from gpushare.daemon.host import directories
from gpushare.errors import FailedError, UnreachableError
from gpushare.ledger.ledger import Ledger
from gpushare.node import devices as node_devices
from gpushare.node import standins
from gpushare.node.devices import Backend, ContextCost
from gpushare.node.simulated import SimulatedBackend
from gpushare.node.simulator import Simulator
from gpushare.paths import Layout

log = logging.getLogger(__name__)

_PROBE_SECONDS = 70.0


def real(ledger: Ledger) -> Backend:
    """The driver's devices, with the cost of a context on each: from the ledger, or measured now.

    Raises FailedError where there is no driver, or a cost cannot be measured.
    """
    # Imported here, since it loads NVML, which is absent with simulated devices.
    from gpushare.node.nvml import NvmlBackend

    try:
        backend = NvmlBackend()
    except UnreachableError as error:
        raise FailedError(str(error)) from None
    costs = {}
    for device_id in backend.ids():
        known = ledger.context_cost(device_id, backend.driver_version)
        if known is None:
            known = _probe(device_id)
            ledger.set_context_cost(device_id, backend.driver_version, known)
        costs[device_id] = known
    backend.contexts = costs
    return backend


def simulated(layout: Layout, simulate: str) -> tuple[Backend, Simulator]:
    """Simulated devices as `--simulate` names them, from the simulator that already runs if it has the same devices.

    Raises FailedError where one with other devices is in use.
    """
    directory = layout.sim
    directories.own(directory)
    sizes = node_devices.parse_simulate(simulate)
    first = _nodes(directory, len(sizes))
    simulator = Simulator.start_or_adopt(directory, sizes, first)
    if [device.memory_bytes for device in simulator.devices] != sizes:
        if simulator.in_use():
            simulator.close()
            raise FailedError(
                f"the simulator in {directory} is in use and has other devices than {simulate}: end its processes first"
            )
        simulator.stop()
        simulator = Simulator.start_or_adopt(directory, sizes, first)
    return SimulatedBackend(simulator, directory), simulator


def _nodes(directory: Path, count: int) -> tuple[int, int] | None:
    """Makes the devices' nodes before the simulator starts, whose clients look for them. Returns the first one's
    (major, minor); None where there are no nodes."""
    try:
        first = standins.choose(directory)
        if first is not None:
            standins.make(first, count)
    except OSError as error:
        log.info("simulated devices have no nodes: %s", error.strerror)
        return None
    return first


def _probe(device_id: str) -> ContextCost:
    """Measures it in a separate process: a context would stay with the daemon."""
    command = [sys.executable, "-P", "-m", "gpushare.node.probe", device_id]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FailedError(f"the cost of a context on {device_id} cannot be measured: {error}") from None
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise FailedError(f"the cost of a context on {device_id} cannot be measured: {reason[0]}")
    found = json.loads(done.stdout)
    return ContextCost(found["context_bytes"], found["listed_bytes"])
