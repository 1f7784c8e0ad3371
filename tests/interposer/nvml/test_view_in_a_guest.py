"""The NVML view adds no failures and never crashes a program."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from pages.handmade import LIMITS_BYTES, SLOTS, Grant, Simulator
from run import built
from run.driverclient import CONTEXT, MIB
from run.viewer import USE, Inside

LIMIT = 2 << 30


def test_a_device_of_somebody_else_shows_nothing(grant: Grant, inside: Callable[..., Inside]) -> None:
    """Not even to a program that has its handle, which gpushare would not have given it."""
    worker = inside(grant).worker()
    worker.do(USE)
    worker.do("handle = device(); device = lambda index=0: handle")
    grant.limits.device[0].uuid = os.urandom(16)
    strange = pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert worker.get("code(both)") == worker.get("code(rate)") == strange
    assert worker.get("code(n.nvmlDeviceGetIndex, handle)") == strange
    assert worker.get("processes()") == []
    assert worker.get("n.nvmlDeviceGetName(handle)"), "the hardware's"


@pytest.mark.parametrize("damage", ["magic", "short", "gone", "usage gone", "count"])
def test_damaged_pages_show_nothing(grant: Grant, inside: Callable[..., Inside], damage: str) -> None:
    if damage == "magic":
        grant.limits.magic = 1
    elif damage == "count":
        grant.limits.ndevices = 1 << 30
    elif damage == "short":
        os.truncate(grant.directory / "limits", LIMITS_BYTES - 1)
    else:
        (grant.directory / ("limits" if damage == "gone" else "usage")).unlink()
    worker = inside(grant).worker()
    worker.do(USE)
    nothing = pynvml.NVML_ERROR_INVALID_ARGUMENT
    for _ in range(3):
        assert worker.get("n.nvmlDeviceGetCount()") == 0
        assert worker.get("code(device)") == worker.get("code(both)") == worker.get("code(rate)") == nothing
    worker.end()


def test_who_may_not_read_the_usage_page_is_shown_nothing(
    environment: Callable[..., dict[str, str]], inside: Callable[..., Inside]
) -> None:
    """A user other than the grant's: reporting 0 bytes used would be wrong."""
    place = Path(tempfile.mkdtemp(prefix="gpushare-test-"))
    place.chmod(0o755)
    sim = Simulator(place / "sim")
    grant = Grant(place / "grant", sim)
    try:
        grant.put_slot(0, 4711, MIB)
        (grant.directory / "usage").chmod(0o600)
        sim.socket.chmod(0o666)
        worker = inside(grant).worker(init=False)
        worker.do("os.setegid(65534); os.seteuid(65534); n.nvmlInit()")
        worker.do(USE)
        refused = pynvml.NVML_ERROR_NO_PERMISSION
        assert worker.get("code(both)") == worker.get("code(rate)") == refused
        assert worker.get("processes()") == []
        (grant.directory / "usage").chmod(0o644)
        worker = inside(grant).worker(init=False)
        worker.do("os.setegid(65534); os.seteuid(65534); n.nvmlInit()")
        assert worker.get("both()")[0] == [LIMIT, LIMIT - MIB, MIB]
        assert worker.get("processes()") == [[4711, MIB]]
    finally:
        grant.close()
        sim.stop()
        shutil.rmtree(place)


def test_numbers_of_a_lying_page_are_bounded(grant: Grant, inside: Callable[..., Inside]) -> None:
    viewer = inside(grant).worker()
    viewer.do(USE)
    rate = viewer.get("rate()")
    assert rate == 0
    for index in range(4):
        grant.put_slot(index, -5, 1 << 63, 1 << 63)  # any two sum to zero
    assert viewer.get("both()") == [[LIMIT, 0, LIMIT], [LIMIT, 0, 0, LIMIT]]
    assert viewer.get("rate()") == 100
    assert len(viewer.get("processes()")) == 4
    grant.limits.slots_high = 0xFFFFFFFF
    assert viewer.get("both()")[0] == [LIMIT, 0, LIMIT]
    assert len(viewer.get("processes()")) == 4


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
    grant.set_limit(LIMIT // 2)
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
    """As cuda.bindings.nvml does: it looks up every name in the program itself, then in a library that it opens."""
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
    listed = Path(__file__).resolve().parents[3] / "native" / "api" / "nvml.txt"
    names = [line for line in listed.read_text().splitlines() if not line.startswith("#")]
    env = environment(grant) | {"LD_LIBRARY_PATH": ""}
    run = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(names), env=env, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [True, LIMIT]


def test_cuda_bindings_nvml(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    code = """
import json
from cuda.bindings import driver, nvml
nvml.init_v2()
device = nvml.device_get_handle_by_index_v2(0)
def memory():
    found = nvml.device_get_memory_info_v2(device)
    return [found.total, found.reserved, found.free, found.used]
before = memory()
try:
    nvml.device_set_persistence_mode(device, 0)
    refused = 0
except nvml.NvmlError as failure:
    refused = failure.status
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
_, free, total = driver.cuMemGetInfo()
own = nvml.device_get_compute_running_processes_v3(device)
print(json.dumps([before, refused, memory(), [total, free], [int(own.pid), int(own.used_gpu_memory)]]))
"""
    child = subprocess.Popen([sys.executable, "-c", code], env=environment(grant), stdout=subprocess.PIPE, text=True)
    out, _ = child.communicate(timeout=60)
    before, refused, after, cuda, own = json.loads(out)
    assert before == [LIMIT, 0, LIMIT, 0]
    assert refused == pynvml.NVML_ERROR_NO_PERMISSION
    assert after == [LIMIT, 0, LIMIT - CONTEXT, CONTEXT]
    assert cuda == [LIMIT, LIMIT - CONTEXT]
    assert own == [child.pid, CONTEXT]


def test_a_small_stack_is_enough(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    """A thread with the minimum stack size, and a grant with a thousand processes."""
    for index in range(SLOTS):
        grant.put_slot(index, 100_000 + index, 4096, 1000)
    run = subprocess.run(
        [built.program("small_stack")], env=environment(grant), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{run.returncode}: {run.stderr}"
    assert run.stdout.split() == ["1024", "1024", str(pynvml.NVML_ERROR_NOT_FOUND)]


def test_errno_and_descriptors_are_left_alone(grant: Grant, inside: Callable[..., Inside]) -> None:
    worker = inside(grant).worker(init=False)
    worker.do("""
        import ctypes
        library = ctypes.CDLL("libnvidia-ml.so.1", use_errno=True)
        handle, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
        library.nvmlInit_v2(); library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
        before = sorted(os.listdir('/proc/self/fd'))
        ctypes.set_errno(77)
        result = library.nvmlDeviceGetMemoryInfo(handle, memory)
        number = ctypes.get_errno()
        after = sorted(os.listdir('/proc/self/fd'))
    """)
    assert worker.get("[result, number, before == after]") == [0, 77, True]
