"""The environment of a plain process: with a grant (`gpushare run`), or to use simulated devices without one (`gpushare
sim exec`)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gpushare.inject import grantdir, preload
from gpushare.inject.node import Node
from gpushare.paths import (
    GRANT_DIR_ENV,
    INTERPOSERS,
    SIM_DIR_ENV,
    SIM_LIB_DIR,
    SIM_RUNTIMES,
    SIM_TOOLS,
    Layout,
)

UNSET = ("CUDA_VISIBLE_DEVICES",)
"""Variables of the outside that have another meaning in a share, where devices are numbered from 0."""


def environment(layout: Layout, grant_id: str, node: Node) -> dict[str, str]:
    """Returns the variables to set. Apply them with `merge`, which keeps the user's own libraries."""
    own = {GRANT_DIR_ENV: str(grantdir.self_dir(layout, grant_id))}
    if node.simulated:
        return {**_simulated(node.sim_lib_dir, INTERPOSERS, [layout.names]), **own}
    return {"LD_PRELOAD": _joined(INTERPOSERS), "LD_LIBRARY_PATH": str(layout.names), **own}


def bare(sim_dir: Path, sim_lib_dir: Path) -> dict[str, str]:
    """Returns the variables for a program that uses the simulated devices without a grant."""
    return {**_simulated(sim_lib_dir, (), ()), SIM_DIR_ENV: str(sim_dir)}


def driver(node: Node) -> dict[str, str]:
    """Returns the variables with which a program that is linked with the driver starts, without devices of its own."""
    return {"LD_LIBRARY_PATH": str(node.sim_lib_dir)} if node.simulated else {}


def _joined(paths: Iterable[Path]) -> str:
    return ":".join(map(str, paths))


def _simulated(lib_dir: Path, interposers: Sequence[Path], names: Sequence[Path]) -> dict[str, str]:
    """The simulated runtimes are preloaded, since a program's DT_RPATH names the directory of its own runtime and takes
    precedence over LD_LIBRARY_PATH. Compilers such as Triton look for the driver's file in LD_LIBRARY_PATH."""
    preloaded = [*interposers, *(lib_dir / name for name in SIM_RUNTIMES)]
    return {"LD_PRELOAD": _joined(preloaded), "LD_LIBRARY_PATH": _joined([*names, lib_dir])}


def merge(base: Mapping[str, str], added: Mapping[str, str], unset: Sequence[str] = ()) -> dict[str, str]:
    """Returns `base` without `unset`, overridden by `added`, keeping the libraries and search directories of `base`.

    The programs of a simulated driver, next to its libraries, are found before others: a real nvidia-smi does not know
    its devices.
    """
    merged = {name: value for name, value in base.items() if name not in unset} | dict(added)
    if "LD_PRELOAD" in added:
        theirs = preload.split(base.get("LD_PRELOAD", ""))
        merged["LD_PRELOAD"] = ":".join(preload.ordered(theirs, preload.split(added["LD_PRELOAD"])))
    if "LD_LIBRARY_PATH" in added:
        ours = added["LD_LIBRARY_PATH"].split(":")
        merged["LD_LIBRARY_PATH"] = _before(ours, base.get("LD_LIBRARY_PATH", ""))
        if tools := [f"{path}/{SIM_TOOLS}" for path in ours if Path(path).name == SIM_LIB_DIR.name]:
            merged["PATH"] = _before(tools, base.get("PATH", os.defpath))
    return merged


def _before(ours: Sequence[str], searched: str) -> str:
    return ":".join([*ours, *(path for path in searched.split(":") if path and path not in ours)])
