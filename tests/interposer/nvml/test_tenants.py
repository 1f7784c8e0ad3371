"""NVML inside a grant shows its own processes and their work, and forbids changes to shared settings."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from pages.handmade import SLOTS, Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.viewer import USE, Inside
from run.waiting import until

LIMIT = 2 << 30

SPIN = """
    import ctypes
    text = b'.version 7.0\\n.target sm_50\\n.address_size 64\\n'
    text += b'.visible .entry spin_ns(.param .u64 n)\\n{\\n  ret;\\n}\\n' + bytes(1)
    function = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b'spin_ns'))
    def spin(ns):
        value = ctypes.c_uint64(ns); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(arguments), 0))
    def busy():
        while True:
            spin(1_000_000); ok(d.cuCtxSynchronize())
"""


@pytest.mark.promise("nvml-shows-own")
def test_two_tenants_see_nothing_of_each_other(
    grant: Grant, second: Grant, sim: Simulator, inside: Callable[..., Inside]
) -> None:
    idle, loud = inside(grant).worker(), inside(second).worker()
    for worker in (idle, loud):
        worker.do("ok(d.cuInit(0)); c = context()")
        worker.do(USE)
    loud.do("p = ok(d.cuMemAlloc(900 << 20))")
    loud.do(SPIN)
    loud.do("""
        def work():
            ok(d.cuCtxSetCurrent(c)); busy()
        threading.Thread(target=work, daemon=True).start()
    """)
    began = sim.busy_ns(loud.pid)
    until(lambda: sim.busy_ns(loud.pid) > began + 200_000_000, "the neighbour works")
    for _ in range(3):
        assert idle.get("[rate(), sample(), each(), infos()]") == [0, 0, [], []]
    until(lambda: loud.get("rate()") > 30, "its own work is shown")
    assert [pid for pid, _ in loud.get("each()")] == [loud.pid] == [pid for pid, _ in loud.get("infos()")]
    until(lambda: loud.get("sample()") > 30, "in samples too")
    assert idle.get("processes()") == [[idle.pid, CONTEXT]]
    program = 2 * MIB  # loaded by SPIN
    assert loud.get("processes()") == [[loud.pid, CONTEXT + program + (900 << 20)]]
    assert idle.get("both()")[0] == [LIMIT, LIMIT - CONTEXT, CONTEXT]
    not_found = pynvml.NVML_ERROR_NOT_FOUND
    assert idle.get(f"code(n.nvmlSystemGetProcessName, {loud.pid})") == not_found
    assert idle.get(f"code(n.nvmlSystemGetProcessName, {os.getpid()})") == not_found
    assert "python" in loud.get(f"n.nvmlSystemGetProcessName({loud.pid})")
    for unit in ("Encoder", "Decoder", "Jpg", "Ofa"):
        answer = idle.get(f"code(n.nvmlDeviceGet{unit}Utilization, device())")
        assert answer == pynvml.NVML_ERROR_NOT_SUPPORTED
    bare = inside(None).worker()
    bare.do(USE)
    until(lambda: bare.get("rate()") > 30, "the device is busy")
    assert {pid for pid, _ in bare.get("processes()")} >= {idle.pid, loud.pid}


def test_utilisation_is_metered_time_over_wall_time(grant: Grant, inside: Callable[..., Inside]) -> None:
    """Metered time written by the test: 40 % for one process, 20 % for another, nothing for a third."""
    viewer = inside(grant).worker()
    viewer.do(USE)
    stop = threading.Event()
    for index, pid in enumerate((70001, 70002, 70003)):
        grant.put_slot(index, pid, MIB)
    viewer.get("rate()")

    def meter() -> None:
        began = time.monotonic_ns()
        while not stop.wait(0.002):
            for index, pid, milli in ((0, 70001, 400), (1, 70002, 200)):
                grant.put_slot(index, pid, MIB, (time.monotonic_ns() - began) * milli // 1000)

    thread = threading.Thread(target=meter)
    thread.start()
    try:
        until(lambda: 50 <= viewer.get("rate()") <= 70, "60 % are shown")
        pids = until(lambda: len(found := viewer.get("each()")) == 2 and found, "both are shown")
        assert [pid for pid, _ in pids] == [70001, 70002]
        assert 25 <= pids[0][1] <= 55
        assert 10 <= pids[1][1] <= 35
    finally:
        stop.set()
        thread.join(10)
    until(lambda: viewer.get("[rate(), each()]") == [0, []], "idle again")


def test_accounting_shows_own_processes_only(
    grant: Grant, second: Grant, sim: Simulator, inside: Callable[..., Inside]
) -> None:
    administrator = inside(None).worker()
    administrator.do("n.nvmlDeviceSetAccountingMode(device(), 1)")
    mine, other = inside(grant).worker(), inside(second).worker()
    for worker in (mine, other):
        worker.do("ok(d.cuInit(0)); context()")
    other.do("p = ok(d.cuMemAlloc(900 << 20))")
    assert {mine.pid, other.pid} <= set(administrator.get("n.nvmlDeviceGetAccountingPids(device())"))
    assert mine.get("n.nvmlDeviceGetAccountingPids(device())") == [mine.pid]
    for version in ("", "_v2"):
        stats = f"n.nvmlDeviceGetAccountingStats{version}(device(), PID).maxMemoryUsage"
        assert mine.get(stats.replace("PID", str(mine.pid))) == CONTEXT
        assert administrator.get(stats.replace("PID", str(other.pid))) == CONTEXT + (900 << 20)
        asked = f"code(n.nvmlDeviceGetAccountingStats{version}, device(), {other.pid})"
        assert mine.get(asked) == pynvml.NVML_ERROR_NOT_FOUND
    assert mine.get("code(n.nvmlDeviceClearAccountingPids, device())") == pynvml.NVML_ERROR_NO_PERMISSION


@pytest.mark.promise("nvml-shows-own")
def test_settings_are_not_a_tenant_s(grant: Grant, inside: Callable[..., Inside]) -> None:
    """Each of these calls changes the simulated device if gpushare is not loaded."""
    tenant, administrator = inside(grant).worker(), inside(None).worker()
    state = """[n.nvmlDeviceGetPersistenceMode(device()), n.nvmlDeviceGetComputeMode(device()),
        n.nvmlDeviceGetAccountingMode(device()), n.nvmlDeviceGetPowerManagementLimit(device())]"""
    changes = {"PersistenceMode": 0, "ComputeMode": 2, "AccountingMode": 1, "PowerManagementLimit": 200_000}
    before = administrator.get(state)
    for name, value in changes.items():
        refused = tenant.get(f"code(n.nvmlDeviceSet{name}, device(), {value})")
        assert refused == pynvml.NVML_ERROR_NO_PERMISSION
    assert administrator.get(state) == tenant.get(state) == before
    for name, value in changes.items():
        administrator.do(f"n.nvmlDeviceSet{name}(device(), {value})")
    assert administrator.get(state) == tenant.get(state) == list(changes.values())


CHILD_NAMESPACE = """
import json, os, subprocess, sys
import pynvml as n
client = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for command in ("init", "retain 0"):
    client.stdin.write(command + "\\n"); client.stdin.flush(); client.stdout.readline()
n.nvmlInit(); device = n.nvmlDeviceGetHandleByIndex(0)
seen = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(device)]
names = [n.nvmlSystemGetProcessName(pid) for pid in seen]
recorded = n.nvmlDeviceGetAccountingPids(device)
stats = [n.nvmlDeviceGetAccountingStats_v2(device, pid) for pid in seen]
rows = [[row.pid, row.maxMemoryUsage] for row in stats]
print(json.dumps([client.pid, seen, names, recorded, rows]), flush=True)
sys.stdin.readline()
client.stdin.close()
"""


def test_pids_are_those_of_the_pid_namespace(
    grant: Grant,
    sim: Simulator,
    client_program: Path,
    environment: Callable[..., dict[str, str]],
    inside: Callable[..., Inside],
) -> None:
    inside(None).worker().do("n.nvmlDeviceSetAccountingMode(device(), 1)")
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", CHILD_NAMESPACE]
    child = subprocess.Popen(
        [*command, client_program, "linked"],
        env=environment(grant),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    own, seen, names, recorded, stats = json.loads(child.stdout.readline())
    assert own < 20, "a pid namespace of its own"
    assert seen == recorded == [own]
    assert stats == [[own, CONTEXT]]
    assert str(client_program) in names[0]
    # outside that namespace the simulator and the host know the process by this pid
    host = [process["pid"] for process in sim.books()["devices"][0]["processes"]]
    assert [pid for pid, _ in inside(grant).worker().get("processes()")] == host
    assert host != [own]
    child.communicate("\n", timeout=30)


def test_a_thousand_processes_are_shown_whole(grant: Grant, inside: Callable[..., Inside]) -> None:
    viewer = inside(grant).worker()
    for index in range(SLOTS):
        grant.put_slot(index, 100_000 + index, 4096 + index)
    rows = viewer.get("processes()")
    assert rows == [[100_000 + index, 4096 + index] for index in range(SLOTS)]
    assert viewer.get("both()")[0][2] == sum(held for _, held in rows)
    viewer.do("""
        import ctypes
        def raw(room, size, version=""):
            count, buffer = ctypes.c_uint(room), (ctypes.c_ubyte * (room * size + 64))(*[0xEE] * (room * size + 64))
            function = getattr(ctypes.CDLL("libnvidia-ml.so.1"), "nvmlDeviceGetComputeRunningProcesses" + version)
            result = function(device(), ctypes.byref(count), buffer if room else None)
            return [result, count.value, bytes(buffer[room * size:]) == bytes([0xEE] * 64)]
    """)
    small = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    for version, size in (("", 16), ("_v2", 24), ("_v3", 24)):
        assert viewer.get(f"raw(0, {size}, '{version}')") == [small, SLOTS, True]
        assert viewer.get(f"raw({SLOTS - 1}, {size}, '{version}')") == [small, SLOTS, True]
        assert viewer.get(f"raw({SLOTS}, {size}, '{version}')") == [0, SLOTS, True]
