"""The environment of a plain process: with a grant (`gpushare run`), or to use simulated devices without one (`gpushare
sim exec`)."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpushare.inject import grantdir, preload
from gpushare.inject.node import Granted, Node, visible
from gpushare.paths import GRANT_DIR_ENV, INTERPOSERS, SIM_DIR_ENV, SIM_RUNTIMES, SIM_TOOLS, Layout


def environment(layout: Layout, grant_id: str, node: Node, granted: Sequence[Granted] = ()) -> dict[str, str]:
    """Returns the variables to set. Apply them with `merge`, which keeps the user's own libraries."""
    own = {GRANT_DIR_ENV: str(grantdir.self_dir(layout, grant_id)), **visible(granted)}
    if not node.simulated:
        return {"LD_PRELOAD": ":".join(map(str, INTERPOSERS)), **own}
    return {**_simulated(node.sim_lib_dir, INTERPOSERS), **own}


def bare(sim_dir: Path, sim_lib_dir: Path) -> dict[str, str]:
    """Returns the variables for a program that uses the simulated devices without a grant."""
    return {**_simulated(sim_lib_dir, ()), SIM_DIR_ENV: str(sim_dir)}


def _simulated(lib_dir: Path, interposers: Sequence[Path]) -> dict[str, str]:
    """The simulated runtimes are preloaded, since a program's DT_RPATH names the directory of its own runtime and takes
    precedence over LD_LIBRARY_PATH. Compilers such as Triton look for the driver's file in LD_LIBRARY_PATH."""
    preloaded = [*interposers, *(lib_dir / name for name in SIM_RUNTIMES)]
    return {"LD_PRELOAD": ":".join(map(str, preloaded)), "LD_LIBRARY_PATH": str(lib_dir)}


def merge(base: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Returns `base` overridden by `added`, keeping the libraries and search directories of `base`. The programs of a
    simulated driver, next to its libraries, are found before others: a real nvidia-smi does not know its devices."""
    merged = {**base, **added}
    if "LD_PRELOAD" in added:
        theirs = preload.split(base.get("LD_PRELOAD", ""))
        merged["LD_PRELOAD"] = ":".join(preload.ordered(theirs, preload.split(added["LD_PRELOAD"])))
    if "LD_LIBRARY_PATH" in added:
        ours = added["LD_LIBRARY_PATH"]
        merged["LD_LIBRARY_PATH"] = _before(ours, base.get("LD_LIBRARY_PATH", ""))
        merged["PATH"] = _before(f"{ours}/{SIM_TOOLS}", base.get("PATH", os.defpath))
    return merged


def _before(ours: str, searched: str) -> str:
    return ":".join([ours, *(path for path in searched.split(":") if path and path != ours)])
