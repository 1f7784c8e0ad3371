"""The same program bare and under gpushare. Both live the whole time and run in turns, so that clocks and
temperature are the same for both."""

from contextlib import ExitStack

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
PAIR = "transformer"
TARGET_PERCENT = 1.0
MEMORY = 40 << 30


def _alternate(
    context: Context, bare: list[Worker], other: list[Worker], seconds: float, pairs: int
) -> tuple[Spread, float]:
    """Loss in percent of the bare rate, and the median bare rate; with several programs, of their sums."""
    window(context.seconds(0.5), *bare)
    window(context.seconds(0.5), *other)
    alone: list[float] = []
    shared: list[float] = []
    for index in range(context.repeats(pairs)):
        order = ((bare, alone), (other, shared)) if index % 2 == 0 else ((other, shared), (bare, alone))
        for workers, rates in order:
            rates.append(sum(rate(report) for report in window(context.seconds(seconds), *workers)))
    return loss(alone, shared), spread(alone).median


def _single(context: Context) -> None:
    for name, (kernel, unit) in context.some(list(LAUNCHES.items()), 2):
        with (
            context.item(name),
            context.stage.load("bare", kernel) as bare,
            context.stage.load("gpushare", kernel) as other,
        ):
            bare.set(unit)
            other.set(unit)
            lost, units = _alternate(context, [bare], [other], 1.5, 9)
            each = 1e6 / (units * unit.kernels)
            against = f"bare, {each:.3g} us a launch"
            context.row(name, lost, "% fewer", against=against, limit=TARGET_PERCENT)


def _pairs(context: Context) -> None:
    """Two at once under gpushare against two at once under the device's own slicing."""
    for name in context.some(["20 us kernels", "1 ms matrix products"]):
        kernel, unit = LAUNCHES[name]
        label = f"{name}, two programs together"
        with (
            context.item(label),
            context.stage.load("bare", kernel) as a,
            context.stage.load("bare", kernel) as b,
            context.stage.load("gpushare", kernel) as c,
            context.stage.load("gpushare", kernel) as d,
        ):
            for worker in (a, b, c, d):
                worker.set(unit)
            lost, _ = _alternate(context, [a, b], [c, d], 2, 5)
            context.row(label, lost, "% fewer", against="two bare programs together")


def _calibration(context: Context, kernel: str) -> None:
    """What of each kernel's time is not its work, bare: 2 us kernels are mostly that."""
    _, launch_ns = context.stage.calibrated(kernel)
    label = f"{kernel}: device time of a launch without its work"
    context.row(label, launch_ns / 1000, "us", against="bare, in a row of launches; part of every kernel's time here")


def launches(context: Context) -> None:
    for kernel in dict.fromkeys(kernel for kernel, _ in LAUNCHES.values()):
        if not context.simulated:
            with context.item(f"calibration of {kernel}"):
                _calibration(context, kernel)
    _single(context)
    _pairs(context)


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
            lost, units = _alternate(context, [bare], [other], 2, 7)
            against = f"bare, {1000 / units:.4g} ms a step"
            context.row(label, lost, "% fewer steps", against=against, limit=TARGET_PERCENT)
    _together(context)


def _together(context: Context) -> None:
    """Two trainings at once under gpushare against two at once under the device's own slicing."""
    argv, label = context.stage.python("torch_load.py", PAIR), f"{TORCH[PAIR]}: two programs together"
    with context.item(label), ExitStack() as stack:
        start = context.stage.start
        bare = [stack.enter_context(start("bare", argv)) for _ in range(2)]
        shared = [stack.enter_context(start("gpushare", argv, memory=MEMORY)) for _ in range(2)]
        lost, _ = _alternate(context, bare, shared, 3, 5)
        context.row(label, lost, "% fewer steps", against="two bare programs together")
