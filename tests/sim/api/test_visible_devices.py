"""CUDA_VISIBLE_DEVICES, and how a process finds its simulator."""

import os

import pytest
from run.simulated import LOADED

COUNT = (
    "import ctypes; l = ctypes.CDLL('libcuda.so.1'); r = l.cuInit(0); "
    "n = ctypes.c_int(); l.cuDeviceGetCount(ctypes.byref(n)); "
)
ORDER = (
    COUNT + "b = (ctypes.c_ubyte * 16)(); print(r, *[l.cuDeviceGetUuid(b, i) or bytes(b)[15] for i in range(n.value)])"
)


@pytest.mark.parametrize(
    ("visible", "answer"),
    [
        ("0", "0 1"),
        ("1", "0 2"),
        ("1,0", "0 2 1"),
        ("2,0", "0 3 1"),
        (" 2 , 0 ", "0 3 1"),
        ("1st,2nd", "0 2 3"),
        ("0,0", "100"),
        ("0,7,1", "0 1"),
        ("0,2,-1,1", "0 1 3"),
        ("0,,1", "0 1"),
        ("GPU-67707573-6841-7265-ad73-696d00000002", "0 2"),
        ("GPU-67707573-6841-7265-ad73-696d00000003,0", "0 3 1"),
        ("GPU-6770", "100"),  # a prefix of more than one
        ("", "100"),
        ("-1", "100"),
        ("NoDevFiles", "100"),
        ("all", "100"),
        ("GPU-", "100"),
    ],
)
def test_cuda_visible_devices(simulator, visible, answer):
    simulator.start(devices="3x1GiB")
    assert simulator.python(ORDER, env={"CUDA_VISIBLE_DEVICES": visible}).strip() == answer


def test_memory_and_time_go_to_the_device_that_is_meant(simulator, compiled):
    simulator.start(devices="3x1GiB")
    child = simulator.spawn(compiled("worker.c"), env={"CUDA_VISIBLE_DEVICES": "2"})
    assert child.stdout.readline() == "ready\n"
    child.stdin.write("spin 1000000 5\nsync\n")
    child.stdin.flush()
    assert [child.stdout.readline() for _ in range(2)] == ["queued\n", "done\n"]
    assert simulator.process(child.pid, 2)["busy_ns"] == 5_000_000
    assert [device["bytes"] for device in simulator.stats()["devices"]] == [0, 0, LOADED]


def test_grant_directory(sim, tmp_path):
    """The grant's directory is used only if root created it."""
    grant = tmp_path / "grant"
    grant.mkdir()
    (grant / "sim").symlink_to(sim.directory)
    environment = {"GPUSHARE_SIM_DIR": "", "GPUSHARE_GRANT_DIR": str(grant)}
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory of root's")
    assert sim.python(COUNT + "print(r, n.value)", env=environment).strip() == "0 2"
    os.chown(grant, 65534, 65534)
    assert sim.python(COUNT + "print(r, n.value)", env=environment).strip() == "100 0"


def test_a_long_path_to_the_socket(simulator, tmp_path):
    """A socket address is limited to 108 bytes; the path of a grant's directory may be longer."""
    simulator.start()
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    (deep / "sim").symlink_to(simulator.directory)
    assert simulator.python(COUNT + "print(r, n.value)", env={"GPUSHARE_SIM_DIR": str(deep / "sim")}).strip() == "0 2"
