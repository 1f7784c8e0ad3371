"""The tests' own carrier: a program over it finds what it finds on the device, errors come at the next call that waits,
and when the connection is gone every call says so."""

import contextlib
import json
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote import carrier
from remote.carrier import Bare
from run import built
from run.running import SPIN, Tenant
from run.simulated import Sim
from run.simworker import Worker, start
from run.waiting import until

from gpushare import paths
from gpushare.carriers import contract, files

INVALID, UNAVAILABLE = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_DEVICE_UNAVAILABLE"
PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry spin_ns(.param .u64 ns) { ret; }
.visible .entry sum_words(.param .u64 at, .param .u64 bytes, .param .u64 out) { ret; }
.visible .entry nothing() { ret; }
"""
PROGRAM = f"""
    module = ok(d.cuModuleLoadData({PTX + bytes(1)!r}))
    spin, total, nothing = (ok(d.cuModuleGetFunction(module, name)) for name in (b"spin_ns", b"sum_words", b"nothing"))
    def launch(kernel, *values, threads=1, stream=0):
        arguments = (values, (ctypes.c_uint64,) * len(values))
        return d.cuLaunchKernel(kernel, 1, 1, 1, threads, 1, 1, 0, stream, arguments, 0)
"""


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    made = Sim(tmp_path_factory.mktemp("carrier") / "sim")
    try:
        yield made.start(devices="2x16GiB")
    finally:
        made.stop()


@pytest.fixture
def bare(sim: Sim) -> Iterator[Bare]:
    with Bare(sim.environment()) as made:
        yield made
    until(lambda: all(device["bytes"] == 0 for device in sim.stats()["devices"]), "its memory comes back")


@pytest.fixture
def worker(bare: Bare) -> Worker:
    made = start(bare)
    made.do(PROGRAM)
    return made


def test_its_contract_holds(sim: Sim, tmp_path: Path) -> None:
    carrier.contract(tmp_path / "carriers")
    found = files.find(None, [tmp_path / "carriers"])
    assert found.client is not None
    assert found.server is not None
    assert [path.name for path in files.libraries(found.name, found.client)] == ["libcuda.so.1"]
    told = subprocess.run(found.server.version, env=sim.environment(), capture_output=True, check=True).stdout
    assert contract.version_of(told) == files.client_version(found) == carrier.version()
    other = carrier.contract(tmp_path / "carriers", "other", server={"env": {"A": "{port}"}}, client={"lost": ""})
    assert files.load(other.stem, [other.parent]).server.env == {"A": "{port}"}  # type: ignore[union-attr]


def test_unmodified_programs_answer_as_they_do_here(sim: Sim, bare: Bare) -> None:
    commands = ("alloc 64MiB", "memory", "alloc 16GiB", "touch 255", "sum", "free", "memory")
    answers = []
    for env in (sim.environment(), bare.environment()):
        tenant = Tenant([str(SPIN)], env)
        try:
            answers.append([tenant.ready["device"], *map(tenant.tell, commands)])
            tenant.tell("run 100000")
            kernels = tenant.tell("idle")["kernels"]
            [child] = bare.served() or [tenant.pid]
            used = sim.process(child)
            assert used is not None
            assert used["busy_ns"] >= kernels * 100_000
        finally:
            tenant.close()
        until(lambda: not bare.served() and sim.device()["bytes"] == 0, "all ends with the program")
    assert answers[0] == answers[1]
    bare.run(built.program("lives"))


@pytest.mark.parametrize("how", ["deep", "sync", "graph", "coop", "gang", "one"])
def test_all_ways_to_submit_work(bare: Bare, how: str) -> None:
    pipe = subprocess.PIPE
    words = [built.program("pace"), how, paths.SPIN_PTX, "100000", "10"]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=bare.environment()) as program:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline()) == {"devices": 2}
        assert json.loads(program.communicate(timeout=60)[0])["kernels"] > 0
    assert program.returncode == 0


def carrier_piece() -> int:
    """The bytes that one message of a copy has at most."""
    text = (built.SUPPORT / "remote" / "native" / "carrier.h").read_text()
    number, shift = text.split("PIECE = ")[1].split(",")[0].split(" << ")
    return int(number) << int(shift)


def test_data_of_any_size_comes_back_as_it_went(worker: Worker) -> None:
    worker.do(f"""
        import os
        for size in (1, 4096, {carrier_piece()} - 1, {carrier_piece()}, {carrier_piece()} + 1, 3 * {carrier_piece()}):
            data, place = os.urandom(size), ok(d.cuMemAlloc(size))
            put(place, data)
            assert get(place, size) == data, size
            ok(d.cuMemsetD8(place, 7, size))
            ok(d.cuMemcpyHtoDAsync(int(place) + size // 2, data, 1, 0))
            back = bytearray(size)
            ok(d.cuMemcpyDtoHAsync((ctypes.c_char * size).from_buffer(back), place, size, 0))
            want = bytearray(b"\\x07" * size); want[size // 2] = data[0]
            assert back == want, size
            ok(d.cuMemFree(place))
        words = 1024
        place, out = ok(d.cuMemAlloc(8 * words)), ok(d.cuMemAlloc(8))
        put(place, b"".join(i.to_bytes(8, "little") for i in range(words)))
        ok(launch(total, int(place), 8 * words, int(out)))
        assert int.from_bytes(get(out, 8), "little") == sum(range(words))
        ok(launch(nothing))
        pinned = ok(d.cuMemHostAlloc(1 << 20, 0)); ok(d.cuMemFreeHost(pinned))
        assert error(d.cuMemFreeHost(pinned)) == "{INVALID}"
    """)


def test_kernels_graphs_events_and_threads(worker: Worker) -> None:
    worker.do(f"""
        import threading
        library = ok(d.cuLibraryLoadData({PTX + bytes(1)!r}, [], [], 0, [], [], 0))
        kernel = ok(d.cuLibraryGetKernel(library, b"sum_words"))
        assert [ok(d.cuKernelGetParamInfo(kernel, i)) for i in range(3)] == [(0, 8), (8, 8), (16, 8)]
        assert error(d.cuModuleGetFunction(module, b"other")) == "CUDA_ERROR_NOT_FOUND"
        stream = ok(d.cuStreamCreate(1))
        ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        ok(launch(spin, 1_000_000, stream=stream)); ok(launch(spin, 2_000_000, stream=stream))
        graph = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(stream)), 0))
        begin, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
        ok(d.cuEventRecord(begin, stream)); ok(d.cuGraphLaunch(graph, stream)); ok(d.cuEventRecord(end, stream))
        assert error(d.cuEventQuery(end)) in ("CUDA_ERROR_NOT_READY", "CUDA_SUCCESS")
        ok(d.cuEventSynchronize(end))
        assert 2.99 < ok(d.cuEventElapsedTime(begin, end)) < 1000
        config = made(d.CUlaunchConfig, gridDimX=1, gridDimY=1, gridDimZ=1, blockDimX=1, blockDimY=1, blockDimZ=1,
            hStream=stream)
        ok(d.cuLaunchKernelEx(config, spin, ((1000,), (ctypes.c_uint64,)), 0)); ok(d.cuStreamSynchronize(stream))
        seen = []
        def elsewhere():
            seen.append(int(ok(d.cuCtxGetCurrent())))
            other = context(1)
            seen.append(int(ok(d.cuCtxGetDevice())))
            ok(d.cuCtxPushCurrent(ctx)); seen.append(int(ok(d.cuCtxGetDevice()))); ok(d.cuCtxPopCurrent())
            seen.append(int(ok(d.cuCtxGetDevice())))
        thread = threading.Thread(target=elsewhere); thread.start(); thread.join()
        assert seen == [0, 1, 0, 1], seen
        assert int(ok(d.cuCtxGetDevice())) == 0
    """)


def test_errors_of_what_is_not_waited_for_come_at_the_next_wait(worker: Worker) -> None:
    worker.do("place = ok(d.cuMemAlloc(64)); ok(launch(nothing, threads=5000)); ok(launch(nothing)); total")
    worker.do("assert ok(d.cuMemGetInfo())[1] == 16 << 30")
    assert worker.error("d.cuCtxSynchronize()") == INVALID
    assert worker.error("d.cuCtxSynchronize()") == "CUDA_SUCCESS"
    worker.do("ok(launch(nothing, threads=5000))")
    assert worker.error("d.cuMemcpyDtoH(bytearray(8), place, 8)") == INVALID
    assert worker.error("d.cuMemcpyDtoH(bytearray(8), place, 8)") == "CUDA_SUCCESS"
    assert worker.error("d.cuArrayDestroy(0)") == "CUDA_ERROR_NOT_SUPPORTED"
    assert worker.error("d.cuMemAlloc(1 << 50)") == "CUDA_ERROR_OUT_OF_MEMORY"


def test_a_child_has_no_connection_until_it_asks_for_one(bare: Bare, worker: Worker) -> None:
    worker.do("""
        import os
        pid = os.fork()
        if pid == 0:
            before = d.cuMemGetInfo()[0]
            after = d.cuInit(0)[0]
            context(0)
            os._exit(0 if (int(before), int(after)) == (3, 0) and ok(d.cuMemGetInfo()) else 1)
        assert os.waitpid(pid, 0)[1] == 0
        ok(d.cuMemGetInfo())
    """)
    until(lambda: len(bare.served()) == 1, "its connection goes with it")


def test_without_its_connection_every_call_says_so(bare: Bare, worker: Worker) -> None:
    bare.server.kill()
    until(lambda: worker.error("d.cuCtxSynchronize()") == UNAVAILABLE, "the loss is noticed")
    calls = (
        "d.cuInit(0)",
        "launch(spin, 1)",
        "d.cuMemAlloc(1)",
        "d.cuMemGetInfo()",
        "d.cuCtxGetCurrent()",
        "launch(nothing)",
    )
    assert {worker.error(call) for call in calls} == {UNAVAILABLE}
    assert worker.get("ok(d.cuGetErrorName(d.CUresult.CUDA_ERROR_DEVICE_UNAVAILABLE)).decode()") == UNAVAILABLE
    assert Worker(bare).error("d.cuInit(0)") == UNAVAILABLE


def test_strangers_bytes_harm_nobody_else(bare: Bare, worker: Worker) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for attempt in range(60):
        with socket.create_connection(("127.0.0.1", bare.port)) as stranger, contextlib.suppress(ConnectionError):
            stranger.settimeout(20)
            if attempt % 10 == 0:
                stranger.sendall(draw.randbytes(64))
                continue
            stranger.sendall(b"carrier2")
            for _ in range(20):
                body = draw.randbytes(draw.choice((0, 1, 8, 40, 200)))
                header = len(body).to_bytes(4, "little") + draw.randrange(120).to_bytes(2, "little") + bytes(10)
                stranger.sendall(header + body)
        worker.do("ok(d.cuMemGetInfo())")
    assert bare.server.poll() is None
