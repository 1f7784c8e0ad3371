"""Every row of the NVML table against a library that counts calls; bad arguments against the simulated NVML."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from pages.handmade import Grant, Simulator
from run import built

from gpushare import paths

NATIVE = Path(__file__).resolve().parents[3] / "native"
sys.path[:0] = [str(NATIVE / "interposer" / "nvml"), str(NATIVE / "api")]
import gen_ml  # noqa: E402 - sys.path is set above
import table  # noqa: E402

ROWS = {row.symbol: row for row in gen_ml.read_rows()}
# Calls every function with a device and large buffers, and reports which functions were called.
CALL_ALL = """
import ctypes, json, sys
names, fake, library = json.loads(sys.argv[1]), ctypes.CDLL(sys.argv[2]), ctypes.CDLL("libnvidia-ml.so.1")
calls = (ctypes.c_uint * len(names)).in_dll(fake, "calls")
room = [(ctypes.c_uint64 * 65536)() for _ in range(5)]
answers = {}
for index, name in enumerate(names):
    for each in room:
        ctypes.memset(each, 0, ctypes.sizeof(each))
    before = calls[index]
    # the number of fields is the one argument that must not be an address
    arguments = (room[0], ctypes.c_int(1), *room[1:]) if name == "nvmlDeviceGetFieldValues" else room
    result = getattr(library, name)(*arguments)
    answers[name] = [result, calls[index] - before]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def counting() -> Path:
    """A directory with an NVML whose functions all succeed and count their calls in the order of the table."""
    return built.program("countingml")


def run(code: str, *arguments: str, env: dict[str, str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def counted_grant(grant: Grant, counting: Path) -> Iterator[Grant]:
    """A grant over the counting library; its device is not the library's."""
    driver = grant.directory / "driver"
    driver.unlink()
    driver.symlink_to(counting)
    yield grant
    driver.unlink()
    driver.symlink_to(paths.SIM_LIB_DIR)


@pytest.mark.promise("nvml-shows-own")
def test_every_function_is_as_its_row(
    counted_grant: Grant, counting: Path, environment: Callable[..., dict[str, str]]
) -> None:
    names, library = table.nvml(), str(counting / "libnvidia-ml.so.1")
    answers = run(CALL_ALL, json.dumps(names), library, env=environment(counted_grant))
    codes = {name: getattr(pynvml, code) for name, code in gen_ml.CODES.items()}
    for name in names:
        row = ROWS.get(name)
        if row is not None and row.handler in codes:
            assert answers[name] == [codes[row.handler], 0], name
        elif row is None or row.kind == "pass":
            # the first call of some functions, such as nvmlDeviceGetUUID, may also come from a handler
            assert answers[name] == [0, 1], name
    refused = [row.symbol for row in ROWS.values() if row.kind == "write"]
    assert len(refused) > 60
    assert all(answers[name] == [pynvml.NVML_ERROR_NO_PERMISSION, 0] for name in refused)


def test_without_a_grant_every_function_is_the_real_one(
    counting: Path, environment: Callable[..., dict[str, str]]
) -> None:
    names, library = table.nvml(), str(counting / "libnvidia-ml.so.1")
    env = environment(None) | {"LD_LIBRARY_PATH": str(counting)}
    answers = run(CALL_ALL, json.dumps(names), library, env=env)
    assert {name: answers[name] for name in names} == {name: [0, 1] for name in names}


def test_fields_of_load_are_hidden_and_others_are_not(
    counted_grant: Grant, environment: Callable[..., dict[str, str]]
) -> None:
    code = """
import json, pynvml as n
n.nvmlInit()
device = n.nvmlDeviceGetHandleByIndex(0)
values = n.nvmlDeviceGetFieldValues(device, list(range(1, n.NVML_FI_MAX)))
support = n.c_nvmlGpmSupport_t(); support.version = n.NVML_GPM_SUPPORT_VERSION
gpm = n._nvmlGetFunctionPointer("nvmlGpmQueryDeviceSupport")(device, n.byref(support))
print(json.dumps([[[v.fieldId, v.nvmlReturn, v.value.ullVal] for v in values], gpm, support.isSupportedDevice]))
"""
    values, gpm, supported = run(code, env=environment(counted_grant))
    hidden = {field for field, result, _ in values if result == pynvml.NVML_ERROR_NOT_SUPPORTED}
    names = {
        getattr(pynvml, name): name
        for name in dir(pynvml)
        if name.startswith("NVML_FI_DEV") and isinstance(getattr(pynvml, name), int)
    }
    words = ("BANDWIDTH_C", "THROUGHPUT", "_BYTES", "XMIT_", "RCV_PACKETS", "MMA_STALL")
    load = {field for field, name in names.items() if any(word in name for word in words)}
    assert hidden == load - {pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS}
    assert all(value == 0 for field, _, value in values if field in hidden)
    assert all(value == 1000 + field for field, _, value in values if field not in hidden)
    assert (gpm, supported) == (0, 0)


# ---- bad arguments --------------------------------------------------------------------------------------------------

# name -> arguments after the device, each a Python expression; VER is a right version, BAD a wrong one.
DEVICE_CALLS: dict[str, list[str]] = {
    "nvmlDeviceGetMemoryInfo": ["out"],
    "nvmlDeviceGetMemoryInfo_v2": ["struct(0x02000028)"],
    "nvmlDeviceGetConfComputeProtectedMemoryUsage": ["out"],
    "nvmlDeviceGetBAR1MemoryInfo": ["out"],
    "nvmlDeviceGetRunningProcessDetailList": ["struct(0x01000018)"],
    "nvmlDeviceGetEncoderSessions": ["number(9)", "out"],
    "nvmlDeviceGetFBCSessions": ["number(9)", "out"],
    "nvmlDeviceGetAccountingPids": ["number(9)", "out"],
    "nvmlDeviceGetAccountingStats": ["ctypes.c_uint(1)", "out"],
    "nvmlDeviceGetAccountingStats_v2": ["struct(1)"],
    "nvmlDeviceGetUtilizationRates": ["out"],
    "nvmlDeviceGetProcessUtilization": ["out", "number(9)", "ctypes.c_uint64(0)"],
    "nvmlDeviceGetProcessesUtilizationInfo": ["struct(0x01000018)"],
    "nvmlDeviceGetSamples": ["ctypes.c_uint(1)", "ctypes.c_uint64(0)", "number(0)", "number(9)", "out"],
    "nvmlDeviceGetFieldValues": ["ctypes.c_int(1)", "out"],
    "nvmlGpmQueryDeviceSupport": ["struct(0x01000008)"],
    "nvmlDeviceGetIndex": ["out"],
    "nvmlDeviceGetTopologyNearestGpus": ["ctypes.c_uint(20)", "number(9)", "out"],
    "nvmlDeviceGetTopologyCommonAncestor": ["device", "out"],
    "nvmlDeviceGetP2PStatus": ["device", "ctypes.c_uint(0)", "out"],
    "nvmlDeviceOnSameBoard": ["device", "out"],
    "nvmlDeviceGetNvLinkRemotePciInfo": ["ctypes.c_uint(0)", "out"],
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": ["ctypes.c_uint(0)", "out"],
    "nvmlDeviceGetMigDeviceHandleByIndex": ["ctypes.c_uint(0)", "out"],
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": ["out"],
} | {
    f"nvmlDeviceGet{kind}RunningProcesses{version}": ["number(9)", "out"]
    for kind in ("Compute", "Graphics", "MPSCompute")
    for version in ("", "_v2", "_v3")
}
# name -> arguments of functions that take no device first.
LOOKUPS: dict[str, list[str]] = {
    "nvmlDeviceGetCount": ["out"],
    "nvmlDeviceGetCount_v2": ["out"],
    "nvmlDeviceGetHandleByIndex": ["ctypes.c_uint(0)", "out"],
    "nvmlDeviceGetHandleByIndex_v2": ["ctypes.c_uint(0)", "out"],
    "nvmlDeviceGetHandleByPciBusId": ["b'0000:01:00.0'", "out"],
    "nvmlDeviceGetHandleByPciBusId_v2": ["b'0000:01:00.0'", "out"],
    "nvmlDeviceGetHandleBySerial": ["b'123'", "out"],
    "nvmlDeviceGetHandleByUUID": ["b'GPU-67707573-6841-7265-ad73-696d00000001'", "out"],
    "nvmlDeviceGetHandleByUUIDV": ["struct(1 << 32 | 0x01000034)", "out"],
    "nvmlGetBlacklistDeviceCount": ["out"],
    "nvmlGetExcludedDeviceCount": ["out"],
    "nvmlSystemGetTopologyGpuSet": ["ctypes.c_uint(0)", "number(9)", "out"],
    "nvmlUnitGetCount": ["out"],
    "nvmlEventSetRegisterGpuOperationalEvents_v1": ["out", "out"],
}
OTHER_CALLS = {"nvmlSystemGetProcessName", "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"}
BAD_CALLS = """
import ctypes, json, sys
calls, plain, lookups = json.loads(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
library = ctypes.CDLL("libnvidia-ml.so.1")
out = (ctypes.c_uint64 * 65536)()
stranger = (ctypes.c_uint64 * 64)()
def number(value): return ctypes.byref(ctypes.c_uint(value))
def struct(first, then=0):
    made = (ctypes.c_uint64 * 64)(); made[0] = first; made[1] = then
    return made
NONE = ctypes.c_void_p(None)
device = ctypes.c_void_p()
def ask(name, *arguments):
    return getattr(library, name)(*arguments)
def values(texts): return [eval(text) for text in texts]
def row(name, texts):
    found = {"null device": ask(name, NONE, *values(texts)), "stranger": ask(name, stranger, *values(texts))}
    for index, text in enumerate(texts):
        if text.startswith("ctypes"):
            continue
        bad = values(texts); bad[index] = NONE
        found[f"null {index}"] = ask(name, device, *bad)
        if text.startswith("struct"):
            for version in (0, 0x01000000, 0x7f000018, 0xffffffff):
                bad[index] = struct(version)
                found[f"version {version:#x}"] = ask(name, device, *bad)
        if text.startswith("number"):
            bad[index] = number(0)
            found[f"zero {index}"] = ask(name, device, *bad)
    return found
def late(name):
    return ask(name, device, out, out, out, out)
answers = {}
for moment in ("before", "ready", "after"):
    if moment == "ready":
        assert library.nvmlInit_v2() == 0
        assert library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
        for name, texts in calls.items():
            answers[name] = row(name, texts)
        for name in plain:
            answers[name] = {"null device": ask(name, NONE, NONE), "stranger": ask(name, stranger, NONE)}
        for name, texts in lookups.items():
            found = {"good": ask(name, *values(texts))}
            for index, text in enumerate(texts):
                if not text.startswith("ctypes"):
                    bad = values(texts); bad[index] = NONE
                    found[f"null {index}"] = ask(name, *bad)
            answers[name] = found
        answers["name"] = {
            "mine": library.nvmlSystemGetProcessName(ctypes.c_uint(__import__("os").getpid()), out, 100),
            "nobody": library.nvmlSystemGetProcessName(ctypes.c_uint(0x7fffffff), out, 100),
            "null": library.nvmlSystemGetProcessName(ctypes.c_uint(__import__("os").getpid()), NONE, 100),
        }
        fields = "nvmlDeviceGetFieldValues"
        answers["how many"] = {str(n): ask(fields, device, ctypes.c_int(n), out) for n in (0, -1)}
    else:
        for name in lookups:
            answers.setdefault("early " + moment, {})[name] = ask(name, *values(lookups[name]))
        for name in [*calls, *plain, "nvmlSystemGetProcessName"]:
            answers.setdefault("uninitialised " + moment, {})[name] = late(name)
    if moment == "ready":
        assert library.nvmlShutdown() == 0
print(json.dumps(answers))
"""


def test_every_handler_has_its_bad_arguments() -> None:
    handled = {row.symbol for row in ROWS.values() if row.handler.endswith(".c")}
    assert handled == set(DEVICE_CALLS) | set(LOOKUPS) | OTHER_CALLS


def test_bad_arguments_get_nvml_s_own_answers(
    grant: Grant, sim: Simulator, environment: Callable[..., dict[str, str]]
) -> None:
    plain = [row.symbol for row in ROWS.values() if row.handler in gen_ml.CODES and row.device]
    arguments = (json.dumps(DEVICE_CALLS), json.dumps(plain), json.dumps(LOOKUPS))
    direct_env = environment(None, preload="") | {"GPUSHARE_SIM_DIR": str(sim.directory)}
    direct = run(BAD_CALLS, *arguments, env=direct_env)
    inside = run(BAD_CALLS, *arguments, env=environment(grant))
    assert inside.keys() == direct.keys()
    for name in direct:
        assert inside[name] == direct[name], name
    # proves that the runs exercised errors
    assert set(direct["uninitialised before"].values()) == {pynvml.NVML_ERROR_UNINITIALIZED}
    assert direct["nvmlDeviceGetMemoryInfo_v2"]["version 0x1000000"] == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert direct["nvmlDeviceSetMigMode"] == dict.fromkeys(
        ("null device", "stranger"), pynvml.NVML_ERROR_INVALID_ARGUMENT
    )


def test_a_function_that_the_driver_lacks_is_not_there(
    grant: Grant, environment: Callable[..., dict[str, str]]
) -> None:
    """An older driver: a function that it lacks is neither refused nor answered."""
    (grant.directory / "driver").unlink()
    (grant.directory / "driver").symlink_to(built.program("oldml"))
    code = """
import ctypes, json
library, room = ctypes.CDLL("libnvidia-ml.so.1"), (ctypes.c_uint64 * 64)()
names = ["nvmlInit_v2", "nvmlDeviceSetPersistenceMode", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetJpgUtilization",
    "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetName"]
print(json.dumps([getattr(library, name)(room, room, room) for name in names]))
"""
    answers = run(code, env=environment(grant))
    assert answers == [0] + [pynvml.NVML_ERROR_FUNCTION_NOT_FOUND] * 5
