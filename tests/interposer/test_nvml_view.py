"""What CUDA and NVML say of one grant: the same, at any instant, and nothing of a neighbour. The judge is the simulator."""

import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from driverclient import CONTEXT, MIB, Client
from handmade import LIMITS_BYTES, MEMORY, SLOT_BYTES, SLOTS, SLOTS_HIGH, Grant, Simulator, until
from simworker import Worker

from gpushare import paths

LIMIT = 2 << 30
SLOT_LIVE = 1
LOOK = """
import os, threading
import pynvml as n
def device(index=0): return n.nvmlDeviceGetHandleByIndex(index)
def both(index=0):
    one, two = n.nvmlDeviceGetMemoryInfo(device(index)), n.nvmlDeviceGetMemoryInfo(device(index), version=n.nvmlMemory_v2)
    return [[one.total, one.free, one.used], [two.total, two.reserved, two.free, two.used]]
def processes():
    return sorted([p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(device()))
def code(call, *arguments):
    try:
        call(*arguments)
    except n.NVMLError as failure:
        return failure.value
    return 0
def cuda():
    free, total = ok(d.cuMemGetInfo())
    assert ok(d.cuDeviceTotalMem(0)) == total
    return [total, free]
"""


class Inside:
    """Starts workers of one grant, or of none on the bare simulator."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.children: list[subprocess.Popen[str]] = []

    def spawn(self, *command: str | Path, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            command, env=self.env | (env or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.children.append(child)
        return child

    def worker(self, init: bool = True) -> Worker:
        made = Worker(self)
        made.do(LOOK)
        if init:
            made.do("n.nvmlInit()")
        return made

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait(10)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def inside(environment: Callable[..., dict[str, str]], sim: Simulator) -> Iterator[Callable[..., Inside]]:
    made: list[Inside] = []

    def make(grant: Grant | None) -> Inside:
        env = environment(grant)
        if grant is None:
            env |= {"GPUSHARE_SIM_DIR": str(sim.directory), "LD_PRELOAD": ""}
        made.append(Inside(env))
        return made[-1]

    yield make
    for each in made:
        each.end()


def resize(grant: Grant, limit: int) -> None:
    struct.pack_into("<Q", grant.limits, 128 + MEMORY, limit)


def bytes_of(sim: Simulator, *pids: int) -> int:
    """What the simulator's own books say."""
    processes = sim.books()["devices"][0]["processes"]
    return sum(process["bytes"] for process in processes if process["pid"] in pids)


def put_slot(grant: Grant, index: int, pid: int, held: int, busy_ns: int = 0) -> None:
    at = 64 + index * SLOT_BYTES
    struct.pack_into("<IIi", grant.usage, at, SLOT_LIVE, 1, pid)
    struct.pack_into("<QQQ", grant.usage, at + 64, held, 0, busy_ns)
    high = struct.unpack_from("<I", grant.limits, SLOTS_HIGH)[0]
    struct.pack_into("<I", grant.limits, SLOTS_HIGH, max(high, index + 1))


# ---- one truth ---------------------------------------------------------------------------------------------------------


def test_cuda_and_nvml_agree_to_the_byte(
    grant: Grant, sim: Simulator, start: Callable[..., Client], inside: Callable[..., Inside]
) -> None:
    other = start(grant)
    other.ok("init", "retain 0", f"alloc {300 * MIB}")
    neighbour = inside(None).worker()
    neighbour.do("ok(d.cuInit(0)); context(); p = ok(d.cuMemAlloc(700 << 20))")
    worker = inside(grant).worker()
    worker.do("ok(d.cuInit(0)); context()")
    for change in ("pass", "p = ok(d.cuMemAlloc(123456789))", "q = ok(d.cuMemAlloc(512))", "ok(d.cuMemFree(p))"):
        worker.do(change)
        used = bytes_of(sim, other.pid, worker.pid)
        assert worker.get("cuda()") == [LIMIT, LIMIT - used]
        assert worker.get("both()") == [[LIMIT, LIMIT - used, used], [LIMIT, 0, LIMIT - used, used]]
        rows = dict(worker.get("processes()"))
        assert rows == {pid: bytes_of(sim, pid) for pid in (other.pid, worker.pid)}
        assert sum(rows.values()) == used
        assert worker.get("n.nvmlDeviceGetBAR1MemoryInfo(device()).bar1Used") == 0


def test_every_answer_adds_up_while_others_allocate(
    grant: Grant, start: Callable[..., Client], inside: Callable[..., Inside]
) -> None:
    stop = threading.Event()
    clients = [start(grant) for _ in range(2)]

    def churn(client: Client) -> None:
        client.ok("init", "retain 0")
        number = 0
        while not stop.is_set():
            if client(f"alloc {700 * MIB}").result == 0:
                client.ok(f"free {number}")
                number += 1

    threads = [threading.Thread(target=churn, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    try:
        worker = inside(grant).worker()
        worker.do("ok(d.cuInit(0)); context()")
        worker.do("""
            seen, wrong = set(), []
            for _ in range(3000):
                (total, free, used), (total2, reserved, free2, used2) = both()
                all_cuda, free_cuda = cuda()
                seen.add(used)
                if used + free != total or reserved or used2 + free2 != total2 or not total == total2 == all_cuda:
                    wrong.append([total, free, used, total2, free2, used2])
                if free_cuda > all_cuda or used > total or sum(bytes for _, bytes in processes()) > 2 * total:
                    wrong.append([free_cuda, used])
        """)
        assert worker.get("wrong[:5]") == []
        assert worker.get("len(seen)") > 2, "nothing moved meanwhile"
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    used = sum(held for _, held in worker.get("processes()"))
    assert used == 3 * CONTEXT
    assert worker.get("cuda()")[1] == worker.get("both()")[0][1] == LIMIT - used


def test_total_never_changes_for_a_program_that_saw_it(grant: Grant, inside: Callable[..., Inside]) -> None:
    worker = inside(grant).worker()
    worker.do("ok(d.cuInit(0)); context()")
    used = CONTEXT
    for limit in (LIMIT // 2, LIMIT, 2 * LIMIT, used // 2, LIMIT):
        resize(grant, limit)
        free = max(0, min(limit, LIMIT) - used)
        gone = LIMIT - min(limit, LIMIT)
        assert worker.get("cuda()") == [LIMIT, free]
        one, two = worker.get("both()")
        assert one == [LIMIT, free, LIMIT - free]
        assert two == [LIMIT, gone, free, LIMIT - free - gone]
        assert sum(two[1:]) == LIMIT


def test_one_total_whichever_library_was_asked_first(grant: Grant, inside: Callable[..., Inside]) -> None:
    starts = inside(grant)
    cuda_first, nvml_first, viewer = starts.worker(init=False), starts.worker(), starts.worker()
    cuda_first.do("ok(d.cuInit(0)); context()")
    resize(grant, LIMIT // 2)
    cuda_first.do("n.nvmlInit()")
    assert cuda_first.get("cuda()")[0] == cuda_first.get("both()")[0][0] == LIMIT
    assert nvml_first.get("both()")[0][0] == LIMIT, "as of nvmlInit"
    nvml_first.do("ok(d.cuInit(0)); context()")
    assert nvml_first.get("cuda()")[0] == nvml_first.get("both()")[0][0] == LIMIT // 2, "CUDA's, from its first call on"
    viewer.do("n.nvmlShutdown(); n.nvmlInit()")
    assert viewer.get("both()")[0][0] == LIMIT, "the first nvmlInit counts"
    assert starts.worker().get("both()")[0][0] == LIMIT // 2


def test_one_total_where_the_libraries_are_mounted(
    grant: Grant, placed: Path, environment: Callable[..., dict[str, str]]
) -> None:
    """Not preloaded: the CUDA half is out of reach of a plain look-up."""
    code = """
import ctypes, struct, sys
cuda = ctypes.CDLL("libcuda.so.1", mode=0)
assert cuda.cuInit(0) == 0
print(flush=True)
sys.stdin.readline()
nvml, handle, memory, total = ctypes.CDLL("libnvidia-ml.so.1", mode=0), ctypes.c_void_p(), (ctypes.c_uint64 * 3)(), ctypes.c_size_t()
assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(handle, memory) == cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(memory[0], total.value)
"""
    env = environment(grant, preload="") | {"LD_LIBRARY_PATH": str(placed)}
    child = subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    resize(grant, LIMIT // 4)
    out, _ = child.communicate("\n", timeout=30)
    assert out.split() == [str(LIMIT)] * 2


# ---- neighbours --------------------------------------------------------------------------------------------------------

SPIN = """
    import ctypes
    text = b'.version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry spin_ns(.param .u64 n)\\n{\\n  ret;\\n}\\n' + bytes(1)
    function = ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(text)), b'spin_ns'))
    def spin(ns):
        value = ctypes.c_uint64(ns); arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, ctypes.addressof(arguments), 0))
    def busy():
        while True:
            spin(1_000_000); ok(d.cuCtxSynchronize())
"""
USE = """
    rate = lambda: n.nvmlDeviceGetUtilizationRates(device()).gpu
    def each():
        try:
            return sorted([p.pid, p.smUtil] for p in n.nvmlDeviceGetProcessUtilization(device(), 0))
        except n.NVMLError_NotFound:
            return []
    def infos():
        try:
            return sorted([p.pid, p.smUtil] for p in n.nvmlDeviceGetProcessesUtilizationInfo(device(), 0))
        except n.NVMLError_NotFound:
            return []
    sample = lambda: n.nvmlDeviceGetSamples(device(), n.NVML_GPU_UTILIZATION_SAMPLES, 0)[1][0].sampleValue.uiVal
"""


@pytest.fixture
def second(tmp_path: Path, sim: Simulator) -> Iterator[Grant]:
    made = Grant(tmp_path / "second", sim)
    made.lease()
    yield made
    made.close()


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
    assert loud.get("rate()") > 30
    assert [pid for pid, _ in loud.get("each()")] == [loud.pid] == [pid for pid, _ in loud.get("infos()")]
    assert loud.get("sample()") > 30
    assert idle.get("processes()") == [[idle.pid, CONTEXT]]
    assert loud.get("processes()") == [[loud.pid, CONTEXT + (900 << 20)]]
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
    assert bare.get("rate()") > 30, "the device was busy"
    assert {pid for pid, _ in bare.get("processes()")} >= {idle.pid, loud.pid}


def test_utilisation_is_metered_time_over_wall_time(grant: Grant, inside: Callable[..., Inside]) -> None:
    """With a tester who meters: 40 % by one process, 20 % by another, nothing by a third."""
    viewer = inside(grant).worker()
    viewer.do(USE)
    stop = threading.Event()
    for index, pid in enumerate((70001, 70002, 70003)):
        put_slot(grant, index, pid, MIB)
    viewer.get("rate()")

    def meter() -> None:
        began = time.monotonic_ns()
        while not stop.wait(0.002):
            for index, pid, milli in ((0, 70001, 400), (1, 70002, 200)):
                put_slot(grant, index, pid, MIB, (time.monotonic_ns() - began) * milli // 1000)

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


def test_settings_are_not_a_tenant_s(grant: Grant, inside: Callable[..., Inside]) -> None:
    """Each of these calls changes the simulated device when nobody is in between."""
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


# ---- pids --------------------------------------------------------------------------------------------------------------

CHILD_NAMESPACE = """
import json, os, subprocess, sys
import pynvml as n
client = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for command in ("init", "retain 0"):
    client.stdin.write(command + "\\n"); client.stdin.flush(); client.stdout.readline()
n.nvmlInit(); device = n.nvmlDeviceGetHandleByIndex(0)
seen = [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(device)]
names = [n.nvmlSystemGetProcessName(pid) for pid in seen]
print(json.dumps([client.pid, seen, names]), flush=True)
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
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", CHILD_NAMESPACE]
    child = subprocess.Popen(
        [*command, client_program, "linked"],
        env=environment(grant),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    own, seen, names = json.loads(child.stdout.readline())
    assert own < 20, "a pid namespace of its own"
    assert seen == [own]
    assert str(client_program) in names[0]
    # from outside that namespace it is the process that the simulator and the host know
    host = [process["pid"] for process in sim.books()["devices"][0]["processes"]]
    assert [pid for pid, _ in inside(grant).worker().get("processes()")] == host
    assert host != [own]
    child.communicate("\n", timeout=30)


def test_a_thousand_processes_are_shown_whole(grant: Grant, inside: Callable[..., Inside]) -> None:
    viewer = inside(grant).worker()
    for index in range(SLOTS):
        put_slot(grant, index, 100_000 + index, 4096 + index)
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


# ---- it never fails because of us --------------------------------------------------------------------------------------


def test_a_device_of_somebody_else_shows_nothing(grant: Grant, inside: Callable[..., Inside]) -> None:
    struct.pack_into("<16s", grant.limits, 128, os.urandom(16))
    worker = inside(grant).worker()
    worker.do(USE)
    refused = pynvml.NVML_ERROR_NO_PERMISSION
    assert worker.get("code(both)") == worker.get("code(rate)") == refused
    assert worker.get("processes()") == []
    assert worker.get("n.nvmlDeviceGetName(device())")


@pytest.mark.parametrize("damage", ["magic", "short", "gone", "usage gone", "count"])
def test_damaged_pages_show_nothing(grant: Grant, inside: Callable[..., Inside], damage: str) -> None:
    if damage == "magic":
        struct.pack_into("<I", grant.limits, 0, 1)
    elif damage == "count":
        struct.pack_into("<I", grant.limits, 12, 1 << 30)
    elif damage == "short":
        os.truncate(grant.directory / "limits", LIMITS_BYTES - 1)
    else:
        (grant.directory / ("limits" if damage == "gone" else "usage")).unlink()
    worker = inside(grant).worker()
    worker.do(USE)
    refused = pynvml.NVML_ERROR_NO_PERMISSION
    for _ in range(3):
        assert worker.get("code(both)") == worker.get("code(rate)") == refused
        assert worker.get("processes()") == []
    assert worker.get("n.nvmlDeviceGetCount()") == 1
    assert worker.get("code(n.nvmlDeviceSetPersistenceMode, device(), 0)") == refused
    worker.end()


def test_numbers_of_a_lying_page_are_bounded(grant: Grant, inside: Callable[..., Inside]) -> None:
    viewer = inside(grant).worker()
    viewer.do(USE)
    rate = viewer.get("rate()")
    assert rate == 0
    for index in range(3):
        put_slot(grant, index, -5, (1 << 64) - 1, (1 << 64) - 1)
    assert viewer.get("both()") == [[LIMIT, 0, LIMIT], [LIMIT, 0, 0, LIMIT]]
    assert viewer.get("rate()") <= 100
    assert len(viewer.get("processes()")) == 3
    struct.pack_into("<I", grant.limits, SLOTS_HIGH, 0xFFFFFFFF)
    assert viewer.get("both()")[0] == [LIMIT, 0, LIMIT]
    assert len(viewer.get("processes()")) == 3


def test_without_the_daemon(grant: Grant, inside: Callable[..., Inside]) -> None:
    starts = inside(grant)
    worker = starts.worker()
    worker.do("ok(d.cuInit(0)); context()")
    grant.daemon_dies()
    late = starts.worker()
    for each in (worker, late):
        each.do(USE)
        assert each.get("both()")[0] == [LIMIT, LIMIT - CONTEXT, CONTEXT]
        assert each.get("processes()") == [[worker.pid, CONTEXT]]
        assert each.get("rate()") == 0
    grant.daemon_returns()


def test_init_and_shutdown_from_many_threads(grant: Grant, inside: Callable[..., Inside]) -> None:
    worker = inside(grant).worker()
    descriptors = worker.get("len(os.listdir('/proc/self/fd'))")
    worker.do("""
        wrong = []
        def cycle():
            for _ in range(100):
                n.nvmlInit()
                if both()[0][0] != 2 << 30 or processes() != []: wrong.append(both())
                n.nvmlShutdown()
        threads = [threading.Thread(target=cycle) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """)
    assert worker.get("wrong[:3]") == []
    assert worker.get("len(os.listdir('/proc/self/fd'))") == descriptors
    worker.do("n.nvmlShutdown()")
    assert worker.get("code(both)") == pynvml.NVML_ERROR_UNINITIALIZED


def test_a_child_after_fork_looks_anew(grant: Grant, inside: Callable[..., Inside]) -> None:
    worker = inside(grant).worker()
    worker.do("ok(d.cuInit(0)); context()")
    assert worker.get("both()")[0][0] == LIMIT
    resize(grant, LIMIT // 2)
    worker.do("""
        import json
        end, other = os.pipe()
        if os.fork() == 0:
            try:
                first = code(both)
                n.nvmlInit()
                os.write(other, json.dumps([first, both()[0], processes()]).encode())
            finally:
                os._exit(0)
        os.close(other)
        child = json.loads(os.read(end, 1000)); os.wait()
    """)
    half = LIMIT // 2
    uninitialised = pynvml.NVML_ERROR_UNINITIALIZED
    assert worker.get("child") == [uninitialised, [half, half - CONTEXT, CONTEXT], [[worker.pid, CONTEXT]]]
    assert worker.get("both()")[0][0] == LIMIT


def test_names_found_before_anything_is_loaded(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    """As cuda.bindings.nvml does: every name is looked up in the program itself, then in a library that it opens."""
    code = """
import ctypes, json
program = ctypes.CDLL(None)
names = json.loads(input())
first = {name: ctypes.cast(getattr(program, name), ctypes.c_void_p).value for name in names}
library = ctypes.CDLL("libnvidia-ml.so.1")
same = all(ctypes.cast(getattr(library, name), ctypes.c_void_p).value == first[name] for name in names)
handle, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
assert program.nvmlInit_v2() == program.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
assert program.nvmlDeviceGetMemoryInfo(handle, memory) == 0
print(json.dumps([same, memory[0]]))
"""
    listed = Path(__file__).resolve().parents[2] / "native" / "api" / "nvml.txt"
    names = [line for line in listed.read_text().splitlines() if not line.startswith("#")]
    env = environment(grant) | {"LD_LIBRARY_PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(names), env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [True, LIMIT]


def test_a_small_stack_is_enough(grant: Grant, environment: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    """A thread with the smallest stack there is, and a grant with a thousand processes."""
    for index in range(SLOTS):
        put_slot(grant, index, 100_000 + index, 4096, 1000)
    program = tmp_path / "small"
    (tmp_path / "small.c").write_text("""
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, void *);
int nvmlDeviceGetProcessUtilization(void *, void *, unsigned *, unsigned long long);
int nvmlDeviceGetRunningProcessDetailList(void *, void *);
static char room[1100 * 40];
static void *device;
static int results[3];
static void *look(void *unused) {
  unsigned count = 1100;
  struct { unsigned version, mode, count; void *list; } details = {0x1000018, 0, 1100, room};
  results[0] = nvmlDeviceGetComputeRunningProcesses_v3(device, &count, room) * 10000 + (int)count;
  results[1] = nvmlDeviceGetRunningProcessDetailList(device, &details) * 10000 + (int)details.count;
  count = 1100;
  results[2] = nvmlDeviceGetProcessUtilization(device, room, &count, 0);
  return unused;
}
int main(void) {
  pthread_t thread;
  pthread_attr_t small;
  if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device)) return 1;
  unsigned count = 0; /* what is lazily loaded is loaded on a big stack */
  nvmlDeviceGetComputeRunningProcesses_v3(device, &count, 0);
  nvmlDeviceGetProcessUtilization(device, 0, &count, 0);
  pthread_attr_init(&small);
  if (pthread_attr_setstacksize(&small, 16384) || pthread_create(&thread, &small, look, 0)) return 2;
  pthread_join(thread, 0);
  printf("%d %d %d\\n", results[0], results[1], results[2]);
  return 0;
}
""")
    library = paths.SIM_LIB_DIR / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-pthread", tmp_path / "small.c", "-o", program, library], check=True)
    run = subprocess.run([program], env=environment(grant), capture_output=True, text=True, check=False)
    assert run.returncode == 0, f"{run.returncode}: {run.stderr}"
    assert run.stdout.split() == ["1024", "1024", str(pynvml.NVML_ERROR_NOT_FOUND)]


def test_errno_and_descriptors_are_left_alone(grant: Grant, inside: Callable[..., Inside]) -> None:
    worker = inside(grant).worker(init=False)
    worker.do("""
        import ctypes, signal
        library, handle, memory = ctypes.CDLL("libnvidia-ml.so.1", use_errno=True), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
        library.nvmlInit_v2(); library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
        before = sorted(os.listdir('/proc/self/fd'))
        ctypes.set_errno(77)
        result = library.nvmlDeviceGetMemoryInfo(handle, memory)
        number = ctypes.get_errno()
        after = sorted(os.listdir('/proc/self/fd'))
    """)
    assert worker.get("[result, number, before == after]") == [0, 77, True]
