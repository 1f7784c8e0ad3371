"""The C programs of the benchmark, compiled into a scratch directory."""

import subprocess
from pathlib import Path

from gpubench.machine import ROOT

from gpushare import paths

NATIVE = ROOT / "bench" / "arbiter" / "native"
SHARED = ROOT / "bench" / "gpu" / "native"
_INCLUDES = [f"-I{path}" for path in (NATIVE, SHARED, ROOT / "native")]
_FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-pthread", *_INCLUDES]
_SOURCES = {
    "tenant": [NATIVE / "tenant.c", NATIVE / "gate.c", NATIVE / "page.c", NATIVE / "books.c", SHARED / "common.c"],
    "monitor": [NATIVE / "monitor.c", NATIVE / "page.c", NATIVE / "books.c"],
    "controller": [NATIVE / "controller.c", NATIVE / "page.c"],
}


def programs(into: Path) -> None:
    """Raises CalledProcessError; the compiler has said why."""
    into.mkdir(parents=True, exist_ok=True)
    for name, sources in _SOURCES.items():
        # The simulated driver has the real one's name and symbols; at run time the loader takes what is there.
        libraries = [f"-L{paths.SIM_LIB_DIR}", "-l:libcuda.so.1"] if name == "tenant" else []
        subprocess.run(["cc", *_FLAGS, "-o", into / name, *sources, *libraries], check=True)
