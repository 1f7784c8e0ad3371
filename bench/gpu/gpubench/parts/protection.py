"""An inference loop's latencies alone, next to training bare, and next to training under gpushare."""

from gpubench.context import Context
from gpubench.worker import Json, Unit, Worker, window

INFERENCE = Unit(20, 100, graph=True, depth=1, pause_ms=10)
TRAINING = {"5 ms kernels": Unit(2, 5000), "a graph of 100 ms": Unit(50, 2000, graph=True)}


def _rows(context: Context, name: str, found: dict[str, Json]) -> None:
    for quantile in ("p50", "p99", "max"):
        values = {arm: report["latency_ns"][quantile] / 1e6 for arm, report in found.items()}
        alone = values.pop("alone")
        context.compare(f"inference next to {name}, {quantile}", "ms", values, against=f"alone {alone:.4g} ms")


def _kernels(context: Context) -> None:
    stage, seconds = context.stage, context.seconds(12)
    with stage.load() as worker:
        alone = window(seconds, worker.set(INFERENCE))[0]
    for name, training in context.some(list(TRAINING.items())):
        found = {"alone": alone}
        for arm in ("bare", "gpushare"):
            with (
                context.item(f"inference next to {name}, {arm}"),
                stage.load(arm, class_="interactive", time_milli=500) as inference,
                stage.load(arm, "gemm", time_milli=500) as trainer,
            ):
                inference.set(INFERENCE)
                trainer.set(training)
                found[arm], other = window(seconds, inference, trainer)
                context.row(
                    f"training next to inference: {name}, {arm}",
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
    for arm in ("bare", "gpushare"):
        with (
            context.item(f"inference next to PyTorch training, {arm}"),
            stage.start(arm, serving, class_="interactive", memory=memory) as inference,
            stage.start(arm, training, memory=memory) as trainer,
        ):
            found[arm] = _both(seconds, inference, trainer)
    _rows(context, "PyTorch training", found)


def _both(seconds: float, inference: Worker, trainer: Worker) -> Json:
    return window(seconds, inference, trainer)[0]


def measure(context: Context) -> None:
    with context.item("inference next to kernels"):
        _kernels(context)
    if context.has("torch"):
        with context.item("inference next to PyTorch training"):
            _torch(context)
