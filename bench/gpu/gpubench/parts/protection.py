"""Part 6: an inference loop's latencies alone, beside training bare, and beside training under each arm."""

from gpubench.context import Context
from gpubench.worker import Json, Unit, Worker, window

INFERENCE = Unit(20, 100, graph=True, depth=1, pause_ms=10)
TRAINING = {"5 ms kernels": Unit(2, 5000), "a graph of 100 ms": Unit(50, 2000, graph=True)}


def _rows(context: Context, name: str, found: dict[str, Json]) -> None:
    for quantile in ("p50", "p99", "max"):
        values = {arm: report["latency_ns"][quantile] / 1e6 for arm, report in found.items()}
        alone = values.pop("alone")
        context.compare(f"inference beside {name}, {quantile}", "ms", values, against=f"alone {alone:.4g} ms")


def _kernels(context: Context) -> None:
    stage, seconds = context.stage, context.seconds(12)
    with stage.load() as worker:
        alone = window(seconds, worker.set(INFERENCE))[0]
    for name, training in context.some(list(TRAINING.items())):
        found = {"alone": alone}
        for arm in ("bare", *stage.arms):
            with (
                context.item(f"inference beside {name}, {arm}"),
                stage.load(arm, class_="interactive", time_milli=500) as inference,
                stage.load(arm, "gemm", time_milli=500) as trainer,
            ):
                inference.set(INFERENCE)
                trainer.set(training)
                found[arm], other = window(seconds, inference, trainer)
                context.row(
                    f"training beside inference: {name}, {arm}",
                    100 * other["work_ns"] / other["wall_ns"],
                    "% of the device",
                )
        _rows(context, name, found)


def _torch(context: Context) -> None:
    stage, seconds = context.stage, context.seconds(15)
    serving, training = stage.python("torch_load.py", "decode", "10"), stage.python("torch_load.py", "transformer")
    memory = 40 << 30
    with stage.start("bare", serving) as worker:
        found = {"alone": window(seconds, worker)[0]}
    for arm in ("bare", *stage.arms):
        with (
            context.item(f"inference beside PyTorch training, {arm}"),
            stage.start(arm, serving, class_="interactive", memory=memory) as inference,
            stage.start(arm, training, memory=memory) as trainer,
        ):
            found[arm] = _both(seconds, inference, trainer)
    _rows(context, "PyTorch training", found)


def _both(seconds: float, inference: Worker, trainer: Worker) -> Json:
    return window(seconds, inference, trainer)[0]


def measure(context: Context) -> None:
    with context.item("inference beside kernels"):
        _kernels(context)
    if context.has("torch"):
        with context.item("inference beside PyTorch training"):
            _torch(context)
