#!/usr/bin/env python3
"""Rewrites driver.tsv from the headers of an installed CUDA toolkit: refresh.py INCLUDE_DIR.

Only facts are taken: names, versions, parameter types. (base, version, variant) -> symbol follows from the headers:
the typedef versions of a base, sorted, align from the newest with base, base_v2, base_v3, ...; separately for the
plain, _ptds and _ptsz variants. The build never needs a toolkit: it reads the committed table.
"""

import re
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("driver.tsv")
HEADERS = (("cuda.h", "cudaTypedefs.h"), ("cudaProfiler.h", "cudaProfilerTypedefs.h"))
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


def typedef_versions(include: Path) -> dict[tuple[str, str], list[int]]:
    pattern = re.compile(r"\(CUDAAPI\s*\*\s*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)")
    versions: dict[tuple[str, str], set[int]] = {}
    for _, header in HEADERS:
        if (include / header).exists():
            for base, version, variant in pattern.findall((include / header).read_text()):
                versions.setdefault((base, variant), set()).add(int(version))
    return {key: sorted(found) for key, found in versions.items()}


def rows(include: Path) -> list[tuple[str, str, int, str, str]]:
    """(symbol, base, version, variant, parameters); base '-' and version 0 if the symbol cannot be looked up."""
    symbols = prototypes(include)
    named: dict[str, tuple[str, int, str]] = {}
    for (base, variant), versions in typedef_versions(include).items():
        candidates = [base + variant] + [f"{base}_v{i}{variant}" for i in range(2, 6)]
        present = [name for name in candidates if name in symbols]
        for version, name in zip(reversed(versions), reversed(present), strict=False):
            named[name] = (base, version, variant.lstrip("_"))
    return [(name, *named.get(name, ("-", 0, "")), symbols[name]) for name in sorted(symbols)]


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
    print(f"{TABLE}: {len(lines) - 2} symbols of CUDA {version[1]}")


if __name__ == "__main__":
    main()
