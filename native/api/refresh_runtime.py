#!/usr/bin/env python3
"""Updates runtime.tsv and runtime_errors.tsv for one major version: refresh_runtime.py LIBRARY INCLUDE_DIR...

Only facts are taken: the names that the library exports, parameter types from the headers, and which functions have a
per-thread twin. The column `does` is written by hand and kept; for a new function it is the driver's function with the
same name and number of parameters, or `none`. The build never needs a toolkit: it reads the committed table.
"""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import table

TABLE = Path(__file__).with_name("runtime.tsv")
ERRORS = Path(__file__).with_name("runtime_errors.tsv")
HEADERS = ("cuda_runtime_api.h", "cuda_profiler_api.h")
PROTOTYPE = re.compile(r"(?:cudaError_t|const char\s*\*|void)\s+(cuda[A-Z]\w*)\s*\(([^;{]*?)\)\s*;", re.S)
TWIN = re.compile(r"_(ptds|ptsz)$")


def preprocessed(header: Path, includes: list[str]) -> str:
    command = [
        "gcc",
        "-E",
        "-P",
        "-x",
        "c",
        "-D__CUDA_API_VERSION_INTERNAL",
        *(f"-I{d}" for d in includes),
        str(header),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def prototypes(includes: list[str]) -> dict[str, str]:
    found = {}
    for header in HEADERS:
        path = Path(includes[0]) / header
        if path.exists():
            for name, parameters in PROTOTYPE.findall(preprocessed(path, includes)):
                found[name] = re.sub(r"\s+", " ", parameters).replace(" ,", ",").strip() or "void"
    return found


def exported(library: str) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[2].split("@")[0] for line in done.stdout.splitlines() if " T " in line}


def guess(name: str, parameters: str) -> str:
    count = len(parameters.split(","))
    same = [s for s in table.driver() if s.base == "cu" + name.removeprefix("cuda") and not s.variant]
    same = [s for s in same if len(s.parameters.split(",")) == count]
    return max(same, key=lambda s: s.version).name if same else "none"


def rows(major: int, names: set[str], parameters: dict[str, str]) -> list[table.RuntimeFunction]:
    old = [row for row in table.runtime() if major in row.majors]
    kept = {row.name: row for row in old}
    found = []
    for name in sorted(name for name in names if not TWIN.search(name)):
        before = kept.get(name)
        text = parameters.get(name, before.parameters if before else "-")
        variant = next((v for v in ("ptds", "ptsz") if f"{name}_{v}" in names), "")
        does = before.does if before else guess(name, text)
        found.append(table.RuntimeFunction(name, (major,), variant, does, text))
    return found


def merged(rows: list[table.RuntimeFunction]) -> list[table.RuntimeFunction]:
    """Merges the rows of a function that is the same in several major versions."""
    found: dict[tuple[str, str, str, str], table.RuntimeFunction] = {}
    for row in rows:
        key = (row.name, row.variant, row.does, re.sub(r"\W+", " ", row.parameters).strip())
        other = found.get(key)
        majors = tuple(sorted({*row.majors, *(other.majors if other else ())}))
        found[key] = replace(row, majors=majors)
    return sorted(found.values(), key=lambda row: (row.name, row.majors))


def refresh_errors(includes: list[str]) -> None:
    """Adds the errors of the header; keeps existing descriptions."""
    lines = ERRORS.read_text().splitlines()
    known = {int(line.split("\t")[0]): line for line in lines if not line.startswith("#")}
    text = preprocessed(Path(includes[0]) / "driver_types.h", includes)
    errors = re.search(r"enum\s+cudaError\s*\{(.*?)\}", text, re.S)
    assert errors is not None, "no cudaError in driver_types.h"
    for name, number in re.findall(r"(\w+)\s*=\s*(\d+)", errors[1]):
        known.setdefault(int(number), f"{number}\t{name}\t-")
    head = [line for line in lines if line.startswith("#")]
    ERRORS.write_text("\n".join([*head, *(known[number] for number in sorted(known))]) + "\n")


def main() -> None:
    library, includes = sys.argv[1], sys.argv[2:]
    version = re.search(r"#define CUDART_VERSION\s+(\d+)", (Path(includes[0]) / "cuda_runtime_api.h").read_text())
    assert version is not None, "no CUDART_VERSION in cuda_runtime_api.h"
    versions = table.runtime_versions() | {int(version[1]) // 1000: int(version[1])}
    major = int(version[1]) // 1000
    others = [replace(row, majors=(m,)) for row in table.runtime() for m in row.majors if m != major]
    found = merged(others + rows(major, exported(library), prototypes(includes)))
    lines = [
        "# CUDA runtime API, made by native/api/refresh_runtime.py; the column `does` is written by hand (table.py)"
    ]
    lines += [f"# version {number}" for number in sorted(versions.values())]
    lines += ["# name\tmajors\ttwin\tdoes\tparameters"]
    for row in found:
        lines.append("\t".join((row.name, ",".join(map(str, row.majors)), row.variant, row.does, row.parameters)))
    TABLE.write_text("\n".join(lines) + "\n")
    refresh_errors(includes)
    print(f"{TABLE}: {len(found)} rows")


if __name__ == "__main__":
    main()
