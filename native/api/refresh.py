#!/usr/bin/env python3
"""Rewrites driver.tsv and graphics.tsv from the headers of an installed CUDA toolkit: refresh.py INCLUDE_DIR.

Only facts are taken: names, versions, parameter types. (base, version, variant) -> symbol follows from the headers:
the typedef versions of a base, sorted, align from the newest with base, base_v2, base_v3, ...; separately for the
plain, _ptds and _ptsz variants. The build never needs a toolkit: it reads the committed tables.

graphics.tsv: the names stay as they are, since those headers include others that a toolkit does not have, and some
functions are in none. The versions are taken from the headers.
"""

import re
import subprocess
import sys
from collections.abc import Container, Sequence
from pathlib import Path

TABLE = Path(__file__).with_name("driver.tsv")
GRAPHICS = Path(__file__).with_name("graphics.tsv")
HEADERS = (("cuda.h", "cudaTypedefs.h"), ("cudaProfiler.h", "cudaProfilerTypedefs.h"))
GRAPHICS_HEADERS = ("cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h")
VARIANTS = ("", "_ptds", "_ptsz")


def preprocess(include: Path, header: str) -> str:
    command = ["gcc", "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL", "-I", str(include), str(include / header)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def prototypes(include: Path) -> dict[str, str]:
    pattern = re.compile(r"CUresult\s+(cu[A-Z]\w*)\s*\(([^;{]*?)\)\s*;", re.S)
    found = {}
    for header, _ in HEADERS:
        if (include / header).exists():
            for name, parameters in pattern.findall(preprocess(include, header)):
                found[name] = re.sub(r"\s+", " ", parameters).strip() or "void"
    return found


def typedef_versions(include: Path, headers: Sequence[str]) -> dict[tuple[str, str], list[int]]:
    pattern = re.compile(r"\(CUDAAPI\s*\*\s*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)")
    versions: dict[tuple[str, str], set[int]] = {}
    for header in headers:
        if (include / header).exists():
            for base, version, variant in pattern.findall((include / header).read_text()):
                versions.setdefault((base, variant), set()).add(int(version))
    return {key: sorted(found) for key, found in versions.items()}


def versioned(include: Path, headers: Sequence[str], symbols: Container[str]) -> dict[str, tuple[str, int, str]]:
    """Returns (base, version, variant) of each symbol that can be looked up."""
    named: dict[str, tuple[str, int, str]] = {}
    for (base, variant), versions in typedef_versions(include, headers).items():
        candidates = [base + variant] + [f"{base}_v{i}{variant}" for i in range(2, 6)]
        present = [name for name in candidates if name in symbols]
        for version, name in zip(reversed(versions), reversed(present), strict=False):
            named[name] = (base, version, variant.lstrip("_"))
    return named


def rows(include: Path) -> list[tuple[str, str, int, str, str]]:
    """(symbol, base, version, variant, parameters); base '-' and version 0 if the symbol cannot be looked up."""
    symbols = prototypes(include)
    named = versioned(include, [header for _, header in HEADERS], symbols)
    return [(name, *named.get(name, ("-", 0, "")), symbols[name]) for name in sorted(symbols)]


def refresh_graphics(include: Path) -> None:
    lines = GRAPHICS.read_text().splitlines()
    names = [line.split("\t")[0] for line in lines if not line.startswith("#")]
    named = versioned(include, GRAPHICS_HEADERS, names)
    found = [(name, *named.get(name, ("-", 0, ""))) for name in names]
    made = [f"{name}\t{base}\t{version}\t{variant or '-'}" for name, base, version, variant in found]
    GRAPHICS.write_text("\n".join([*(line for line in lines if line.startswith("#")), *made]) + "\n")


def main() -> None:
    include = Path(sys.argv[1])
    version = re.search(r"#define CUDA_VERSION (\d+)", (include / "cuda.h").read_text())
    assert version is not None, "no CUDA_VERSION in cuda.h"
    lines = [
        f"# CUDA driver API as of cuda.h {version[1]}, made by native/api/refresh.py",
        "# symbol\tbase\tversion\tvariant\tparameters",
    ]
    lines += ["\t".join(map(str, row)) for row in rows(include)]
    TABLE.write_text("\n".join(lines) + "\n")
    refresh_graphics(include)
    print(f"{TABLE}: {len(lines) - 2} symbols of CUDA {version[1]}")


if __name__ == "__main__":
    main()
