"""The fast path: launches of a known kernel while the lease is held, with a driver whose calls take no time."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pages.handmade import Grant
from run import built
from timing.timed import BUSY

from gpushare import paths

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[3] / "native"


@pytest.fixture
def measure(tmp_path: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    if os.geteuid() != 0:
        pytest.skip("a grant directory is trusted only when root owns it")
    driver = built.program("fakedriver")
    program, library = built.program("launchcost"), driver / "libcuda.so.1"
    beside = tmp_path / "beside.so"
    beside.write_bytes(library.read_bytes())
    device = SimpleNamespace(uuids=[b"u" * 16], directory=tmp_path)
    grant = Grant(tmp_path / "grant", device)  # type: ignore[arg-type]
    (grant.directory / "driver").unlink()
    (grant.directory / "driver").symlink_to(driver)
    grant.lease()
    grant.set_bound(50_000_000)

    def run(stream: str, **more: str) -> dict[str, Any]:
        env = {**os.environ, **more, "LD_PRELOAD": str(paths.INTERPOSER), "GPUSHARE_GRANT_DIR": str(grant.directory)}
        done = subprocess.run([program, beside, library, stream], env=env, capture_output=True, text=True, check=True)
        assert grant.slot().launches > 2_000_000, "launches went through the interposer"
        return json.loads(done.stdout)

    yield run
    grant.close()


@BUSY
@pytest.mark.timing
@pytest.mark.parametrize("stream", ["own", "default"])
def test_cost_of_a_launch(measure: Callable[..., dict[str, Any]], stream: str) -> None:
    """A wide bound: it detects more than a few loads. `make bench` measures the nanoseconds."""
    result = measure(stream)
    print(f"{stream} stream: {result['ours_ns']:.1f} ns, the driver alone {result['bare_ns']:.1f} ns")
    assert result["ours_ns"] - result["bare_ns"] <= 250


def test_a_launch_makes_no_system_call(measure: Callable[..., dict[str, Any]]) -> None:
    """In 100,000 launches in a row, unless the gate thread holds a lock at that moment."""
    calls = measure("own")["calls"]
    print(f"system calls: {calls}")
    assert calls <= 2


def test_a_profiled_process_records_no_event_of_ours(measure: Callable[..., dict[str, Any]]) -> None:
    assert measure("own")["records"] > 10
    for variable in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        assert measure("own", **{variable: "/nonexistent/libprofiler.so"})["records"] == 0


def test_lock_and_clock() -> None:
    subprocess.run([built.program("parts_unit"), "1"], check=True, timeout=60)
