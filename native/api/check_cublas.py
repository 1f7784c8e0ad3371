#!/usr/bin/env python3
"""Compares cublas.tsv with an installed cuBLAS: check_cublas.py LIBRARY INCLUDE_DIR SIMULATED_LIBRARY

The table's parameters and costs are written by hand. Prints each function whose parameters differ from the header's,
each that is in the table but not in the header, and each that the library exports and the simulated one does not. The
oldest interface, without handles, is left out: its functions return no status, so they cannot report "not supported".
"""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "sim" / "blas"))
import gen_blas  # type: ignore[import-not-found]

PROTOTYPE = re.compile(r"cublasStatus_t\s+(cublas\w+)\s*\(([^;{]*?)\)\s*;", re.S)


def prototypes(include: Path) -> dict[str, list[str]]:
    """The kinds of each function's parameters after the handle, as in the table: P, L, or the C type."""
    command = ["g++", "-E", "-P", "-x", "c++", f"-I{include}", str(include / "cublas_api.h")]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for name, parameters in PROTOTYPE.findall(text):
        given = parameters.split(",")[1:]
        found[name] = [
            "P" if re.search(r"[*\[]|callback|Callback", one) else "L" if "long long" in one else one.strip()
            for one in given
        ]
    return found


def differs(row: gen_blas.Row, given: list[str], wide: bool) -> bool:
    wanted = [part.split()[0] for part in row.parameters.split(", ")]
    if len(wanted) != len(given):
        return True
    for ours, theirs in zip(wanted, given, strict=True):
        pointer_or_long = ours in ("P", "L") or theirs in ("P", "L")
        if pointer_or_long and ours != theirs:
            return True
        if wide and (ours == "N") != theirs.startswith("int64_t"):
            return True
    return False


def exported(library: str) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[2].split("@")[0] for line in done.stdout.splitlines() if " T " in line}


def main() -> None:
    library, include, simulated = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    header = prototypes(include)
    for row in gen_blas.rows():
        if row.parameters == "-":
            continue
        for name, _ in gen_blas.names(row):
            for full in (name, f"{name}_64"):
                if full in header and differs(row, header[full], full != name):
                    print(f"{full}: {', '.join(header[full])}")
            if name not in header:
                print(f"{name}: not in the header")
    with_handle = {name for name in exported(library) if name in header or name.startswith("cublasXt")}
    for name in sorted(with_handle - exported(simulated)):
        print(f"{name}: not simulated, and not named as such")


if __name__ == "__main__":
    main()
