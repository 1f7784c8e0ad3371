"""NVML inside a grant: the memory and the processes of the grant, never those of a neighbour."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB, Client

from gpushare import paths

LIMIT = 2 << 30
LOOK = """
import json, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo
first, second = memory(device), memory(device, version=pynvml.nvmlMemory_v2)
def refused(function, *arguments):
    try:
        function(*arguments)
    except pynvml.NVMLError as error:
        return type(error).__name__
print(json.dumps({
    "memory": [first.total, first.free, first.used],
    "memory_v2": [second.total, second.free, second.used],
    "compute": {p.pid: p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device)},
    "graphics": [p.pid for p in pynvml.nvmlDeviceGetGraphicsRunningProcesses(device)],
    "set": refused(pynvml.nvmlDeviceSetPersistenceMode, device, 1),
    "reset": refused(pynvml.nvmlDeviceResetApplicationsClocks, device),
    "clear": refused(pynvml.nvmlDeviceClearEccErrorCounts, device, 0),
    "name": pynvml.nvmlDeviceGetName(device),
    "uuid": pynvml.nvmlDeviceGetUUID(device),
    "count": pynvml.nvmlDeviceGetCount(),
}))
"""


def look(env: dict[str, str]) -> dict[str, Any]:
    run = subprocess.run([sys.executable, "-c", LOOK], env=env, capture_output=True, text=True, check=True)
    assert run.stderr == ""
    return dict(json.loads(run.stdout))


def test_memory_and_processes(
    grant: Grant, sim: Simulator, start: Callable[..., Client], environment: Callable[..., dict[str, str]]
) -> None:
    client = start(grant)
    client.ok("init", "retain 0", f"alloc {100 * MIB}")
    neighbour = start(None, **{"GPUSHARE_SIM_DIR": str(sim.directory)})
    neighbour.ok("init", "retain 0", f"alloc {300 * MIB}")
    used = CONTEXT + 100 * MIB
    seen = look(environment(grant))
    assert seen["memory"] == seen["memory_v2"] == [LIMIT, LIMIT - used, used]
    assert seen["compute"] == {str(client.pid): used}
    assert seen["graphics"] == []
    assert {seen["set"], seen["reset"], seen["clear"]} == {"NVMLError_NoPermission"}
    plain = look(
        {
            **environment(None, preload=""),
            "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR),
            "GPUSHARE_SIM_DIR": str(sim.directory),
        }
    )
    assert [seen[fact] for fact in ("name", "uuid", "count")] == [plain[fact] for fact in ("name", "uuid", "count")]
    assert plain["memory"][2] == 2 * CONTEXT + 400 * MIB
    assert str(neighbour.pid) in plain["compute"]
    assert grant.connections == 1, "looking is not joining"


def test_nvidia_smi_shows_the_share(
    grant: Grant, sim: Simulator, start: Callable[..., Client], environment: Callable[..., dict[str, str]]
) -> None:
    client = start(grant)
    client.ok("init", "retain 0", f"alloc {100 * MIB}")
    neighbour = start(None, **{"GPUSHARE_SIM_DIR": str(sim.directory)})
    neighbour.ok("init", "retain 0", f"alloc {300 * MIB}")

    def smi(*arguments: str) -> str:
        command = [paths.SIM_LIB_DIR / paths.SIM_SMI, *arguments]
        return subprocess.run(command, env=environment(grant), capture_output=True, text=True, check=True).stdout

    used = (CONTEXT >> 20) + 100
    assert smi("--query-gpu=memory.total,memory.used", "--format=csv,noheader") == f"2048 MiB, {used} MiB\n"
    assert smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader") == f"{client.pid}, {used} MiB\n"
    assert str(neighbour.pid) not in smi()


def test_without_a_grant_it_is_the_real_one(
    sim: Simulator, start: Callable[..., Client], environment: Callable[..., dict[str, str]]
) -> None:
    client = start(None, **{"GPUSHARE_SIM_DIR": str(sim.directory)})
    client.ok("init", "retain 0", "alloc 4096")
    env = {**environment(None), "GPUSHARE_SIM_DIR": str(sim.directory)}
    through = look({**env, "LD_LIBRARY_PATH": "/nonexistent"})
    assert through["memory"][0] == 4 << 30
    assert through == look({**env, "LD_PRELOAD": ""})
