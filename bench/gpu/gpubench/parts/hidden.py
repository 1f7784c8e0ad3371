"""Experiment B: device memory that nobody asked for by an allocation. NVML of the whole device, before and after."""

import statistics
from collections.abc import Sequence

from gpubench.context import Context
from gpubench.stats import spread
from gpubench.worker import Json, Worker

MIB = 1 << 20
STEPS = (
    "init",
    "context",
    "module",
    "launch",
    "second",
    "drop",
    "pool 1MiB",
    "pool 64MiB",
    "alloc 4KiB",
    "alloc 2MiB",
    "bigstack",
)
LABELS = {
    "init": "cuInit",
    "context": "a bare context",
    "module": "loading a module",
    "launch": "a first launch",
    "second": "a second context in the process",
    "drop": "ending the second context",
    "pool 1MiB": "first pool allocation, 1 MiB",
    "pool 64MiB": "pool growth by 64 MiB",
    "alloc 4KiB": "first cuMemAlloc, 4 KiB",
    "alloc 2MiB": "cuMemAlloc of 2 MiB",
    "bigstack": "a kernel with 16 KiB of local memory",
}
TORCH = ("import", "context", "cublas", "conv", "graph", "grow 67108864")
TORCH_LABELS = {
    "import": "import torch",
    "context": "PyTorch's first tensor",
    "cublas": "+ cuBLAS (a bf16 product)",
    "conv": "+ cuDNN (a convolution)",
    "graph": "+ a captured graph",
    "grow 67108864": "+ 64 MiB of the caching allocator",
}


def _walk(context: Context, worker: Worker, steps: Sequence[str]) -> tuple[dict[str, float], dict[str, Json]]:
    """MiB each step added on the device, and what the program itself answered."""
    costs: dict[str, float] = {}
    answers: dict[str, Json] = {}
    before = context.stage.settled_bytes()
    for step in steps:
        answers[step] = worker.ask(step)
        after = context.stage.settled_bytes()
        costs[step] = (after - before) / MIB
        before = after
    return costs, answers


def _driver(context: Context) -> None:
    stage = context.stage
    steps = [step for step in STEPS if not (context.simulated and step == "bigstack")]
    modules = [stage.spin_ptx] if context.simulated else [stage.spin_ptx, stage.kernels]
    runs, gaps = [], []
    for _ in range(context.repeats(3)):
        with stage.start("bare", [stage.program("steps"), *modules]) as worker:
            idle = stage.settled_bytes()
            costs, answers = _walk(context, worker, steps)
            last = answers[steps[-1]]
            gaps.append((last["total_bytes"] - last["free_bytes"] - (stage.used_bytes() - idle)) / MIB)
            runs.append(costs)
    for step in steps:
        context.row(LABELS[step], spread([run[step] for run in runs]), "MiB")
    fresh = statistics.median(run["init"] + run["context"] for run in runs)
    probed = stage.client.devices()[0]["context_bytes"] / MIB
    context.row("context as the daemon's probe measured it", probed, "MiB", against=f"a fresh process: {fresh:.0f} MiB")
    context.row(
        "cuMemGetInfo's total less free, beyond what NVML says this process added",
        spread(gaps),
        "MiB",
        against="other processes and what the driver keeps for itself",
    )


def _torch(context: Context, loading: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {step: [] for step in TORCH}
    for _ in range(context.repeats(3)):
        argv = context.stage.python("torch_steps.py")
        with context.stage.start("bare", argv, environment={"CUDA_MODULE_LOADING": loading}) as worker:
            costs, answers = _walk(context, worker, TORCH)
            for step in TORCH:
                found[step].append(costs[step])
            last = answers[TORCH[-1]]
    context.row(
        f"PyTorch, {loading.lower()} loading: its own books at the end",
        last["reserved_bytes"] / MIB,
        "MiB reserved",
        against=f"on the device {sum(statistics.median(values) for values in found.values()):.0f} MiB",
    )
    return found


def measure(context: Context) -> None:
    _driver(context)
    if not context.has("torch"):
        return
    lazy, eager = _torch(context, "LAZY"), _torch(context, "EAGER")
    for step in TORCH:
        against = f"all modules loaded at once: {statistics.median(eager[step]):.0f} MiB"
        context.row(TORCH_LABELS[step], spread(lazy[step]), "MiB", against=against)
