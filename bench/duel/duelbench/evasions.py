"""The evasions: C functions of one program, compiled into a scratch directory, which lists them itself."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpubench.machine import ROOT

from gpushare import paths

NATIVE = ROOT / "bench" / "duel" / "native"
_API = ROOT / "native" / "api"
_FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-pthread"]


@dataclass(frozen=True)
class Evasion:
    """`devices`: of its grant, each with an honest tenant. `grants`: what its share is split into, a process each.
    `open`: why nothing holds it; empty for all that must be held. `options`: further ones of `gpushare run`, as words
    of `name=value`. `seconds`: the shortest duel that says something. `found`: what holds it are the daemon's findings;
    the duel begins when it is found."""

    name: str
    kind: str
    about: str
    devices: int
    grants: int
    open: str
    options: str
    seconds: float
    found: bool

    @property
    def of_memory(self) -> bool:
        return self.kind == "memory"


def build(into: Path) -> Path:
    """The program. Raises CalledProcessError; the compiler has said why."""
    into.mkdir(parents=True, exist_ok=True)
    types = sorted(_API.glob("gs_cuda*.h"))
    subprocess.run([sys.executable, ROOT / "native" / "sim" / "api" / "gen_stubs.py", into, *types], check=True)
    program = into / "duel"
    includes = [f"-I{path}" for path in (NATIVE, into, ROOT / "native")]
    # The simulated driver has the real one's name and symbols; at run time the loader takes what is there.
    libraries = [f"-L{paths.SIM_LIB_DIR}", "-l:libcuda.so.1", "-ldl"]
    sources = sorted(NATIVE.glob("*.c"))
    subprocess.run(["cc", *_FLAGS, *includes, "-o", program, *sources, *libraries], check=True)
    return program


def known(program: Path) -> list[Evasion]:
    """In the order of the table; the first is no evasion but the control."""
    done = subprocess.run(
        [program, "--list"], check=True, capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR)}
    )
    return [Evasion(**json.loads(line)) for line in done.stdout.splitlines()]
