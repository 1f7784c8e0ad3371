"""Without a valid share, CUDA fails with one line of explanation, and the program keeps running."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pages.handmade import LIMITS_BYTES, USAGE_BYTES, Grant, Simulator
from run.driverclient import Client
from run.waiting import until

from gpushare import paths

NOT_READY, NO_DEVICE = 802, 100
Start = Callable[..., Client]


def refused(start: Start, grant: Grant, *words: str) -> None:
    client = start(grant)
    assert client("init").result == NOT_READY
    assert client("init").result == NOT_READY, "and it stays so"
    errors = client.end().splitlines()
    assert len(errors) == 1, errors
    assert errors[0].startswith("gpushare: this process gets no GPU: ")
    assert all(word in errors[0] for word in words), errors[0]


@pytest.mark.parametrize(
    ("page", "field", "value", "word"),
    [
        ("limits", "magic", 7, "limits page"),
        ("limits", "version", 99, "version 99"),
        ("limits", "size", 1, "limits page"),
        ("limits", "ndevices", 0, "0 devices"),
        ("limits", "ndevices", 17, "17 devices"),
        ("limits", "slots_high", 100_000, "100000 slots"),
        ("limits", "grant", b"x" * 40, "has no grant id"),
        ("usage", "magic", 7, "usage page"),
        ("usage", "version", 1, "version 1"),
        ("usage", "nslots", 5, "usage page"),
        ("usage", "grant", b"another", "another grant"),
    ],
)
def test_damaged_pages(grant: Grant, start: Start, page: str, field: str, value: int | bytes, word: str) -> None:
    setattr(getattr(grant, page), field, value)
    refused(start, grant, word)


@pytest.mark.parametrize(("page", "size"), [("limits", LIMITS_BYTES), ("usage", USAGE_BYTES)])
def test_short_and_missing_pages(grant: Grant, start: Start, page: str, size: int) -> None:
    path = grant.directory / page
    os.truncate(path, size - 1)
    refused(start, grant, page, str(size))
    path.unlink()
    refused(start, grant, "cannot open", page)
    path.mkdir()
    refused(start, grant, page)


def test_unreadable_driver(grant: Grant, start: Start, tmp_path: Path) -> None:
    (grant.directory / "driver").unlink()
    refused(start, grant, "there is no driver", "libcuda.so.1")
    directory = tmp_path / "broken"
    directory.mkdir()
    (directory / "libcuda.so.1").write_text("not a library")
    (grant.directory / "driver").symlink_to(directory)
    refused(start, grant, "the driver cannot be loaded")


def test_a_driver_that_is_gpushare(grant: Grant, start: Start, tmp_path: Path, placed: Path) -> None:
    """By inode, and as a copy."""
    (grant.directory / "driver").unlink()
    directory = tmp_path / "self"
    directory.mkdir()
    (directory / "libcuda.so.1").symlink_to(paths.INTERPOSER)
    (grant.directory / "driver").symlink_to(directory)
    refused(start, grant, "gpushare itself")
    (grant.directory / "driver").unlink()
    (grant.directory / "driver").symlink_to(placed)
    refused(start, grant, "gpushare itself")


def test_no_daemon(grant: Grant, start: Start) -> None:
    """CUDA waits in case the daemon is restarting, then reports the error."""
    grant.daemon_dies()
    refused(start, grant, "cannot reach the gpushare daemon")


def test_a_daemon_that_comes_back(grant: Grant, start: Start) -> None:
    grant.daemon_dies()
    client = start(grant)
    client.say("init")
    grant.daemon_returns()
    assert client.hear().result == 0
    assert client.end() == ""


@pytest.mark.promise("environment-decides-nothing")
def test_a_directory_that_root_does_not_own(grant: Grant, start: Start) -> None:
    os.chown(grant.directory, 12345, -1)
    client = start(grant, **{"LD_LIBRARY_PATH": "/nonexistent"}, way="dlsym")
    assert client("init").result == NO_DEVICE
    errors = client.end().splitlines()
    assert len(errors) == 1
    assert "root does not own" in errors[0]


def test_no_grant_and_no_driver(start: Start) -> None:
    client = start(None, "dlsym", LD_LIBRARY_PATH="/nonexistent")
    assert client("init").result == NO_DEVICE
    assert client.end() == ""


def test_no_grant_passes_through(start: Start, sim: Simulator) -> None:
    client = start(None, "dlsym", LD_LIBRARY_PATH="/nonexistent", GPUSHARE_SIM_DIR=str(sim.directory))
    client.ok("init", "retain 0", "alloc 1000")
    assert client("total 0").one == 4 << 30, "the whole device"
    assert client.end() == ""


def test_a_long_path(tmp_path: Path, sim: Simulator, start: Start) -> None:
    """A socket address is limited to 107 bytes; the path of a grant's directory may be longer."""
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    before = Path.cwd()
    os.chdir(deep)
    try:
        grant = Grant(Path("grant"), sim)
        grant.directory = deep / "grant"
    finally:
        os.chdir(before)
    try:
        for name, target in (("driver", paths.SIM_LIB_DIR), ("sim", sim.directory)):
            (grant.directory / name).unlink()
            (grant.directory / name).symlink_to(target)
        start(grant).ok("init", "retain 0")
        until(lambda: grant.connections == 1, "the grant's socket has seen it")
    finally:
        grant.close()


PYTHON = """
from cuda.bindings import driver as cuda
def must(result):
    assert result[0] == 0, result
    return result[1] if len(result) > 1 else None
must(cuda.cuInit(0))
device = must(cuda.cuDeviceGet(0))
must(cuda.cuCtxSetCurrent(must(cuda.cuDevicePrimaryCtxRetain(device))))
print(int(must(cuda.cuDeviceTotalMem(device))))
must(cuda.cuMemAlloc(4096))
code, free, total = cuda.cuMemGetInfo()
print(free, total)
print(int(cuda.cuMemAlloc(total)[0]))
"""


def test_cuda_python(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PYTHON], env=environment(grant), capture_output=True, text=True, check=True
    )
    limit = 2 << 30
    assert run.stdout.split() == [str(limit), str(limit - (16 << 20) - 4096), str(limit), "2"]
