"""A Python client of the driver: client.py KIND BYTES. BYTES is more than its share.

Prints {"result": ..., "refused": name of the error that the allocation of BYTES met, "total_bytes": ...}. The result is
the same to the last bit on every run: sums are of integers, which floating point adds exactly in any order, and PyTorch
is set to use deterministic algorithms.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def bindings(count: int) -> Answer:
    from cuda.bindings import driver as cuda

    def must(result: Any) -> Any:
        code, *values = result
        if code != cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(code.name)
        return values[0] if len(values) == 1 else values

    must(cuda.cuInit(0))
    device = must(cuda.cuDeviceGet(0))
    must(cuda.cuCtxSetCurrent(must(cuda.cuDevicePrimaryCtxRetain(device))))
    sent = bytes(range(256)) * 4096
    pointer = must(cuda.cuMemAlloc(len(sent)))
    must(cuda.cuMemcpyHtoD(pointer, sent, len(sent)))
    must(cuda.cuMemsetD8(pointer, 7, len(sent) // 2))
    back = bytearray(len(sent))
    must(cuda.cuMemcpyDtoH(back, pointer, len(sent)))
    _, total = must(cuda.cuMemGetInfo())
    return {"result": sum(back), "refused": cuda.cuMemAlloc(count)[0].name, "total_bytes": total}


def lookups(count: int) -> Answer:
    """What cuGetProcAddress answers for every function that there has been, of every version and kind of stream: found
    or not and why. Where a pointer leads to is not the same under another library, and should not be."""
    import ctypes
    import hashlib

    table = Path(__file__).resolve().parents[3] / "native" / "api" / "driver.tsv"
    known = [line.split("\t") for line in table.read_text().splitlines() if not line.startswith("#")]
    bases = {base for _, base, *_ in known if base != "-"}
    exact = {int(version) for _, _, version, *_ in known}
    cuda = ctypes.CDLL("libcuda.so.1")
    pointer, status, answers = ctypes.c_void_p(), ctypes.c_int(), hashlib.sha256()
    versions = sorted(exact | {version - 10 for version in exact if version} | {max(exact) + 1000})
    for base in sorted(bases):
        for version in versions:
            for flags in range(3):
                pointer.value, status.value = None, -1
                code = cuda.cuGetProcAddress_v2(
                    base.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status)
                )
                answers.update(f"{code} {status.value} {bool(pointer.value)};".encode())
    device, context = ctypes.c_int(), ctypes.c_void_p()
    for code in (
        cuda.cuInit(0),
        cuda.cuDeviceGet(ctypes.byref(device), 0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
    ):
        if code:
            raise RuntimeError(f"CUDA error {code}")
    available, total, name = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_char_p()
    cuda.cuMemGetInfo_v2(ctypes.byref(available), ctypes.byref(total))
    refused = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(count))
    cuda.cuGetErrorName(refused, ctypes.byref(name))
    return {"result": answers.hexdigest(), "refused": (name.value or b"").decode(), "total_bytes": total.value}


def cupy(count: int) -> Answer:
    import cupy as cp

    values = cp.arange(1 << 16, dtype=cp.float64)
    result = float((values * values).sum())
    _, total = cp.cuda.runtime.memGetInfo()
    try:
        cp.empty(count, dtype=cp.uint8)
        refused = "none"
    except cp.cuda.memory.OutOfMemoryError:
        refused = "OutOfMemoryError"
    return {"result": result, "refused": refused, "total_bytes": total}


def _torch_answer(result: float, count: int) -> Answer:
    import torch

    _, total = torch.cuda.mem_get_info()
    try:
        torch.empty(count, dtype=torch.uint8, device="cuda")
        refused = "none"
    except torch.cuda.OutOfMemoryError:
        refused = "OutOfMemoryError"
    return {"result": result, "refused": refused, "total_bytes": total}


def _model() -> tuple[Any, Any]:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    return model, torch.randn(256, 512).cuda()


def torch_eager(count: int) -> Answer:
    import torch

    model, data = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(data) ** 2).mean()
        loss.backward()
        optimizer.step()
    return _torch_answer(float(loss), count)


def torch_compiled(count: int) -> Answer:
    import torch

    model, data = _model()
    with torch.no_grad():
        compiled = torch.compile(model)
        return _torch_answer(float(compiled(data).sum()), count)


def torch_graph(count: int) -> Answer:
    import torch

    model, data = _model()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(data)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = model(data)
    for _ in range(50):
        graph.replay()
    return _torch_answer(float(out.sum()), count)


def triton(count: int) -> Answer:
    import torch

    # Triton reads the source of what it compiles, so the kernel lives in a module of its own, next to this file.
    sys.path.insert(0, str(Path(__file__).parent))
    from triton_kernel import double

    values = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    out = torch.empty_like(values)
    double[(values.numel() // 1024,)](values, out, block=1024)
    return _torch_answer(float(out.double().sum()), count)


def jax(count: int) -> Answer:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax as library
    import jax.numpy as jnp

    stats = library.devices("gpu")[0].memory_stats() or {}  # raises where JAX would take the processor instead
    values = jnp.arange(1 << 20, dtype=jnp.int32)
    result = int(library.jit(lambda v: (v % 1009).sum())(values))
    try:
        jnp.zeros(count, dtype=jnp.uint8).block_until_ready()
        refused = "none"
    except Exception as error:  # its class is not public
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        refused = "RESOURCE_EXHAUSTED"
    return {"result": result, "refused": refused, "total_bytes": int(stats.get("bytes_limit", 0))}


KINDS = {
    "bindings": bindings,
    "lookups": lookups,
    "cupy": cupy,
    "torch": torch_eager,
    "torch-compiled": torch_compiled,
    "torch-graph": torch_graph,
    "triton": triton,
    "jax": jax,
}

if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](int(sys.argv[2]))))
