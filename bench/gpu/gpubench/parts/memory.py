"""Usable bytes under a limit, the cost of a process, books against NVML, processes that race."""

import time

from gpubench.context import Context
from gpubench.worker import START_SECONDS, Worker

MIB, GIB = 1 << 20, 1 << 30
LIMIT = 4 * GIB
FRAMEWORK_LIMIT = 16 * GIB
# Each: how many allocations of which size. One byte over a multiple of 2 MiB is where the driver's granularity shows.
LADDER = ((4096, 4 << 10), (1024, 64 << 10), (256, 1 << 20), (256, (1 << 20) + 1), (256, (2 << 20) + 1), (32, 20 << 20))
RACERS = 4
_RECONCILED_SECONDS = 1.0
"""Within that time the daemon has counted what the driver took by itself."""
TORCH = {
    "import": "import torch",
    "context": "PyTorch's first tensor",
    "cublas": "+ cuBLAS (a bf16 product)",
    "conv": "+ cuDNN (a convolution)",
    "graph": "+ a captured graph",
    "grow 67108864": "+ 64 MiB of the caching allocator",
}


def _book(context: Context, worker: Worker) -> int:
    return int(context.stage.grant_of(worker)["devices"][0]["memory_bytes"])


def _usable(context: Context) -> None:
    idle = context.stage.settled_bytes()
    with context.stage.load("gpushare", memory=LIMIT) as worker:
        shown = worker.ask("memory")
        overhead = context.stage.settled_bytes() - idle
        for piece in ("256MiB", "16MiB", "1MiB"):
            held = worker.ask(f"fill {piece}", 120)
        used = context.stage.settled_bytes() - idle
        context.row(
            "usable under a limit of 4 GiB",
            held["held_bytes"] / MIB,
            "MiB",
            against=f"limit {LIMIT >> 20} MiB; free reported {shown['free_bytes'] / MIB:.0f} MiB at the start",
        )
        context.row(
            "a process before its first allocation of its own",
            overhead / MIB,
            "MiB by NVML",
            against="context, module and 256 MiB of data on a real device",
        )
        against = f"gpushare's books: {_book(context, worker) / MIB:.1f} MiB"
        context.row("on the device when full", used / MIB, "MiB by NVML", against=against, limit=LIMIT / MIB)


def _listed(context: Context, worker: Worker) -> str:
    if context.simulated:
        return ""
    found = context.stage.nvml.process_bytes(worker.pid)
    return "; NVML does not list the process" if found is None else f"; NVML of the process {found / MIB:.1f} MiB"


def _process(context: Context) -> None:
    """One process in three books: gpushare's, NVML's of the process, and what the device has less since it began."""
    stage = context.stage
    idle = stage.settled_bytes()
    with stage.load("gpushare", memory=LIMIT) as worker:
        for name, more in (
            ("a process with its context and data", None),
            ("the same and 1 GiB more", "alloc 64 16MiB"),
        ):
            if more is not None:
                worker.ask(more)
            _beyond(context, worker, name, idle)


def _beyond(context: Context, worker: Worker, name: str, idle: int) -> None:
    time.sleep(context.seconds(_RECONCILED_SECONDS))
    grown, book = context.stage.settled_bytes() - idle, _book(context, worker)
    context.row(
        f"{name}: NVML of the device beyond gpushare's books",
        (grown - book) / MIB,
        "MiB",
        against=f"books {book / MIB:.1f} MiB, device {grown / MIB:.1f} MiB{_listed(context, worker)}",
    )


def _framework(context: Context, loading: str) -> None:
    """The same for a framework, whose libraries bring gigabytes of code of which it uses a part: gpushare charges the
    size that the loaded parts declare."""
    stage = context.stage
    idle = stage.settled_bytes()
    environment = {"CUDA_MODULE_LOADING": loading}
    argv = stage.python("torch_steps.py")
    with stage.start("gpushare", argv, memory=FRAMEWORK_LIMIT, environment=environment) as worker:
        for step, label in TORCH.items():
            worker.ask(step, START_SECONDS)
            if step != "import":
                _beyond(context, worker, f"{label}, {loading.lower()} loading", idle)


def _ladder(context: Context) -> None:
    with context.stage.load("gpushare", memory=LIMIT) as worker:
        for count, size in context.some(LADDER, 3):
            book, used = _book(context, worker), context.stage.settled_bytes()
            worker.ask(f"alloc {count} {size}")
            booked, grown = _book(context, worker) - book, context.stage.settled_bytes() - used
            worker.ask("free")
            context.row(
                f"{count} allocations of {size} bytes: NVML beyond gpushare's books",
                (grown - booked) / MIB,
                "MiB",
                against=f"books {booked / MIB:.1f} MiB, NVML {grown / MIB:.1f} MiB",
            )


def _shared(context: Context) -> None:
    """What the driver counts for who has memory of another process. With gpushare the exporter alone is charged."""
    stage = context.stage
    idle = stage.settled_bytes()
    with stage.start("bare", stage.python("shared.py", str(GIB))) as both:
        grown = stage.settled_bytes() - idle
        if context.simulated:
            return
        found = {who: stage.nvml.process_bytes(both.ready[who]) for who in ("exporter", "importer")}
        listed = {who: size / MIB for who, size in found.items() if size is not None}
        context.compare(
            "1 GiB that two processes have, by NVML of each", "MiB", listed, against=f"device {grown / MIB:.1f} MiB"
        )


def _race(context: Context) -> None:
    """Several processes of one grant fill its memory at the same time."""
    stage = context.stage
    idle = stage.settled_bytes()
    argv = stage.python("race.py", str(RACERS), "8MiB", *stage.load_argv())
    with stage.start("gpushare", argv, memory=LIMIT) as race:
        held = race.ready["held_bytes"]
        grant = stage.grant_of(race)["devices"][0]
        used = stage.settled_bytes() - idle
    peak, limit = grant["memory_peak_bytes"], grant["memory_limit_bytes"]
    context.row(
        f"{RACERS} processes of one grant fill it together: peak in the books",
        peak / MIB,
        "MiB",
        against=f"NVML {used / MIB:.0f} MiB; held {sum(held) / MIB:.0f} MiB",
        limit=limit / MIB,
    )


def measure(context: Context) -> None:
    with context.item("usable bytes"):
        _usable(context)
    with context.item("one process in the books and NVML's list"):
        _process(context)
    if context.has("torch"):
        for loading in ("LAZY", "EAGER"):
            with context.item(f"PyTorch in the books, {loading.lower()} loading"):
                _framework(context, loading)
    with context.item("NVML beyond the books"):
        _ladder(context)
    with context.item("memory that two processes have"):
        _shared(context)
    with context.item("processes that race"):
        _race(context)
