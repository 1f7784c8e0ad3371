"""Exports, and look-ups through cuGetProcAddress: by version and by default stream."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare.paths import SIM_LIB_DIR

API = Path(__file__).parents[3] / "native" / "api"
LIBRARY = SIM_LIB_DIR / "libcuda.so.1"

sys.path.insert(0, str(API))
import table  # noqa: E402 - sys.path is set above

VERSION = 13000  # the simulated driver's; it exports newer functions but does not return them by name
SYMBOLS = {symbol.name: symbol for symbol in table.driver() + table.graphics()}


def dynamic_symbols() -> set[str]:
    listing = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in listing.splitlines()}


def test_every_symbol_of_the_table_is_exported_and_otherwise_only_what_tests_ask():
    assert dynamic_symbols() == set(SYMBOLS) | {"gs_sim_hold", "gs_sim_held", "gs_sim_release", "gs_sim_check"}


def test_soname_and_symbolic_binding():
    dynamic = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert "[libcuda.so.1]" in dynamic
    assert "SYMBOLIC" in dynamic


LOOKUP = """
import ctypes, json, sys
lib = ctypes.CDLL("libcuda.so.1")
def look(name, version, flags):
    pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
    out = ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status)
    result = lib.cuGetProcAddress_v2(name.encode(), *out)
    return result, status.value, pointer.value
symbols = {ctypes.cast(getattr(lib, n), ctypes.c_void_p).value: n for n in json.loads(sys.argv[2])}
answers = []
for name, version, flags in json.loads(sys.argv[1]):
    result, status, pointer = look(name, version, flags)
    answers.append([result, status, symbols.get(pointer)])
print(json.dumps(answers))
"""


def look_up(*queries: tuple[str, int, int]) -> list[tuple[int, int, str | None]]:
    done = subprocess.run(
        [sys.executable, "-c", LOOKUP, json.dumps(queries), json.dumps(sorted(SYMBOLS))],
        env={"LD_LIBRARY_PATH": str(SIM_LIB_DIR)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [(result, status, name) for result, status, name in json.loads(done.stdout)]


@pytest.mark.parametrize(
    ("name", "version", "flags", "symbol"),
    [
        ("cuMemAlloc", 3010, 0, "cuMemAlloc"),
        ("cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
        ("cuMemAlloc", 13000, 0, "cuMemAlloc_v2"),
        ("cuCtxCreate", 12000, 0, "cuCtxCreate_v3"),
        ("cuCtxCreate", 3020, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11030, 0, "cuCtxCreate_v2"),
        ("cuCtxCreate", 13000, 0, "cuCtxCreate_v4"),
        ("cuCtxSynchronize", 12090, 0, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"),
        ("cuStreamSynchronize", 12000, 0, "cuStreamSynchronize"),
        ("cuStreamSynchronize", 12000, 1, "cuStreamSynchronize"),
        ("cuStreamSynchronize", 12000, 2, "cuStreamSynchronize_ptsz"),
        ("cuStreamSynchronize", 6000, 2, "cuStreamSynchronize"),
        ("cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"),
        ("cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"),
        ("cuMemAlloc", 12000, 2, "cuMemAlloc_v2"),
        ("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"),
        ("cuGetProcAddress", 11030, 0, "cuGetProcAddress"),
    ],
)
def test_lookup(name, version, flags, symbol):
    assert look_up((name, version, flags)) == [(0, 0, symbol)]


def test_lookups_that_find_nothing():
    unknown, too_old = (500, 1, None), (500, 2, None)
    assert look_up(("", 0, 0), ("cuNoSuchThing", 13000, 0)) == [unknown, unknown]
    assert look_up(("cuMemAlloc", 13010, 0), ("cuLibraryLoadData", 11080, 0)) == [too_old, too_old]
    assert look_up(("cuInit", 12000, 3)) == [(1, -1, None)]


def test_every_entry_of_the_table_is_found():
    named = [s for s in SYMBOLS.values() if s.version]
    queries = [(s.base, s.version, 2 if s.variant else 0) for s in named]
    newer = (500, 2, None)
    expected = [(0, 0, s.name) if s.version <= VERSION else newer for s in named]
    assert look_up(*queries) == expected


DISPLAY = """
import ctypes
lib = ctypes.CDLL("libcuda.so.1")
count, device = ctypes.c_uint(7), ctypes.c_int()
before = [lib.cuGLInit(), lib.cuGLGetDevices_v2(ctypes.byref(count), None, 0, 1)]
lib.cuInit(0)
after = [lib.cuGLInit(), lib.cuGLGetDevices_v2(ctypes.byref(count), None, 0, 1), count.value]
after += [lib.cuGLGetDevices(None, None, 0, 1), lib.cuVDPAUGetDevice(ctypes.byref(device), 0, None)]
print(before, after, lib.cuEGLStreamConsumerConnect(None, None))
"""


def test_there_is_no_display(sim):
    """NOT_INITIALIZED before cuInit; then NOT_SUPPORTED, and NO_DEVICE of those that ask for devices."""
    assert sim.python(DISPLAY) == "[3, 3] [801, 100, 0, 1, 100] 801\n"


@pytest.mark.parametrize("order", [("libcuda.so", "libcuda.so.1"), ("libcuda.so.1", "libcuda.so")])
def test_the_name_without_a_version_is_the_same_library(sim, order):
    code = f"""
import ctypes
one, other = (ctypes.CDLL(name) for name in {order!r})
address = lambda library, name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value
print(one.cuInit(0), *(address(one, name) == address(other, name) for name in ("cuMemAlloc_v2", "cuGLInit")))
"""
    assert sim.run(sys.executable, "-c", code) == "0 True True\n"
    nvml = code.replace("libcuda", "libnvidia-ml").replace("one.cuInit(0)", "one.nvmlInit_v2()")
    nvml = nvml.replace("cuMemAlloc_v2", "nvmlDeviceGetCount_v2").replace("cuGLInit", "nvmlErrorString")
    assert sim.run(sys.executable, "-c", nvml) == "0 True True\n"


LINKED = "int cuInit(unsigned); int nvmlInit_v2(void); int main(void) { return cuInit(0) || nvmlInit_v2(); }"


def test_programs_link_with_the_usual_names(sim, tmp_path):
    """They then need the names with the version, as those that are linked with the real driver."""
    program = tmp_path / "program"
    command = ["cc", "-x", "c", "-", "-o", program, f"-L{SIM_LIB_DIR}", "-lcuda", "-lnvidia-ml"]
    subprocess.run(command, input=LINKED, text=True, check=True)
    sim.run(program)
    needed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    assert "[libcuda.so.1]" in needed
    assert "[libnvidia-ml.so.1]" in needed


def test_unimplemented_functions_say_so(sim):
    """NOT_INITIALIZED before cuInit, then NOT_SUPPORTED."""
    answers = "cuda.cuGraphicsUnregisterResource(None), cuda.cuLogicalEndpointDestroy(None)"
    code = f"import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); print({answers}, cuda.cuInit(0), {answers})"
    assert sim.run(sys.executable, "-c", code) == "3 3 0 801 801\n"


def test_without_a_simulator_there_is_no_device(tmp_path):
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    for directory in (tmp_path, tmp_path / "none"):
        env = {"LD_LIBRARY_PATH": str(SIM_LIB_DIR), "GPUSHARE_SIM_DIR": str(directory)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=20)
        assert done.stdout == "100\n"  # CUDA_ERROR_NO_DEVICE
