#!/usr/bin/env python3
"""Rewrites cupti.txt: refresh_cupti.py LIBRARY INCLUDE_DIR

Only names are taken: those that the library exports and a public header of CUPTI declares. The build never needs a
toolkit: it reads the committed list.
"""

import re
import subprocess
import sys
from pathlib import Path

NAMES = Path(__file__).with_name("cupti.txt")
DECLARED = re.compile(r"CUPTIAPI\s+(cupti\w+)\s*\(")


def main() -> None:
    library, include = Path(sys.argv[1]), Path(sys.argv[2])
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    exported = {line.split()[2].split("@")[0] for line in done.stdout.splitlines() if " T " in line}
    headers = [path for path in sorted(include.glob("*.h")) if "CUPTIAPI" in path.read_text()]
    declared = {name for path in headers for name in DECLARED.findall(path.read_text())}
    names = sorted(exported & declared)
    version = re.search(r"#define CUDA_VERSION\s+(\d+)", (include / "cuda.h").read_text())
    assert version is not None, "no CUDA_VERSION in cuda.h"
    toolkit = f"{int(version[1]) // 1000}.{int(version[1]) % 1000 // 10}"
    head = f"# CUPTI functions of the public headers of CUDA {toolkit} that {library.name} exports ({len(names)})"
    NAMES.write_text("\n".join([head, *names]) + "\n")
    print(f"{NAMES}: {len(names)} names")


if __name__ == "__main__":
    main()
