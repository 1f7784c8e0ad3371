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
_PACKAGES = ("torch", "triton", "jax", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings", "nvidia-ml-py", "numpy")
_MODES = ("mig.mode.current", "compute_mode", "persistence_mode", "ecc.mode.current", "clocks.max.sm")


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
    own = [f":(exclude){name}" for name in ("docs/concepts/exact.md", "bench/results")]
    changed = output("git", "-c", "safe.directory=*", "status", "--porcelain", "--untracked-files=no", "--", ".", *own)
    return found + ("+" if changed else "")


def find_driver_programs() -> None:
    """Puts nvidia-smi into PATH where a mounted driver brought it without doing so."""
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


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def facts(simulated: bool, gpu: int = 0) -> dict[str, Any]:
    """All that a number may depend on, since the machine may be gone later."""
    compiler = nvcc()
    release = re.search(r"release ([0-9.]+)", output(compiler, "--version")) if compiler else None
    return {
        "gpu": "gpushare simulated GPU" if simulated else _query("name", gpu),
        "simulated": simulated,
        "driver": "simulated" if simulated else _query("driver_version", gpu),
        "modes": {} if simulated else {field: _query(field, gpu) for field in _MODES},
        "cuda": release[1] if release else "none",
        "machine": f"{_cpu()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "date": time.strftime("%Y-%m-%d"),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "commit": commit(),
    }


def result(directory: Path, facts: dict[str, Any]) -> Path:
    """The file of a run: `h200-2026-01-02.json` of an NVIDIA H200; of the simulated device, `simulated-gpu-...`."""
    name = "simulated" if facts["simulated"] else facts["gpu"].lower().removeprefix("nvidia ")
    return directory / f"{re.sub(r'[^a-z0-9]+', '-', name).strip('-') or 'gpu'}-{facts['date']}.json"
