"""CUDA_VISIBLE_DEVICES in a share: numbers are those of the share, and nobody but the driver sees others."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator

# For each value on its command line (- for none): in a child of its own, what CUDA then shows, by the last byte of each
# UUID, and the variable afterwards, in C, in Python, and in a program that the child starts.
SHOWN = """
import ctypes, json, os, subprocess, sys
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def look():
    cuda, count, uuid = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    result = cuda.cuInit(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return [cuda.cuDeviceGetUuid(uuid, i) or bytes(uuid)[15] for i in range(count.value)] if result == 0 else result
for value in sys.argv[1:]:
    if os.fork() == 0:
        if value != "-":
            os.environ["CUDA_VISIBLE_DEVICES"] = value  # as many scripts do before they import anything of CUDA
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        seen = look(), look()
        assert seen[0] == seen[1]
        left = libc.getenv(b"CUDA_VISIBLE_DEVICES")
        kept = "-" if left is None else left.decode()
        child = subprocess.run(["printenv", "CUDA_VISIBLE_DEVICES"], capture_output=True, text=True, close_fds=False)
        again = child.stdout.rstrip("\\n") if child.returncode == 0 else "-"
        print(json.dumps([value, seen[0], kept, again]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""
# Threads read, set and add variables while others call cuInit, which fails and so is tried again.
RACE = """
import ctypes, os, threading
libc, cuda = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
libc.getenv.restype = ctypes.c_char_p
over = threading.Event()
def reads():
    while not over.is_set():
        assert libc.getenv(b"LAST_OF_ALL") == b"there"
def initialises():
    for _ in range(2000):
        assert cuda.cuInit(0) == 100
threads = [threading.Thread(target=initialises) for _ in range(3)]
readers = [threading.Thread(target=reads) for _ in range(2)]
for each in threads + readers: each.start()
for each in threads: each.join()
over.set()
for each in readers: each.join()
mapped = sum("\\n" in line for line in open("/proc/self/maps"))
for _ in range(1000): cuda.cuInit(0)
assert sum("\\n" in line for line in open("/proc/self/maps")) <= mapped + 4
assert libc.getenv(b"CUDA_VISIBLE_DEVICES") is None or os.environ["CUDA_VISIBLE_DEVICES"] == "7"
print("done")
"""


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Simulator]:
    simulator = Simulator(tmp_path / "sim", "4x1GiB")
    yield simulator
    simulator.stop()


def name(sim: Simulator, device: int) -> str:
    return f"GPU-{uuid.UUID(bytes=sim.uuids[device])}"


def ran(script: str, *words: str, env: dict[str, str]) -> tuple[list[str], str]:
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_numbers_and_names_are_those_of_the_share(
    sim: Simulator, granted: Callable[..., Grant], environment: Callable[..., dict[str, str]]
) -> None:
    """The share has the node's devices 2 and 0, whose UUIDs end in 3 and 1."""
    third, second, first = name(sim, 2), name(sim, 1), name(sim, 0)
    expected = {
        "-": [3, 1],
        "0": [3],
        "1": [1],
        "0,1": [3, 1],
        "1,0": [1, 3],
        " 1 , 0 ": [1, 3],
        "1st,0th": [1, 3],
        "0,1,2": [3, 1],
        "0,2,1": [3],
        "0,-1,1": [3],
        third: [3],
        third.upper().replace("GPU", "gpu"): [3],
        f"{first},{third}": [1, 3],
        first[:-1]: 100,  # the beginning of both
        f"1,{second}": [1],
        second: 100,
        "2": 100,
        "0,0": 100,
        "-1": 100,
        "": 100,
        "none": 100,
        "all": 100,
        "18446744073709551616": 100,
        ",".join(["0", "1"] * 40): 100,
    }
    lines, errors = ran(SHOWN, *expected, env=environment(granted(2, 0)))
    found = [json.loads(line) for line in lines]
    assert {value: shown for value, shown, _, _ in found} == expected
    assert {value: (kept, again) for value, _, kept, again in found} == {value: (value, value) for value in expected}
    warnings = [line for line in errors.splitlines() if line.startswith("gpushare: ")]
    assert len(warnings) == 5, "each of 2, all, too large a number, another's name and an ambiguous one"
    assert "gpushare: CUDA_VISIBLE_DEVICES=2 names no device of this share: it has 2, numbered from 0" in warnings


def test_a_share_of_one_device_is_device_0(
    sim: Simulator, granted: Callable[..., Grant], environment: Callable[..., dict[str, str]]
) -> None:
    lines, _ = ran(SHOWN, "-", "0", "1", env=environment(granted(3)) | {"CUDA_VISIBLE_DEVICES": "0"})
    assert [json.loads(line)[1] for line in lines] == [[4], [4], 100]


@pytest.mark.parametrize("variable", [{}, {"CUDA_VISIBLE_DEVICES": "7"}])
def test_the_environment_is_whole_at_every_moment(
    sim: Simulator, granted: Callable[..., Grant], environment: Callable[..., dict[str, str]], variable: dict[str, str]
) -> None:
    """A thread that reads the environment meanwhile finds all of it, and tries that fail leave nothing behind."""
    grant = granted(0)
    grant.limits.device[0].uuid = bytes(range(16))  # the driver does not know it
    inherited = {key: value for key, value in environment(grant).items() if key != "CUDA_VISIBLE_DEVICES"}
    lines, _ = ran(RACE, env=inherited | {"LAST_OF_ALL": "there"} | variable)
    assert lines == ["done"]
