"""CUDA and NVML report the same for one grant, to the byte and at any instant, as measured by the simulator."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB, Client
from run.viewer import Inside, bytes_of

LIMIT = 2 << 30


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


def test_every_answer_adds_up_while_others_allocate(grant: Grant, inside: Callable[..., Inside]) -> None:
    starts = inside(grant)
    churners = [starts.worker() for _ in range(2)]
    for churner in churners:
        churner.do("""
            ok(d.cuInit(0)); c = context(); going, made = True, 0
            def churn():
                global made
                ok(d.cuCtxSetCurrent(c))
                while going:
                    error, p = d.cuMemAlloc(1100 << 20)
                    if error == d.CUresult.CUDA_SUCCESS:
                        made += 1
                        ok(d.cuMemFree(p))
            thread = threading.Thread(target=churn); thread.start()
        """)
    worker = starts.worker()
    worker.do("ok(d.cuInit(0)); context()")
    worker.do("""
        seen, wrong = set(), []
        import time
        deadline, looks = time.monotonic() + 30, 0
        while looks < 3000 or (len(seen) < 2 and time.monotonic() < deadline):
            looks += 1
            (total, free, used), (total2, reserved, free2, used2) = both()
            all_cuda, free_cuda = cuda()
            seen.add(used)
            if used + free != total or reserved or used2 + free2 != total2 or not total == total2 == all_cuda:
                wrong.append([total, free, used, total2, free2, used2])
            if free_cuda > all_cuda or used > total:
                wrong.append([free_cuda, used])
    """)
    for churner in churners:
        churner.do("going = False; thread.join()")
    # There is room for one allocation at a time, and no guarantee that the churners take turns.
    assert sum(churner.get("made") for churner in churners) > 0
    assert worker.get("wrong[:5]") == []
    assert worker.get("len(seen)") > 1, "nothing moved meanwhile"
    used = sum(held for _, held in worker.get("processes()"))
    assert used == 3 * CONTEXT
    assert worker.get("cuda()")[1] == worker.get("both()")[0][1] == LIMIT - used


def test_total_never_changes_for_a_program_that_saw_it(grant: Grant, inside: Callable[..., Inside]) -> None:
    worker = inside(grant).worker()
    worker.do("ok(d.cuInit(0)); context()")
    used = CONTEXT
    for limit in (LIMIT // 2, LIMIT, 2 * LIMIT, used // 2, LIMIT):
        grant.set_limit(limit)
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
    grant.set_limit(LIMIT // 2)
    cuda_first.do("n.nvmlInit()")
    assert cuda_first.get("cuda()")[0] == cuda_first.get("both()")[0][0] == LIMIT
    assert nvml_first.get("both()")[0][0] == LIMIT, "as of nvmlInit"
    nvml_first.do("ok(d.cuInit(0)); context()")
    assert nvml_first.get("cuda()")[0] == nvml_first.get("both()")[0][0] == LIMIT // 2, "CUDA's, from its first call on"
    viewer.do("n.nvmlShutdown(); n.nvmlInit()")
    assert viewer.get("both()")[0][0] == LIMIT, "the first nvmlInit counts"
    grant.set_limit(LIMIT)
    older = {name: starts.worker(init=False) for name in ("nvmlInit", "nvmlInit_v2")}
    for name, each in older.items():
        each.do(f"import ctypes; assert ctypes.CDLL('libnvidia-ml.so.1').{name}() == 0")
    grant.set_limit(LIMIT // 2)
    for each in older.values():
        each.do("n.nvmlInit()")
        assert each.get("both()")[0][0] == LIMIT
    assert starts.worker().get("both()")[0][0] == LIMIT // 2


def test_one_total_where_the_libraries_are_mounted(
    grant: Grant, placed: Path, environment: Callable[..., dict[str, str]]
) -> None:
    """Without a preload, a plain look-up in the program does not find the CUDA half."""
    code = """
import ctypes, struct, sys
cuda = ctypes.CDLL("libcuda.so.1", mode=0)
assert cuda.cuInit(0) == 0
print(flush=True)
sys.stdin.readline()
nvml, handle = ctypes.CDLL("libnvidia-ml.so.1", mode=0), ctypes.c_void_p()
memory, total = (ctypes.c_uint64 * 3)(), ctypes.c_size_t()
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
    grant.set_limit(LIMIT // 4)
    out, _ = child.communicate("\n", timeout=30)
    assert out.split() == [str(LIMIT)] * 2
