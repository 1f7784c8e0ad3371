"""What waits for what on the device, without gpushare, and whether copies run next to compute, with and without."""

from gpubench.context import Context
from gpubench.stats import spread
from gpubench.worker import Json, Unit, window

NEIGHBOUR = Unit(1, 20, depth=1)
_LONGER = 1.0  # seconds beyond the window: the other program is there from its begin to its end
OTHERS = {"spin": "a kernel that spins on every multiprocessor", "blocked": "a stream blocked in wait-value"}


def _next_to(context: Context, mode: str | None, seconds: float) -> Json:
    """Latencies of the neighbour's kernel."""
    stage = context.stage
    with stage.load() as neighbour:
        neighbour.set(NEIGHBOUR)
        if mode is None:
            return dict(window(seconds, neighbour)[0]["latency_ns"])
        argv = [stage.program("stalls"), mode, str(seconds + _LONGER), stage.spin_ptx]
        with stage.start("bare", argv) as other:
            report = window(seconds, neighbour)[0]
            other.read()
        return dict(report["latency_ns"])


def measure(context: Context) -> None:
    seconds = context.seconds(10)
    alone = _next_to(context, None, seconds)
    for mode, label in OTHERS.items():
        with context.item(f"a 20 us kernel next to {label}"):
            found = _next_to(context, mode, seconds)
            for quantile in ("p50", "p99", "max"):
                context.row(
                    f"a 20 us kernel next to {label}, {quantile}",
                    found[quantile] / 1e3,
                    "us",
                    against=f"alone {alone[quantile] / 1e3:.4g} us",
                )
    for arm in ("bare", "gpushare"):
        with context.item(f"copies next to compute, {arm}"):
            _copies(context, arm)


def _copies(context: Context, arm: str) -> None:
    """Host-to-device copies of one process next to the compute of another."""
    copying, computing = Unit(0, 0, copy=64 << 20, depth=4), Unit(20, 100)
    gbps, lone, kept = [], [], []
    with context.stage.load(arm) as copier, context.stage.load(arm) as computer:
        copier.set(copying)
        computer.set(computing)
        for _ in range(context.repeats(5)):
            (copies,), (compute,) = window(context.seconds(3), copier), window(context.seconds(3), computer)
            both = window(context.seconds(3), copier, computer)
            gbps.append(both[0]["units"] * copying.copy / both[0]["wall_ns"])
            lone.append(copies["units"] * copying.copy / copies["wall_ns"])
            kept.append(100 * (both[1]["units"] / both[1]["wall_ns"]) / (compute["units"] / compute["wall_ns"]))
    against = f"alone {spread(lone).median:.4g}"
    context.row(f"copies next to another's compute, {arm}", spread(gbps), "GB/s", against=against)
    context.row(f"compute next to another's copies, {arm}", spread(kept), "%", against="the same program alone")
