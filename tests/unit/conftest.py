import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare.inject.node import DeviceNode, Node
from gpushare.paths import Layout

GRANT = "g-0123456789ab"


@pytest.fixture
def layout() -> Layout:
    """Fixed paths, for golden files. On /dev/shm, which is a tmpfs everywhere; nothing is created there."""
    run = Path("/dev/shm/gpushare-golden")
    return Layout(run, Path("/var/lib/gpushare"), Path("/var/run/cdi"), run / "node.sock")


@pytest.fixture
def simulated() -> Node:
    lib = Path("/opt/gpushare/_lib")
    return Node(Path("/dev/shm/gpushare-golden/sim"), lib_dir=lib, sim_lib_dir=lib / "sim", hook=lib / "gpushare-hook")


@pytest.fixture
def real() -> Node:
    lib = Path("/opt/gpushare/_lib")
    files = (Path("/usr/lib/x86_64-linux-gnu/libcuda.so.1"), Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"))
    common = (DeviceNode("/dev/nvidiactl", 195, 255), DeviceNode("/dev/nvidia-uvm", 511, 0))
    tools = (Path("/usr/bin/nvidia-smi"),)
    return Node(None, files, tools, common, lib_dir=lib, hook=lib / "gpushare-hook")


@pytest.fixture
def tmp_layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "run", tmp_path, tmp_path / "cdi", tmp_path / "run" / "node.sock")


def _written(value: Any, indent: str = "") -> str:
    """JSON with everything on one line that fits there."""
    line = json.dumps(value)
    if not isinstance(value, dict | list) or len(indent) + len(line) <= 160:
        return line
    inner = indent + "  "
    pairs = [(f"{json.dumps(key)}: ", one) for key, one in value.items()] if isinstance(value, dict) else []
    rows = [f"{inner}{name}{_written(one, inner)}" for name, one in pairs or (("", one) for one in value)]
    start, end = "{}" if pairs else "[]"
    return f"{start}\n" + ",\n".join(rows) + f"\n{indent}{end}"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """Compares with a file of expected JSON; with GPUSHARE_UPDATE_GOLDEN=1 writes the file instead."""

    def check(name: str, value: Any) -> None:
        path = request.path.parent / "golden" / name
        if os.environ.get("GPUSHARE_UPDATE_GOLDEN"):
            path.write_text(_written(value) + "\n")
        assert value == json.loads(path.read_text())

    return check


@pytest.fixture(scope="session")
def recorder() -> Any:
    """scripts/pictures/terminal.py, as a module."""
    path = Path(__file__).parents[2] / "scripts" / "pictures" / "terminal.py"
    spec = importlib.util.spec_from_file_location("terminal", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
