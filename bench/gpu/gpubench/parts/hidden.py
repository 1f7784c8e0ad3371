"""Experiment B: device memory that nobody asked for by an allocation, and what of it NVML omits. Before and after each
step: NVML of the whole device and of the process, and cuMemGetInfo."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gpubench.context import Context
from gpubench.stats import spread
from gpubench.worker import START_SECONDS, Json, Worker

Costs = dict[str, dict[str, float]]  # step -> source -> MiB

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
RULE = ("processors", "threads", "local_bytes", "stack_bytes")
"""Of which local memory is said to be made."""
TORCH = ("import", "context", "cublas", "conv", "graph", "grow 67108864")
TORCH_LABELS = {
    "import": "import torch",
    "context": "PyTorch's first tensor",
    "cublas": "+ cuBLAS (a bf16 product)",
    "conv": "+ cuDNN (a convolution)",
    "graph": "+ a captured graph",
    "grow 67108864": "+ 64 MiB of the caching allocator",
}


@dataclass(frozen=True)
class View:
    """What is in use, in bytes, as three sources have it. `process` None: NVML does not say."""

    nvml: int
    cuda: int
    process: int | None


class Observer:
    """Looks at the device from three sides: NVML's use of the whole device and of one process, and cuMemGetInfo, asked
    in a process of its own, which has a context before, while and after the other runs."""

    def __init__(self, context: Context, looking: Worker) -> None:
        self._context, self._looking = context, looking

    def look(self, pid: int) -> View:
        stage = self._context.stage
        nvml = stage.settled_bytes()
        answer = self._looking.ask("look")
        process = None if stage.simulated else stage.nvml.process_bytes(pid)
        return View(nvml, answer["total_bytes"] - answer["free_bytes"], process)


@contextmanager
def _observer(context: Context) -> Iterator[Observer]:
    stage = context.stage
    with stage.start("bare", [stage.program("steps"), stage.spin_ptx]) as looking:
        looking.ask("init")
        looking.ask("context")
        yield Observer(context, looking)


def _added(before: View, after: View) -> dict[str, float]:
    """MiB; a process that NVML did not list before had nothing, one that it does not list now is left out."""
    added = {"NVML": after.nvml - before.nvml, "cuMemGetInfo": after.cuda - before.cuda}
    if after.process is not None:
        added["NVML, of the process"] = after.process - (before.process or 0)
    return {name: value / MIB for name, value in added.items()}


def _walk(observer: Observer, worker: Worker, steps: Sequence[str]) -> tuple[Costs, dict[str, Json]]:
    """MiB each step added, by source, and what the program itself answered."""
    costs: Costs = {}
    answers: dict[str, Json] = {}
    before = observer.look(worker.pid)
    for step in steps:
        answers[step] = worker.ask(step, START_SECONDS)
        after = observer.look(worker.pid)
        costs[step] = _added(before, after)
        before = after
    return costs, answers


def _row(
    context: Context,
    label: str,
    found: Sequence[dict[str, float]],
    against: str = "",
    more: Mapping[str, float] | None = None,
) -> None:
    """One step over all runs: what NVML says of the device, and the other two beside it. `more`: into `values`."""
    others = {
        source: statistics.median(run[source] for run in found if source in run)
        for source in ("cuMemGetInfo", "NVML, of the process")
        if any(source in run for run in found)
    }
    text = ", ".join(f"{source}: {value:.4g} MiB" for source, value in others.items())
    values = spread([run["NVML"] for run in found])
    context.row(
        label, values, "MiB", against="; ".join(filter(None, (text, against))), values={**others, **(more or {})}
    )


def _driver(context: Context, observer: Observer) -> list[Costs]:
    stage = context.stage
    steps = [step for step in STEPS if not (context.simulated and step == "bigstack")]
    modules = [stage.spin_ptx] if context.simulated else [stage.spin_ptx, stage.program("big_stack.cubin")]
    runs: list[Costs] = []
    for _ in range(context.repeats(3)):
        with stage.start("bare", [stage.program("steps"), *modules]) as worker:
            costs, answers = _walk(observer, worker, steps)
            runs.append(costs)
    for step in steps:
        rule = {key: answers[step][key] for key in RULE} if step == "bigstack" else {}
        _row(context, LABELS[step], [run[step] for run in runs], more=rule)
    for source, nothing in (
        ("cuMemGetInfo", "0: NVML omits nothing"),
        ("NVML, of the process", "0: all of it is the process's by NVML"),
    ):
        beyond = [
            sum(cost[source] - cost["NVML"] for cost in run.values() if source in cost)
            for run in runs
            if any(source in cost for cost in run.values())
        ]
        if beyond:
            context.row(
                f"all steps together: {source} beyond NVML's use of the device",
                spread(beyond),
                "MiB",
                against=nothing,
            )
    return runs


def _probe(context: Context, runs: Sequence[Costs]) -> None:
    fresh = statistics.median(run["init"]["NVML"] + run["context"]["NVML"] for run in runs)
    probed = context.stage.device()["context_bytes"] / MIB
    context.row("context as the daemon's probe measured it", probed, "MiB", against=f"a fresh process: {fresh:.0f} MiB")


def _torch(context: Context, observer: Observer, loading: str) -> list[Costs]:
    runs: list[Costs] = []
    for _ in range(context.repeats(3)):
        argv = context.stage.python("torch_steps.py")
        with context.stage.start("bare", argv, environment={"CUDA_MODULE_LOADING": loading}) as worker:
            costs, answers = _walk(observer, worker, TORCH)
            runs.append(costs)
            last = answers[TORCH[-1]]
    whole = statistics.median(sum(cost["NVML"] for cost in run.values()) for run in runs)
    context.row(
        f"PyTorch, {loading.lower()} loading: its own books at the end",
        last["reserved_bytes"] / MIB,
        "MiB reserved",
        against=f"on the device {whole:.0f} MiB",
    )
    return runs


def measure(context: Context) -> None:
    with _observer(context) as observer:
        with context.item("the driver's own"):
            runs = _driver(context, observer)
            with context.item("the daemon's probe"):
                _probe(context, runs)
        if context.has("torch"):
            with context.item("PyTorch"):
                _frameworks(context, observer)


def _frameworks(context: Context, observer: Observer) -> None:
    lazy, eager = _torch(context, observer, "LAZY"), _torch(context, observer, "EAGER")
    for step in TORCH:
        all_loaded = statistics.median(run[step]["NVML"] for run in eager)
        against = f"all modules loaded at once: {all_loaded:.0f} MiB"
        _row(context, TORCH_LABELS[step], [run[step] for run in lazy], against)
