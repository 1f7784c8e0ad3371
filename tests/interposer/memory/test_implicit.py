"""Memory that the driver allocates implicitly is reserved first: local memory, the buffers of cuCtxSetLimit, programs.
The reference is the simulator, which accounts for the same memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB
from run.interposed import CHUNK, Interpose, Interposed, chunks, ptx

LIMIT = 2 << 30
THREADS = 108 * 2048  # resident threads of the simulated device
FIRST = 1024  # stack bytes per thread of a new context, included in its cost
OUT = "CUDA_ERROR_OUT_OF_MEMORY"
Start = Callable[..., Interposed]


def stack(per_thread: int) -> int:
    """Bytes in addition to a new context's."""
    return chunks(per_thread * THREADS) - chunks(FIRST * THREADS)


def load(path: Path, name: str = "m") -> str:
    return f"{name} = ok(d.cuModuleLoad({str(path).encode()!r}))"


def launch(name: str, module: str = "m", stream: str = "0") -> str:
    function = f"ok(d.cuModuleGetFunction({module}, {name.encode()!r}))"
    return f"d.cuLaunchKernel({function}, 1, 1, 1, 1, 1, 1, 0, {stream}, 0, 0)"


@pytest.fixture
def start(grant: Grant, interpose: Interpose) -> Start:
    def run(device: int | None = 0) -> Interposed:
        return interpose(grant, device)

    return run


def peak(sim: Simulator) -> int:
    return int(sim.books()["devices"][0]["peak_bytes"])


# ---- local memory


def test_the_hungriest_kernel_sets_the_local_memory(start: Start, tmp_path: Path) -> None:
    program = ptx(tmp_path / "p.ptx", ("none", 0), ("small", 512), ("two", 2048), ("three", 3000), ("one", 1040))
    worker = start()
    worker.do(load(program))
    base = CONTEXT + CHUNK
    assert worker.charged() == base
    for name, grown in [
        ("none", 0),
        ("small", 0),  # included in a new context
        ("one", stack(1040)),
        ("two", stack(2048)),
        ("one", stack(2048)),
        ("three", stack(3008)),
        ("two", stack(3008)),  # it never shrinks
    ]:
        worker.do(f"ok({launch(name)}); ok(d.cuCtxSynchronize())")
        assert worker.charged() == base + grown, name
    worker.do("ok(d.cuModuleUnload(m))")
    assert worker.charged() == CONTEXT + stack(3008), "local memory stays with the context"
    worker.do("ok(d.cuDevicePrimaryCtxReset(0))")
    assert worker.charged() == 0


def test_local_memory_that_does_not_fit_is_refused_before_the_driver_is_asked(
    start: Start, sim: Simulator, tmp_path: Path
) -> None:
    program = ptx(tmp_path / "p.ptx", ("fits", 4096), ("big", 16384), ("none", 0))
    worker = start()
    worker.do(load(program))
    before = worker.charged()
    assert before + stack(16384) > LIMIT
    assert worker.error(launch("big")) == OUT
    assert worker.charged() == before
    worker.do(f"ok({launch('none')}); ok({launch('fits')})")
    assert worker.charged() == before + stack(4096)
    assert worker.error(launch("big")) == OUT, "it is looked at again"
    room = LIMIT - worker.charged()
    assert worker.error(f"d.cuMemAlloc({room + 1})") == OUT
    worker.do(f"p = ok(d.cuMemAlloc({room}))")
    assert worker.charged() == LIMIT == peak(sim)


def test_a_refused_first_launch_leaves_nothing_behind(start: Start, tmp_path: Path) -> None:
    worker = start()
    worker.do(load(ptx(tmp_path / "p.ptx", ("two", 2048))))
    before = worker.charged()
    function = "ok(d.cuModuleGetFunction(m, b'two'))"
    assert worker.error(f"d.cuLaunchKernel({function}, 1, 1, 1, 4096, 1, 1, 0, 0, 0, 0)") == "CUDA_ERROR_INVALID_VALUE"
    assert worker.charged() == before
    worker.do(f"ok({launch('two')})")
    assert worker.charged() == before + stack(2048)


def test_each_context_has_its_own(start: Start, tmp_path: Path) -> None:
    program = ptx(tmp_path / "p.ptx", ("two", 2048))
    worker = start()
    worker.do(f"other = ok(d.cuCtxCreate(None, 0, 0)); {load(program)}; ok({launch('two')})")
    assert worker.charged() == 2 * CONTEXT + CHUNK + stack(2048)
    worker.do(f"ok(d.cuCtxSetCurrent(ctx)); {load(program, 'n')}; ok({launch('two', 'n')})")
    assert worker.charged() == 2 * (CONTEXT + CHUNK + stack(2048))
    worker.do("ok(d.cuCtxDestroy(other))")
    assert worker.charged() == CONTEXT + CHUNK + stack(2048)


def test_a_librarys_kernel_in_two_contexts(start: Start, tmp_path: Path) -> None:
    """The same handle is launched in both contexts, so the check must be per context."""
    program = ptx(tmp_path / "p.ptx", ("two", 2048))
    worker = start()
    worker.do(f"l = ok(d.cuLibraryLoadFromFile({str(program).encode()!r}, None, None, 0, None, None, 0))")
    assert worker.charged() == CONTEXT, "it is in no context yet"
    worker.do("k = d.CUfunction(int(ok(d.cuLibraryGetKernel(l, b'two'))))")
    call = "d.cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)"
    worker.do(f"ok({call}); ok({call})")
    assert worker.charged() == CONTEXT + CHUNK + stack(2048)
    worker.do(f"other = ok(d.cuCtxCreate(None, 0, 0)); ok({call}); ok({call})")
    assert worker.charged() == 2 * (CONTEXT + CHUNK + stack(2048))
    worker.do("ok(d.cuLibraryUnload(l))")
    assert worker.charged() == 2 * (CONTEXT + stack(2048))


def test_bodies_of_conditional_nodes_take_it_too(start: Start, sim: Simulator, tmp_path: Path) -> None:
    program = ptx(tmp_path / "p.ptx", ("two", 2048), ("three", 3072), ("big", 16384))
    worker = start()
    worker.do(f"""
        {load(program)}
        g = ok(d.cuGraphCreate(0))
        def add_body(graph):
            p = d.CUgraphNodeParams()
            p.type = d.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
            p.conditional.handle = ok(d.cuGraphConditionalHandleCreate(g, ctx, 0, 0))
            p.conditional.type = d.CUgraphConditionalNodeType.CU_GRAPH_COND_TYPE_IF
            p.conditional.size = 1
            p.conditional.ctx = ctx
            ok(d.cuGraphAddNode(graph, None, None, 0, p))
            return d.CUgraph(int(p.conditional.phGraph_out[0]))
        def add(graph, name):
            k = d.CUDA_KERNEL_NODE_PARAMS()
            k.func = ok(d.cuModuleGetFunction(m, name))
            k.gridDimX = k.gridDimY = k.gridDimZ = k.blockDimX = k.blockDimY = k.blockDimZ = 1
            ok(d.cuGraphAddKernelNode(graph, None, 0, k))
        body = add_body(g); inner = add_body(body)
        add(body, b"two"); add(inner, b"three")
    """)
    before = worker.charged()
    worker.do("x = ok(d.cuGraphInstantiate(g, 0))")
    assert worker.charged() == before + stack(3072)
    worker.do("ok(d.cuGraphExecDestroy(x)); add(inner, b'big')")
    assert worker.error("d.cuGraphInstantiate(g, 0)") == OUT
    assert worker.charged() == before + stack(3072) == peak(sim)


def test_a_graph_takes_it_when_it_is_made(start: Start, sim: Simulator, tmp_path: Path) -> None:
    program = ptx(tmp_path / "p.ptx", ("two", 2048), ("three", 3072), ("big", 16384), ("none", 0))
    worker = start()
    worker.do(f"""
        {load(program)}
        s = ok(d.cuStreamCreate(1))
        def capture(name):
            ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
            f = ok(d.cuModuleGetFunction(m, name))
            ok(d.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, s, 0, 0))
            return ok(d.cuStreamEndCapture(s))
        two, three, big = capture(b"two"), capture(b"three"), capture(b"big")
    """)
    base = CONTEXT + CHUNK
    assert worker.charged() == base, "what is captured does not run"
    worker.do("e = ok(d.cuGraphInstantiate(two, 0))")
    assert worker.charged() == base + stack(2048)
    assert worker.error("d.cuGraphInstantiate(big, 0)") == OUT
    worker.do("ok(d.cuGraphExecUpdate(e, three)); ok(d.cuGraphLaunch(e, s)); ok(d.cuStreamSynchronize(s))")
    assert worker.charged() == base + stack(3072)
    assert worker.error("d.cuGraphExecUpdate(e, big)") == OUT
    assert worker.charged() == base + stack(3072)
    assert peak(sim) <= LIMIT


# ---- limits of a context


def test_limits_of_a_context(start: Start) -> None:
    worker = start()
    set_limit = "ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_{}, {}))".format
    for limit, value, grown in [
        ("STACK_SIZE", 2048, stack(2048)),
        ("STACK_SIZE", 1024, stack(2048)),
        ("PRINTF_FIFO_SIZE", 5 * MIB, stack(2048) + 4 * MIB),
        ("MALLOC_HEAP_SIZE", 100 * MIB, stack(2048) + 96 * MIB),
        ("MALLOC_HEAP_SIZE", 8 * MIB, stack(2048) + 4 * MIB),
        ("PRINTF_FIFO_SIZE", 4096, stack(2048)),
        ("DEV_RUNTIME_PENDING_LAUNCH_COUNT", 4096, stack(2048) + 8 * MIB),  # 9 and 18 MiB, in pieces of 2
        ("DEV_RUNTIME_PENDING_LAUNCH_COUNT", 2048, stack(2048)),
        ("DEV_RUNTIME_SYNC_DEPTH", 3, stack(2048) + 820 * MIB),  # 860 MB for each level
        ("DEV_RUNTIME_SYNC_DEPTH", 1, stack(2048)),
        ("DEV_RUNTIME_SYNC_DEPTH", 2, stack(2048)),
    ]:
        worker.do(set_limit(limit, value))
        assert worker.charged() == CONTEXT + grown, (limit, value)
        assert worker.get(f"ok(d.cuCtxGetLimit(d.CUlimit.CU_LIMIT_{limit}))") == value
    worker.do("ok(d.cuDevicePrimaryCtxReset(0))")
    assert worker.charged() == 0


def test_limits_that_do_not_fit(start: Start, sim: Simulator) -> None:
    worker = start()
    fails = "d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_{}, {})".format
    assert worker.error(fails("STACK_SIZE", 16384)) == OUT
    assert worker.error(fails("MALLOC_HEAP_SIZE", LIMIT)) == OUT
    for limit in ("DEV_RUNTIME_SYNC_DEPTH", "DEV_RUNTIME_PENDING_LAUNCH_COUNT"):
        assert worker.error(fails(limit, 24 if limit.endswith("DEPTH") else 1 << 20)) == OUT
    for limit in ("STACK_SIZE", "DEV_RUNTIME_SYNC_DEPTH"):
        assert worker.error(fails(limit, 1 << 62)) == "CUDA_ERROR_INVALID_VALUE", "the driver's own answer"
    assert worker.get("ok(d.cuCtxGetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE))") == 1024
    assert worker.charged() == CONTEXT
    assert peak(sim) == CONTEXT


# ---- programs


def test_programs_are_charged_by_code_and_variables(start: Start, tmp_path: Path) -> None:
    variables = """
        .visible .global .align 8 .b8 big[9000000];
        .global .align 4 .u32 one, two[1000][1000];
        .const .align 4 .b8 listed[] = {1, 2, 3, 4, /* , , */ 5};
        // .global .b8 no[100000000];
        .global .f64 started = 0d3FF0000000000000;
    """
    path = ptx(tmp_path / "p.ptx", ("k", 0), variables=variables)
    taken = 9000448 + 512 + 4000256 + 512 + 512 + path.stat().st_size
    worker = start()
    worker.do(load(path))
    assert worker.charged() == CONTEXT + chunks(taken)
    worker.do("ok(d.cuModuleGetGlobal(m, b'big'))")
    assert worker.charged() == CONTEXT + chunks(taken), "a variable was charged with its module"
    worker.do(f"image = open({str(path)!r}, 'rb').read() + b'\\0'; n = ok(d.cuModuleLoadData(image))")
    assert worker.charged() == CONTEXT + chunks(2 * -(-taken // 4096) * 4096)
    worker.do("ok(d.cuModuleUnload(m))")
    assert worker.charged() == CONTEXT + chunks(taken)
    assert worker.error("d.cuModuleUnload(m)") == "CUDA_ERROR_INVALID_HANDLE"
    worker.do("ok(d.cuModuleUnload(n))")
    assert worker.charged() == CONTEXT


def test_many_small_programs_share_pieces(start: Start, tmp_path: Path) -> None:
    path = ptx(tmp_path / "p.ptx", ("k", 0))
    worker = start()
    worker.do(f"loaded = [ok(d.cuModuleLoad({str(path).encode()!r})) for _ in range(513)]")
    assert worker.charged() == CONTEXT + 2 * CHUNK
    worker.do("ok(d.cuModuleUnload(loaded.pop()))")
    assert worker.charged() == CONTEXT + CHUNK
    worker.do("[ok(d.cuModuleUnload(m)) for m in loaded]")
    assert worker.charged() == CONTEXT


def test_a_program_that_does_not_fit_or_is_none(start: Start, sim: Simulator, tmp_path: Path) -> None:
    path = ptx(tmp_path / "p.ptx", ("k", 0), variables=".global .b8 huge[4000000000];")
    worker = start()
    assert worker.error(f"d.cuModuleLoad({str(path).encode()!r})") == OUT
    assert worker.error(f"d.cuModuleLoad({str(tmp_path / 'none').encode()!r})") == "CUDA_ERROR_FILE_NOT_FOUND"
    assert worker.error("d.cuModuleLoadData(b'.target sm_52\\0')") == "CUDA_ERROR_INVALID_PTX"
    worker.do(f"l = ok(d.cuLibraryLoadFromFile({str(path).encode()!r}, None, None, 0, None, None, 0))")
    worker.do("k = ok(d.cuLibraryGetKernel(l, b'k'))")
    assert worker.error("d.cuKernelGetFunction(k)") == OUT
    assert worker.error("d.cuLibraryGetModule(l)") == OUT
    assert worker.error("d.cuLibraryGetGlobal(l, b'huge')") == OUT
    assert worker.charged() == CONTEXT == peak(sim)


def test_a_library_takes_memory_at_its_first_use(start: Start, tmp_path: Path) -> None:
    path = ptx(tmp_path / "p.ptx", ("k", 0), variables=".global .b8 table[3000000];")
    library = f"ok(d.cuLibraryLoadFromFile({str(path).encode()!r}, None, None, 0, None, None, 0))"
    for use in (
        "ok(d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(l, b'k'))))",
        "ok(d.cuLibraryGetModule(l))",
        "ok(d.cuLibraryGetGlobal(l, b'table'))",
        "ok(d.cuLaunchKernel(d.CUfunction(int(ok(d.cuLibraryEnumerateKernels(1, l))[0])), 1,1,1, 1,1,1, 0, 0, 0, 0))",
    ):
        worker = start()
        worker.do(f"l = {library}")
        assert worker.charged() == CONTEXT
        worker.do(use)
        assert worker.charged() == CONTEXT + 2 * CHUNK, use
        worker.do(use)
        assert worker.charged() == CONTEXT + 2 * CHUNK, use
        worker.do("ok(d.cuLibraryUnload(l))")
        assert worker.charged() == CONTEXT
        worker.kill()
