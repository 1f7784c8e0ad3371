"""Which machine, driver, toolkit and commit the numbers are of."""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MOUNTED = Path("/usr/local/nvidia/bin")


def output(*command: str) -> str:
    """Standard output of a command; empty when it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str:
    """With a + when the checkout differs from it in more than what a run itself writes. `unknown` where there is no
    git."""
    found = output("git", "-c", "safe.directory=*", "rev-parse", "--short", "HEAD")
    if not found:
        return "unknown"
    own = [f":(exclude){name}" for name in ("README.md", "bench/README.md", "bench/results")]
    changed = output("git", "-c", "safe.directory=*", "status", "--porcelain", "--untracked-files=no", "--", ".", *own)
    return found + ("+" if changed else "")


def find_driver_programs() -> None:
    """nvidia-smi, where a driver that was mounted brought it without a word in PATH."""
    if shutil.which("nvidia-smi") is None and (MOUNTED / "nvidia-smi").exists():
        os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), str(MOUNTED))))


def nvcc() -> str | None:
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def _query(field: str, gpu: int) -> str:
    return output("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", f"--id={gpu}")


def compute_capability(gpu: int) -> str:
    """As 9.0; empty without a GPU."""
    return _query("compute_cap", gpu)


def facts(simulated: bool, gpu: int = 0) -> dict[str, Any]:
    compiler = nvcc()
    release = re.search(r"release ([0-9.]+)", output(compiler, "--version")) if compiler else None
    return {
        "gpu": "gpushare simulated GPU" if simulated else _query("name", gpu),
        "simulated": simulated,
        "driver": "simulated" if simulated else _query("driver_version", gpu),
        "memory_mib": 0 if simulated else int(_query("memory.total", gpu) or 0),
        "cuda": release[1] if release else "none",
        "machine": f"{_cpu()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "date": time.strftime("%Y-%m-%d"),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit(),
    }


_PACKAGES = ("torch", "triton", "jax", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings", "nvidia-ml-py", "numpy")
_MODES = (
    "mig.mode.current",
    "compute_mode",
    "persistence_mode",
    "ecc.mode.current",
    "clocks.max.sm",
    "clocks.max.memory",
)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _number(path: Path) -> str:
    found = path.stat().st_rdev
    return f"{os.major(found)}:{os.minor(found)}"


def surroundings(gpu: int) -> dict[str, Any]:
    """What else a number may depend on. Recorded beside the results: the machine may be gone when somebody asks."""
    module = Path("/proc/driver/nvidia/version")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "kernel_module": module.read_text().splitlines()[0] if module.exists() else "",
        "device_nodes": {
            str(path): _number(path) for path in sorted(Path("/dev").glob("nvidia*")) if not path.is_dir()
        },
        "control_groups": [line for line in mounts if " - cgroup" in line],
        "modes": {field: _query(field, gpu) for field in _MODES},
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "compiler": output("cc", "--version").partition("\n")[0],
    }


def slug(gpu: str) -> str:
    """`NVIDIA H200` -> h200"""
    text = gpu.lower().removeprefix("nvidia ").strip()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") or "gpu"
