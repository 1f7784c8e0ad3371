"""gpushare's declarations of the driver's ABI against the real cuda.h, if a toolkit is installed."""

import re
import subprocess
from pathlib import Path

import pytest
from run.built import ROOT

NATIVE = ROOT / "native"
OURS = [NATIVE / "api" / name for name in ("gs_cuda.h", "gs_cuda_enums.h", "gs_cuda_types.h", "gs_cuda_textures.h")]
TOOLKITS = [path for path in sorted(Path("/usr/local").glob("cuda-1[3-9]*/include")) if (path / "cuda.h").exists()]

# The names in cuda.h of the latest versions of types; gpushare uses the unversioned names.
RENAMED = {
    "CUDA_MEMSET_NODE_PARAMS": "CUDA_MEMSET_NODE_PARAMS_v1",
    "CUDA_KERNEL_NODE_PARAMS": "CUDA_KERNEL_NODE_PARAMS_v3",
    "CUDA_HOST_NODE_PARAMS": "CUDA_HOST_NODE_PARAMS_v2",
    "CUDA_MEM_ALLOC_NODE_PARAMS": "CUDA_MEM_ALLOC_NODE_PARAMS_v2",
    "CUDA_BATCH_MEM_OP_NODE_PARAMS": "CUDA_BATCH_MEM_OP_NODE_PARAMS_v2",
}
# Types declared with another structure but the same size: only sizes are compared.
RESHAPED = {"CUexecAffinityParam", "CUDA_MEMSET_NODE_PARAMS_v2", "CUlaunchAttribute", "CUgraphNodeParams"}


def text() -> str:
    return re.sub(r"/\*.*?\*/", "", "".join(path.read_text() for path in OURS), flags=re.S)


def constants() -> list[str]:
    return sorted(set(re.findall(r"\b(CU[A-Z0-9_]*_[A-Z0-9_]+)\s*=\s*[-0-9(]", text())))


def structs() -> dict[str, list[str]]:
    found = {}
    for body, name in re.findall(r"^typedef (?:struct|union) \w+ \{\n(.*?)^\} (\w+);", text(), re.S | re.M):
        flat = re.sub(r"\n  (?:struct|union) \{.*?\n  \}(?: \w+)?;", "", "\n" + body, flags=re.S)
        fields = [
            re.sub(r"\[.*?\]", "", part).split()[-1].lstrip("*") for part in re.split(r"[;,]\s*", flat) if part.strip()
        ]
        found[name] = [] if name in RESHAPED else fields
    return found


def lines(include: list[Path], headers: str, rename: dict[str, str], tmp_path: Path) -> list[str]:
    body = [f'printf("{name} %lld\\n", (long long){name});' for name in constants()]
    for name, fields in structs().items():
        there = rename.get(name, name)
        body.append(f'printf("{name} %zu\\n", sizeof({there}));')
        body += [f'printf("{name}.{field} %zu\\n", offsetof({there}, {field}));' for field in fields]
    source = tmp_path / "abi.c"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n{headers}\nint main(void) {{\n" + "\n".join(body) + "}\n"
    )
    subprocess.run(["gcc", *[f"-I{path}" for path in include], source, "-o", tmp_path / "abi"], check=True)
    return subprocess.run([tmp_path / "abi"], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.skipif(not TOOLKITS, reason="no CUDA 13 toolkit's cuda.h here")
def test_types_and_constants_are_those_of_cuda_h(tmp_path):
    ours = lines([NATIVE], '#include "api/gs_cuda_types.h"', {}, tmp_path)
    theirs = lines([TOOLKITS[0]], "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>", RENAMED, tmp_path)
    assert len(ours) > 400
    assert ours == theirs
