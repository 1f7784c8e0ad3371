"""Part 9: cuCheckpointProcess* of the driver on a process that holds memory. Not yet gpushare's."""

from gpubench.context import Context
from gpubench.stats import Spread
from gpubench.worker import START_SECONDS, Worker

GIB = 1 << 30
SIZES = (1, 10, 40)


def _target(context: Context, gib: int, torch: bool) -> Worker:
    stage = context.stage
    if not torch:
        worker = stage.load()
        worker.ask(f"alloc {gib} 1GiB")
        return worker
    worker = stage.start("bare", stage.python("torch_steps.py"))
    worker.ask("import", START_SECONDS)
    worker.ask("context")
    worker.ask(f"grow {gib * GIB}")
    return worker


def _cycle(context: Context, gib: int, torch: bool) -> None:
    stage = context.stage
    idle = stage.settled_bytes()
    with _target(context, gib, torch) as target:
        held = stage.settled_bytes() - idle
        with stage.start("bare", stage.python("suspend.py", str(target.pid))) as driver:
            if "error" in driver.ready:
                context.row(f"suspend with {gib} GiB", None, text=f"refused: {driver.ready['error']}")
                return
            left = stage.settled_bytes() - idle
            answer = driver.ask("go on", 120)
        back = stage.settled_bytes() - idle
        if "error" in answer:  # what was not resumed would not answer
            context.row(f"resume with {gib} GiB", None, text=f"refused: {answer['error']}")
            return
        target.ask("context" if torch else "memory")
    name = f"{gib} GiB in {'PyTorch' if torch else 'a C program'}"
    for step, seconds in answer["seconds"].items():
        context.row(f"{name}: {step}", Spread(seconds, seconds, seconds, 1), "s", against=f"{seconds / gib:.3g} s/GiB")
    context.row(
        f"{name}: left on the device while suspended",
        left / (1 << 20),
        "MiB",
        against=f"{held / (1 << 20):.0f} MiB before, {back / (1 << 20):.0f} MiB after the resume",
    )


def measure(context: Context) -> None:
    torch = context.has("torch")
    for gib in context.some(SIZES):
        with context.item(f"suspend with {gib} GiB"):
            _cycle(context, gib, torch)
