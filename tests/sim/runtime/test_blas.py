"""The simulated cuBLAS: by the simulator's books, a product takes the time that its size and types imply."""

import json
import subprocess
import sys

import pytest
from run.simulated import LOADED

from gpushare.paths import SIM_LIB_DIR

# per ns (native/sim/model/card.h)
FP32, FP16, TF32 = (108 * 1.41 * per_clock for per_clock in (128, 2048, 1024))
BYTES = 1_555.2
R_32F, R_64F, R_16F, C_32F, R_8F = 0, 1, 2, 4, 28
COMPUTE_32F, TF32_MATH = 68, 3
SHORTEST = 2_000

PRELUDE = """
import ctypes, json, os, sys
from ctypes import byref, c_float, c_int, c_int64, c_longlong, c_size_t, c_uint64, c_void_p
cuda, blas, lt = (ctypes.CDLL(name) for name in ("libcuda.so.1", "libcublas.so.MAJOR", "libcublasLt.so.MAJOR"))
def ok(status):
    assert status == 0, status
ok(cuda.cuInit(0))
context, handle = c_void_p(), c_void_p()
ok(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ok(blas.cublasCreate_v2(byref(handle)))
null, one = c_void_p(), byref(c_float(1))
def done(**values):
    ok(cuda.cuCtxSynchronize())
    print(json.dumps(values), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def play(sim):
    """Gives a function that runs code and returns what the code passed to done(...), and the device's books of that
    process."""

    def run(code, major=13):
        child = sim.spawn(sys.executable, "-c", PRELUDE.replace("MAJOR", str(major)) + code)
        values = child.stdout.readline()
        assert values, code
        row = sim.process(child.pid)
        child.stdin.close()
        assert child.wait(20) == 0
        return json.loads(values), row

    return run


GEMM = "ok(blas.cublasSgemm_v2(handle, 0, 0, 4096, 2048, 1024, one, null, 4096, null, 1024, one, null, 4096))\n"
GEMM_EX = (
    "ok(blas.cublasGemmEx(handle, 0, 0, 4096, 2048, 1024, one, null, {type}, 4096, null, {type}, 1024, one, null,"
    " {type}, 4096, {compute}, 0))\n"
)
FLOPS = 2 * 4096 * 2048 * 1024


@pytest.mark.parametrize(
    ("code", "expected_ns"),
    [
        (GEMM, FLOPS / FP32),
        (f"ok(blas.cublasSetMathMode(handle, {TF32_MATH}))\n" + GEMM, FLOPS / TF32),
        (GEMM_EX.format(type=R_16F, compute=COMPUTE_32F), FLOPS / FP16),
        (GEMM.replace("Sgemm_v2", "Hgemm"), FLOPS / FP16),
        (GEMM_EX.format(type=C_32F, compute=COMPUTE_32F), 4 * FLOPS / FP32),
        (
            "L = c_longlong(0)\nok(blas.cublasSgemmStridedBatched(handle, 0, 0, 512, 512, 512, one, null, 512, L, null,"
            " 512, L, one, null, 512, L, 64))\n",
            2 * 512**3 * 64 / FP32,
        ),
        (
            "n = c_int64(8192)\nok(blas.cublasDgemv_v2_64(handle, 0, n, n, one, null, n, null, c_int64(1), one, null,"
            " c_int64(1)))\n",
            8 * (8192 * 8192 + 2 * 8192) / BYTES,
        ),
        (
            "sizes = (c_int * 2)(4096, 512)\ncounts = (c_int * 2)(1, 8)\nok(blas.cublasSgemmGroupedBatched(handle,"
            " null, null, sizes, sizes, sizes, one, null, null, null, null, one, null, null, 2, counts))\n",
            2 * (4096**3 + 8 * 512**3) / FP32,
        ),
        ("ok(blas.cublasSgemm_v2(handle, 0, 0, 2, 2, 2, one, null, 2, null, 2, one, null, 2))\n", SHORTEST),
        ("ok(blas.cublasSgemm_v2(handle, 0, 0, 0, 2, 0, one, null, 2, null, 2, one, null, 2))\n", 0),
    ],
    ids=["float", "tf32", "half", "halves", "complex", "batches", "gemv", "groups", "tiny", "nothing"],
)
def test_the_time_of_its_work(play, code, expected_ns):
    _, row = play(code + "done()")
    assert row["busy_ns"] == pytest.approx(expected_ns, rel=1e-3, abs=2)


@pytest.mark.parametrize("major", [12, 13])
def test_a_product_by_descriptors(play, major):
    code = f"""
compute, a, b, d, algo = c_void_p(), c_void_p(), c_void_p(), c_void_p(), ctypes.create_string_buffer(96)
ok(lt.cublasLtMatmulDescCreate(byref(compute), {COMPUTE_32F}, {R_32F}))
transposed, batches, found, size = c_int(1), c_int(4), c_int(), c_size_t()
ok(lt.cublasLtMatmulDescSetAttribute(compute, 3, byref(transposed), c_size_t(4)))
for made, rows, columns in ((a, 1024, 4096), (b, 1024, 2048), (d, 4096, 2048)):
    ok(lt.cublasLtMatrixLayoutCreate(byref(made), {R_16F}, c_uint64(rows), c_uint64(columns), c_int64(rows)))
    ok(lt.cublasLtMatrixLayoutSetAttribute(made, 5, byref(batches), c_size_t(4)))
assert lt.cublasLtMatrixLayoutSetAttribute(a, 5, byref(batches), c_size_t(8)) == 7
ok(lt.cublasLtMatrixLayoutGetAttribute(a, 2, null, c_size_t(0), byref(size)))
results = ctypes.create_string_buffer(96 * 2)
ok(lt.cublasLtMatmulAlgoGetHeuristic(handle, compute, a, b, d, d, null, 2, results, byref(found)))
ok(lt.cublasLtMatmul(handle, compute, one, null, a, null, b, one, null, d, null, d, results, null, c_size_t(0), null))
done(found=found.value, size=size.value)
"""
    values, row = play(code, major)
    assert values == {"found": 1, "size": 8}
    assert row["busy_ns"] == pytest.approx(4 * FLOPS / FP16, rel=1e-3)


def test_scalar_results_are_waited_for(play):
    values, row = play(
        "result = c_float(7)\nok(blas.cublasSnrm2_v2(handle, 1 << 28, null, 1, byref(result)))\n"
        "ok(blas.cublasSetPointerMode_v2(handle, 1))\nkept = c_float(7)\n"
        "ok(blas.cublasSnrm2_v2(handle, 1 << 28, null, 1, byref(kept)))\ndone(result=result.value, kept=kept.value)"
    )
    assert values == {"result": 0, "kept": 7}
    assert row["busy_ns"] == pytest.approx(2 * 4 * 2**28 / BYTES, rel=1e-3)


def test_what_is_not_right_is_answered(play):
    play(
        "assert blas.cublasSgemm_v2(null, 0, 0, 2, 2, 2, one, null, 2, null, 2, one, null, 2) == 1\n"
        "assert blas.cublasSgemm_v2(handle, 0, 0, -1, 2, 2, one, null, 2, null, 2, one, null, 2) == 7\n"
        f"assert blas.cublasGemmEx(handle, 0, 0, 2, 2, 2, one, null, {R_8F}, 2, null, {R_8F}, 2, one, null, {R_8F}, 2,"
        f" {COMPUTE_32F}, 0) == 15\n"
        "assert blas.cublasSrotg_v2(handle, null, null, null, null) == 15\n"
        "assert blas.cublasSnrm2_v2(handle, 4, null, 1, null) == 7\n"
        "other = c_void_p()\nok(lt.cublasLtCreate(byref(other)))\n"
        "assert blas.cublasSgemm_v2(other, 0, 0, 2, 2, 2, one, null, 2, null, 2, one, null, 2) == 1\n"
        "ok(blas.cublasDestroy_v2(handle))\n"
        "assert blas.cublasSgemm_v2(handle, 0, 0, 2, 2, 2, one, null, 2, null, 2, one, null, 2) == 1\n"
        "assert blas.cublasDestroy_v2(handle) == 1\ndone()"
    )


def test_a_handle_takes_its_workspace_and_gives_it_back(play):
    before, with_handle = play("ok(blas.cublasDestroy_v2(handle))\ndone()")[1], play("done()")[1]
    assert with_handle["bytes"] - before["bytes"] == 4 << 20
    assert before["bytes"] >= LOADED - (2 << 20)


def test_a_captured_product_runs_at_each_launch_of_its_graph(play):
    _, row = play(
        "stream, graph, run = c_void_p(), c_void_p(), c_void_p()\nok(cuda.cuStreamCreate(byref(stream), 1))\n"
        "ok(blas.cublasSetStream_v2(handle, stream))\nok(cuda.cuStreamBeginCapture_v2(stream, 0))\n"
        + GEMM
        + "ok(cuda.cuStreamEndCapture(stream, byref(graph)))\n"
        "ok(cuda.cuGraphInstantiateWithFlags(byref(run), graph, c_uint64(0)))\n"
        "for _ in range(3): ok(cuda.cuGraphLaunch(run, stream))\ndone()"
    )
    assert row["busy_ns"] == pytest.approx(3 * FLOPS / FP32, rel=1e-3)


def test_matrices_are_copied_by_columns(play):
    values, _ = play(
        "device = c_uint64()\nok(cuda.cuMemAlloc_v2(byref(device), c_size_t(64)))\n"
        "given, back = (c_float * 8)(*range(8)), (c_float * 4)()\n"
        "ok(blas.cublasSetMatrix(2, 2, 4, given, 4, c_void_p(device.value), 2))\n"
        "ok(blas.cublasGetVector(4, 4, c_void_p(device.value), 1, back, 1))\ndone(back=list(back))"
    )
    assert values == {"back": [0, 1, 4, 5]}


@pytest.mark.parametrize("major", [12, 13])
def test_symbols_have_the_version_of_their_library(major):
    for name in ("cublas", "cublasLt"):
        library = f"lib{name}.so.{major}"
        lines = subprocess.check_output(["nm", "-D", "--defined-only", SIM_LIB_DIR / library], text=True).splitlines()
        symbols = [line.split()[2] for line in lines if " T " in line]
        assert len(symbols) > (500 if name == "cublas" else 40)
        assert all(symbol.endswith(f"@@{library}") for symbol in symbols)
