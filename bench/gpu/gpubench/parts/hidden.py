"""Device memory that is in use without an allocation, step by step: by NVML of the device and of the process, and by
cuMemGetInfo."""

import statistics
from collections.abc import Sequence

from gpubench.context import Context
from gpubench.stats import spread
from gpubench.worker import START_SECONDS, Worker

Costs = dict[str, dict[str, float]]  # step -> source -> MiB

MIB = 1 << 20
STEPS = {
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


def _look(context: Context, observer: Worker, pid: int) -> dict[str, int]:
    """Bytes in use by three sources. `observer` has a context before, while and after the measured program runs; NVML
    may not list a process."""
    stage = context.stage
    found = {"NVML": stage.settled_bytes()}
    answer = observer.ask("look")
    found["cuMemGetInfo"] = answer["total_bytes"] - answer["free_bytes"]
    process = None if stage.simulated else stage.nvml.process_bytes(pid)
    return found if process is None else {**found, "NVML, of the process": process}


def _walk(context: Context, observer: Worker, worker: Worker, steps: Sequence[str]) -> Costs:
    """MiB that each step added, by source."""
    costs: Costs = {}
    before = _look(context, observer, worker.pid)
    for step in steps:
        worker.ask(step, START_SECONDS)
        after = _look(context, observer, worker.pid)
        costs[step] = {source: (used - before.get(source, 0)) / MIB for source, used in after.items()}
        before = after
    return costs


def _rows(context: Context, steps: Sequence[str], runs: Sequence[Costs]) -> None:
    for step in steps:
        found = [run[step] for run in runs]
        others = {
            source: statistics.median(run[source] for run in found)
            for source in ("cuMemGetInfo", "NVML, of the process")
            if all(source in run for run in found)
        }
        against = ", ".join(f"{source}: {value:.4g} MiB" for source, value in others.items())
        context.row(STEPS[step], spread([run["NVML"] for run in found]), "MiB", against=against)


def _driver(context: Context, observer: Worker) -> None:
    stage = context.stage
    steps = [step for step in STEPS if not (context.simulated and step == "bigstack")]
    modules = [stage.spin_ptx] if context.simulated else [stage.spin_ptx, stage.program("big_stack.cubin")]
    runs: list[Costs] = []
    for _ in range(context.repeats(3)):
        with stage.start("bare", [stage.program("steps"), *modules]) as worker:
            runs.append(_walk(context, observer, worker, steps))
    _rows(context, steps, runs)
    with context.item("the daemon's probe"):
        fresh = statistics.median(run["init"]["NVML"] + run["context"]["NVML"] for run in runs)
        probed = context.stage.device()["context_bytes"] / MIB
        context.row(
            "context as the daemon's probe measured it", probed, "MiB", against=f"a fresh process: {fresh:.0f} MiB"
        )


def measure(context: Context) -> None:
    stage = context.stage
    with stage.start("bare", [stage.program("steps"), stage.spin_ptx]) as observer:
        observer.ask("init")
        observer.ask("context")
        with context.item("the driver's own"):
            _driver(context, observer)
