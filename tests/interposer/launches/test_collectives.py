"""Kernels of collectives are recognised however a program obtains them, and counted however it launches them."""

import os
from collections.abc import Callable

import pytest
from pages.handmade import Grant, Simulator
from run.interposed import Interpose, Interposed

PTX = "".join(
    f".visible .entry {name}()\\n{{\\n\\tret;\\n}}\\n"
    for name in ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "_Z24ncclDevKernel_SendRecvv", "other", "ncclKernel", "_Z5")
)
PRELUDE = f"""
text = b".version 7.0\\n.target sm_52\\n.address_size 64\\n{PTX}"
name, plain = b"ncclDevKernel_AllReduce_Sum_f32_RING_LL", b"other"
stream = ok(d.cuStreamCreate(1))
load = lambda: ok(d.cuModuleLoadData(text))
library = lambda: ok(d.cuLibraryLoadData(text, [], [], 0, [], [], 0))
as_function = lambda kernel: d.CUfunction(int(kernel))
named = lambda handle, query: ok(query(handle)) == name
def launch(function, times=1, on=None):
    for _ in range(times):
        ok(d.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream if on is None else on, 0, 0))
def capture(function, times, also=()):
    ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    launch(function, times)
    [launch(f) for f in also]
    return ok(d.cuStreamEndCapture(stream))
def node_of(graph, which=0):
    return ok(d.cuGraphGetNodes(graph, 100))[0][which]
def kernel(function):
    return made(d.CUDA_KERNEL_NODE_PARAMS, func=function, gridDimX=1, gridDimY=1, gridDimZ=1, blockDimX=1, blockDimY=1,
                blockDimZ=1)
"""
RAW = """
word = ctypes.c_void_p
def raw(symbol, *arguments):
    assert getattr(lib, symbol)(*arguments) == 0, symbol
shape = [ctypes.c_uint(1)] * 6 + [ctypes.c_uint(0)]
function, handle = load(), None
function = word(int(ok(d.cuModuleGetFunction(function, name))))
handle = word(int(stream))
class Config(ctypes.Structure):
    _fields_ = [("shape", ctypes.c_uint * 7), ("stream", word), ("attrs", word), ("count", ctypes.c_uint)]
config = Config((ctypes.c_uint * 7)(1, 1, 1, 1, 1, 1, 0), int(stream), None, 0)
class Params(ctypes.Structure):
    _fields_ = [("function", word), ("shape", ctypes.c_uint * 7), ("stream", word), ("params", word)]
both = (Params * 2)(*[Params(function, (ctypes.c_uint * 7)(1, 1, 1, 1, 1, 1, 0), int(stream), None)] * 2)
"""


@pytest.fixture
def worker(pair: Simulator, both: Grant, interpose: Interpose) -> Interposed:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    made = interpose(both, on=pair)
    made.do(PRELUDE)
    return made


@pytest.fixture
def counted(both: Grant, worker: Interposed) -> Callable[[str], int]:
    """The increase of device 0's count caused by a line."""

    def run(line: str) -> int:
        before = both.slot().collectives
        worker.do(line)
        return both.slot().collectives - before

    return run


LOOKUPS = {
    "module": "f = ok(d.cuModuleGetFunction(load(), name))",
    "mangled": "f = ok(d.cuModuleGetFunction(load(), b'_Z24ncclDevKernel_SendRecvv'))",
    "enumerated": "m = load(); n = ok(d.cuModuleGetFunctionCount(m))\n"
    "f = next(f for f in ok(d.cuModuleEnumerateFunctions(n, m)) if named(f, d.cuFuncGetName))",
    "kernel": "f = as_function(ok(d.cuLibraryGetKernel(library(), name)))",
    "kernel's function": "f = ok(d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(library(), name))))",
    "library's module": "f = ok(d.cuModuleGetFunction(ok(d.cuLibraryGetModule(library())), name))",
    "enumerated kernel": "m = library(); n = ok(d.cuLibraryGetKernelCount(m))\n"
    "k = next(k for k in ok(d.cuLibraryEnumerateKernels(n, m)) if named(k, d.cuKernelGetName)); f = as_function(k)",
    "its function": "m = library(); n = ok(d.cuLibraryGetKernelCount(m))\n"
    "k = next(k for k in ok(d.cuLibraryEnumerateKernels(n, m)) if named(k, d.cuKernelGetName))\n"
    "f = ok(d.cuKernelGetFunction(k))",
}


@pytest.mark.parametrize("way", LOOKUPS)
def test_however_it_is_looked_up(counted: Callable[[str], int], worker: Interposed, both: Grant, way: str) -> None:
    worker.do(LOOKUPS[way])
    assert both.slot().collectives == 0
    assert counted("launch(f, 7)") == 7
    assert both.slot().launches == 7


LAUNCHES = {
    "cuLaunchKernel": "raw('cuLaunchKernel', function, *shape, handle, None, None)",
    "cuLaunchKernel_ptsz": "raw('cuLaunchKernel_ptsz', function, *shape, None, None, None)",
    "cuLaunchKernelEx": "raw('cuLaunchKernelEx', ctypes.byref(config), function, None, None)",
    "cuLaunchKernelEx_ptsz": "raw('cuLaunchKernelEx_ptsz', ctypes.byref(config), function, None, None)",
    "cuLaunchCooperativeKernel": "raw('cuLaunchCooperativeKernel', function, *shape, handle, None)",
    "cuLaunchCooperativeKernel_ptsz": "raw('cuLaunchCooperativeKernel_ptsz', function, *shape, handle, None)",
    "cuLaunch": "raw('cuFuncSetBlockShape', function, 1, 1, 1); raw('cuLaunch', function)",
    "cuLaunchGrid": "raw('cuFuncSetBlockShape', function, 1, 1, 1); raw('cuLaunchGrid', function, 1, 1)",
    "cuLaunchGridAsync": "raw('cuFuncSetBlockShape', function, 1, 1, 1)\n"
    "raw('cuLaunchGridAsync', function, 1, 1, handle)",
}


@pytest.mark.parametrize("call", LAUNCHES)
def test_however_it_is_launched(counted: Callable[[str], int], worker: Interposed, call: str) -> None:
    worker.do(RAW)
    for _ in range(3):
        assert counted(LAUNCHES[call]) == 1


def test_one_launch_on_several_streams(counted: Callable[[str], int], worker: Interposed) -> None:
    worker.do(RAW)
    assert counted("raw('cuLaunchCooperativeKernelMultiDevice', both, 2, 0)") == 2


def test_others_are_not_counted(counted: Callable[[str], int], worker: Interposed) -> None:
    worker.do("m = load(); ok(d.cuModuleGetFunction(m, name))")
    for name in ("other", "ncclKernel", "_Z5"):
        assert counted(f"launch(ok(d.cuModuleGetFunction(m, b'{name}')), 5)") == 0


def test_what_the_driver_refuses_is_counted_back(counted: Callable[[str], int], worker: Interposed) -> None:
    worker.do("f = ok(d.cuModuleGetFunction(load(), name))")
    assert counted("assert error(d.cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, stream, 0, 0)) != 'CUDA_SUCCESS'") == 0
    assert counted("launch(f, 2)") == 2


def test_each_device_has_its_own(worker: Interposed, both: Grant) -> None:
    """Two contexts on one device and one on the other; a library's kernel has the same handle in all three."""
    worker.do("f = as_function(ok(d.cuLibraryGetKernel(library(), name))); launch(f, 3)")
    worker.do("other = ok(d.cuCtxCreate(None, 0, 0)); s = ok(d.cuStreamCreate(1)); launch(f, 4, s)")
    worker.do("far = context(1); t = ok(d.cuStreamCreate(1)); launch(f, 5, t); launch(f, 1, s)")
    assert (both.slot().collectives, both.slot(device=1).collectives) == (8, 5)


def test_a_handle_that_is_another_function_now(counted: Callable[[str], int], worker: Interposed) -> None:
    worker.do("m = load(); f = ok(d.cuModuleGetFunction(m, name)); seen = {int(f)}")
    assert counted("launch(f, 2); ok(d.cuStreamSynchronize(stream)); ok(d.cuModuleUnload(m))") == 2
    worker.do("m = load(); g = [ok(d.cuModuleGetFunction(m, n)) for n in (b'other', b'ncclKernel', b'_Z5')]")
    assert worker.get("any(int(each) in seen for each in g)"), "no handle came back as another's"
    assert counted("[launch(each, 5) for each in g]") == 0
    worker.do("made = ok(d.cuCtxCreate(None, 0, 0)); m = load(); f = ok(d.cuModuleGetFunction(m, name))")
    assert counted("launch(f, 2, ok(d.cuStreamCreate(1))); ok(d.cuCtxSynchronize()); ok(d.cuCtxDestroy(made))") == 2
    worker.do("ok(d.cuCtxSetCurrent(ctx)); g = ok(d.cuModuleGetFunction(load(), plain))")
    assert counted("launch(g, 5)") == 0


def test_in_graphs(counted: Callable[[str], int], worker: Interposed) -> None:
    worker.do("m = load(); f = ok(d.cuModuleGetFunction(m, name)); g = ok(d.cuModuleGetFunction(m, plain))")
    assert counted("graph = capture(f, 3, also=[g, g])") == 0
    assert counted("run = ok(d.cuGraphInstantiate(graph, 0)); none = ok(d.cuGraphInstantiate(capture(g, 2), 0))") == 0
    assert counted("ok(d.cuGraphLaunch(run, stream)); ok(d.cuGraphLaunch(none, stream))") == 3
    assert counted("ok(d.cuGraphLaunch(run, stream)); launch(f)") == 4
    assert counted("lib.cuGraphLaunch_ptsz(ctypes.c_void_p(int(run)), ctypes.c_void_p(int(stream)))") == 3
    worker.do("ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))")
    assert counted("ok(d.cuGraphLaunch(run, stream)); launch(f); whole = ok(d.cuStreamEndCapture(stream))") == 0
    assert counted("both = ok(d.cuGraphInstantiate(whole, 0)); ok(d.cuGraphLaunch(both, stream))") == 4
    assert counted("ok(d.cuGraphExecDestroy(run)); again = ok(d.cuGraphInstantiate(capture(g, 1), 0))") == 0
    assert counted("ok(d.cuGraphLaunch(again, stream))") == 0


def test_in_graphs_that_change(counted: Callable[[str], int], worker: Interposed) -> None:
    worker.do("m = load(); f = ok(d.cuModuleGetFunction(m, name)); g = ok(d.cuModuleGetFunction(m, plain))")
    worker.do("graph = capture(f, 3, also=[g]); run = ok(d.cuGraphInstantiate(graph, 0))")
    go = "ok(d.cuGraphLaunch(run, stream))"
    worker.do("ok(d.cuGraphNodeSetEnabled(run, node_of(graph), 0))")
    assert counted(go) == 2
    worker.do(
        "ok(d.cuGraphNodeSetEnabled(run, node_of(graph), 1)); ok(d.cuGraphNodeSetEnabled(run, node_of(graph), 1))"
    )
    assert counted(go) == 3
    for _ in range(2):
        worker.do("ok(d.cuGraphExecKernelNodeSetParams(run, node_of(graph, 1), kernel(g)))")
        assert counted(go) == 2
    worker.do("ok(d.cuGraphExecKernelNodeSetParams(run, node_of(graph, 3), kernel(f)))")
    assert counted(go) == 3
    worker.do("ok(d.cuGraphExecKernelNodeSetParams(run, node_of(graph, 1), kernel(f)))")
    assert counted(go) == 4
    worker.do("ok(d.cuGraphExecUpdate(run, capture(g, 4)))")
    assert counted(go) == 0
    worker.do("ok(d.cuGraphExecUpdate(run, capture(f, 4)))")
    assert counted(go) == 4
    worker.do("quiet = ok(d.cuGraphInstantiate(capture(g, 2), 0)); ok(d.cuGraphExecUpdate(quiet, capture(f, 2)))")
    assert counted("ok(d.cuGraphLaunch(quiet, stream)); ok(d.cuGraphExecDestroy(quiet))") == 2


def test_in_a_graph_with_a_node_on_the_other_device(worker: Interposed, both: Grant) -> None:
    worker.do(
        """
        f = ok(d.cuModuleGetFunction(load(), name))
        graph = capture(f, 1)
        far = context(1)
        ok(d.cuGraphAddKernelNode(graph, [], 0, kernel(ok(d.cuModuleGetFunction(load(), name)))))
        ok(d.cuCtxSetCurrent(ctx))
        ok(d.cuGraphLaunch(ok(d.cuGraphInstantiate(graph, 0)), stream))
        """
    )
    assert (both.slot().collectives, both.slot(device=1).collectives) == (1, 1)


def test_one_after_the_other(counted: Callable[[str], int], worker: Interposed, both: Grant) -> None:
    """Also short ones, at the launch rate at which other kernels are not booked individually."""
    worker.do("m = load(); f = ok(d.cuModuleGetFunction(m, name)); g = ok(d.cuModuleGetFunction(m, plain))")
    assert counted("for _ in range(100): launch(f, 20); ok(d.cuStreamSynchronize(stream))") == 2000
    assert counted("for _ in range(50): launch(g, 20); launch(f, 20); ok(d.cuStreamSynchronize(stream))") == 1000
    assert both.slot().launches == 4000
