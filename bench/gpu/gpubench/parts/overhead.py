"""The same program bare and under gpushare. Both are alive throughout and run in turns, so that clocks and
temperature are the same for both."""

from gpubench.context import Context
from gpubench.stats import Spread, loss, spread
from gpubench.worker import Unit, Worker, rate, window

LAUNCHES = {
    "2 us kernels": ("burn", Unit(500, 2)),
    "5 us kernels": ("burn", Unit(200, 5)),
    "20 us kernels": ("burn", Unit(50, 20)),
    "100 us kernels": ("burn", Unit(10, 100)),
    "1 ms matrix products": ("gemm", Unit(2, 1000)),
}
TORCH = {
    "gemm": "bf16 product, 8192 cubed",
    "resnet": "ResNet-50 training step, batch 64",
    "transformer": "transformer training step",
    "decode": "decode step, CUDA graph",
    "eager": "decode step, launch by launch",
}
TARGET_PERCENT = 1.0
MEMORY = 40 << 30


def _alternate(context: Context, bare: Worker, other: Worker, seconds: float, pairs: int) -> tuple[Spread, float]:
    """Loss in percent of the bare rate, and the median bare rate."""
    window(context.seconds(0.5), bare)
    window(context.seconds(0.5), other)
    alone: list[float] = []
    shared: list[float] = []
    for index in range(context.repeats(pairs)):
        order = ((bare, alone), (other, shared)) if index % 2 == 0 else ((other, shared), (bare, alone))
        for worker, rates in order:
            rates.append(rate(window(context.seconds(seconds), worker)[0]))
    return loss(alone, shared), spread(alone).median


def _calibration(context: Context, kernel: str) -> None:
    """The part of each kernel's time that is not its work, bare: most of it for 2 us kernels."""
    _, launch_ns = context.stage.calibrated(kernel)
    label = f"{kernel}: device time of a launch without its work"
    context.row(label, launch_ns / 1000, "us", against="bare, in a row of launches; part of every kernel's time here")


def launches(context: Context) -> None:
    for kernel in dict.fromkeys(kernel for kernel, _ in LAUNCHES.values()):
        if not context.simulated:
            with context.item(f"calibration of {kernel}"):
                _calibration(context, kernel)
    for name, (kernel, unit) in context.some(list(LAUNCHES.items()), 2):
        with (
            context.item(name),
            context.stage.load("bare", kernel) as bare,
            context.stage.load("gpushare", kernel) as other,
        ):
            bare.set(unit)
            other.set(unit)
            lost, units = _alternate(context, bare, other, 1.5, 9)
            each = 1e6 / (units * unit.kernels)
            against = f"bare, {each:.3g} us a launch"
            context.row(name, lost, "% fewer", against=against, limit=TARGET_PERCENT)


def frameworks(context: Context) -> None:
    if not context.has("torch"):
        return
    stage = context.stage
    for kind, label in TORCH.items():
        argv = stage.python("torch_load.py", kind)
        with (
            context.item(label),
            stage.start("bare", argv) as bare,
            stage.start("gpushare", argv, memory=MEMORY) as other,
        ):
            # the pace of the host drifts within seconds: many short windows
            lost, units = _alternate(context, bare, other, 0.5, 28)
            against = f"bare, {1000 / units:.4g} ms a step"
            context.row(label, lost, "% fewer steps", against=against, limit=TARGET_PERCENT)
