"""Rarely used paths through the interposer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.interposed import CHUNK, Interpose, Interposed, Spawner, ptx
from run.simworker import Worker

OUT = "CUDA_ERROR_OUT_OF_MEMORY"
LOCAL = 4096  # bytes per thread, more than in a new context
Start = Callable[..., Interposed]


@pytest.fixture
def start(grant: Grant, interpose: Interpose) -> Start:
    def run(device: int | None = 0) -> Interposed:
        return interpose(grant, device)

    return run


@pytest.mark.parametrize("name", ["cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4"])
def test_a_context_that_does_not_fit(start: Start, grant: Grant, sim: Simulator, name: str) -> None:
    worker = start()
    grant.set_limit(2 * CONTEXT - 1)
    worker.do("import ctypes; at = ctypes.c_void_p()")
    words = "0, 0, 0, 0" if name == "cuCtxCreate_v3" else "0, 0, 0" if name == "cuCtxCreate_v4" else "0, 0"
    worker.do(f"call = lambda: lib.{name}(ctypes.byref(at), {words})")
    assert worker.get("call()") == 2
    assert worker.charged() == CONTEXT
    grant.set_limit(2 * CONTEXT)
    assert worker.get("call()") == 0
    assert worker.charged() == 2 * CONTEXT == sim.books()["devices"][0]["peak_bytes"]


def graph_of(worker: Interposed, program: Path) -> None:
    """`graph`: of a kernel in its own context `other`. The primary context is current."""
    worker.do(f"""
        other = ok(d.cuCtxCreate(None, 0, 0)); s = ok(d.cuStreamCreate(1))
        f = ok(d.cuModuleGetFunction(ok(d.cuModuleLoad({str(program).encode()!r})), b"hungry"))
        ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        ok(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0))
        graph = ok(d.cuStreamEndCapture(s))
        ok(d.cuCtxSetCurrent(ctx))
    """)


def test_a_graph_of_another_contexts_kernels(start: Start, grant: Grant, tmp_path: Path) -> None:
    """Each context has its own local memory, and the graph's kernel runs in its own context."""
    worker = start()
    graph_of(worker, ptx(tmp_path / "p.ptx", ("hungry", LOCAL)))
    before = worker.charged()
    grant.set_limit(before + CHUNK)
    assert worker.error("d.cuGraphInstantiate(graph, 0)") == OUT
    assert worker.charged() == before
    grant.set_limit(2 << 30)
    worker.do("e = ok(d.cuGraphInstantiate(graph, 0))")
    held = worker.charged()
    assert held > before + 100 * MIB
    worker.do("ok(d.cuGraphLaunch(e, s)); ok(d.cuStreamSynchronize(s))")
    assert worker.charged() == held
    worker.do("ok(d.cuGraphExecDestroy(e)); ok(d.cuCtxDestroy(other))")
    assert worker.charged() == CONTEXT


def test_one_launch_on_several_devices(pair: Simulator, both: Grant, interpose: Interpose, tmp_path: Path) -> None:
    """Refused as a whole if one device has no room for the kernel; the other devices keep no charge."""
    grant = both
    worker = interpose(grant, on=pair)
    program = ptx(tmp_path / "p.ptx", ("hungry", LOCAL))
    worker.do(f"""
        import ctypes
        class Params(ctypes.Structure):
            _fields_ = [("function", ctypes.c_void_p), ("sizes", ctypes.c_uint * 6), ("shared", ctypes.c_uint),
                        ("stream", ctypes.c_void_p), ("params", ctypes.c_void_p)]
        each = (Params * 2)()
        for device in (1, 0):
            context(device)
            module = ok(d.cuModuleLoad({str(program).encode()!r}))
            function = ok(d.cuModuleGetFunction(module, b"hungry"))
            stream = ok(d.cuStreamCreate(1))
            each[device] = Params(int(function), (1, 1, 1, 1, 1, 1), 0, int(stream), 0)
        launch = lambda at, count: lib.cuLaunchCooperativeKernelMultiDevice(at, count, 0)
    """)
    before = [worker.charged(0), worker.charged(1)]
    grant.set_limit(before[1] + CHUNK, 1)
    assert worker.get("launch(each, 2)") == 2
    assert [worker.charged(0), worker.charged(1)] == before
    grant.set_limit(2 << 30, 1)
    assert worker.get("launch(each, 2)") == 0
    assert worker.get("launch(None, 2)") == worker.get("launch(each, 0)") == 1
    worker.do("ok(d.cuCtxSynchronize())")
    held = [worker.charged(0), worker.charged(1)]
    assert held[0] - before[0] == held[1] - before[1] > 100 * MIB


def test_a_gate_without_a_thread(grant: Grant, sim: Simulator, tmp_path: Path) -> None:
    """If no thread can be started, leases still apply, and one line names the missing feature."""
    worker, errors = Worker(Spawner(sim, grant)), tmp_path / "errors"
    try:
        worker.do(f"""
            import os, resource, threading
            os.dup2(os.open({str(errors)!r}, os.O_WRONLY | os.O_CREAT), 2)
            ok(d.cuInit(0))
            stack = resource.getrlimit(resource.RLIMIT_STACK)
            space = resource.getrlimit(resource.RLIMIT_AS)
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (6 << 20), space[1]))
            ctx = context()
            resource.setrlimit(resource.RLIMIT_AS, space)
            fill = lambda: ok(d.cuCtxSetCurrent(ctx)) or ok(d.cuMemsetD8(p, 7, 4096))
            p = ok(d.cuMemAlloc(4096)); fill()
        """)
        [line] = errors.read_text().splitlines()
        assert "no thread for the gate" in line
        launches = grant.slot(0).launches
        assert launches > 0
        grant.revoke()
        worker.do("work = threading.Thread(target=fill); work.start()")
        assert worker.get("work.join(0.1) or work.is_alive()")
        grant.lease()
        worker.do("work.join(10)")
        assert not worker.get("work.is_alive()")
        assert worker.get("get(p, 2)[0]") == 7
        assert grant.slot(0).launches == launches + 1
    finally:
        worker.process.kill()
        worker.process.communicate()


def test_a_neighbour_that_never_decides(start: Start, grant: Grant, sim: Simulator) -> None:
    """The neighbour's announced allocation delays the others' requests for a while, then they are refused. The fields
    of other processes are not changed."""
    worker = start()
    grant.put_slot(5, 77, pending=2 << 30)
    assert worker.error("d.cuMemAlloc(4096)") == OUT
    assert (grant.slot(5).memory_bytes, grant.slot(5).memory_pending) == (0, 2 << 30)
    grant.give_back(5)
    worker.do("p = ok(d.cuMemAlloc(4096))")
    assert worker.charged() == CONTEXT + 4096
