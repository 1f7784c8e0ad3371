"""Experiment C: what waits for what."""

from gpubench.context import Context
from gpubench.stats import spread
from gpubench.worker import Json, Unit, window

NEIGHBOUR = Unit(1, 20, depth=1)
_LONGER = 1.0  # seconds beyond the window: the other is there from its begin to its end


def _order(context: Context) -> None:
    stage = context.stage
    for mode in ("hard", "soft"):
        answers = []
        for _ in range(context.repeats(5)):
            argv = [stage.program("stalls"), "order", mode, stage.spin_ptx]
            with stage.start("bare", argv) as worker:
                answers.append(worker.ready)
        name = f"6 ms of kernels behind a wait-value, a {mode} gate of 2 ms"
        hung = sum(answer["hung"] for answer in answers)
        runs = {"hung": hung, "runs": len(answers)}
        if hung:
            context.row(name, None, text=f"hung in {hung} of {len(answers)} runs", values=runs)
        else:
            context.row(
                name,
                spread([answer["wall_ns"] / 1e6 for answer in answers]),
                "ms",
                against="6 ms, and 5 ms of patience once",
                values=runs,
            )


def _beside(context: Context, mode: str | None, seconds: float) -> Json:
    stage = context.stage
    with stage.load() as neighbour:
        neighbour.set(NEIGHBOUR)
        if mode is None:
            return window(seconds, neighbour)[0]
        argv = [stage.program("stalls"), mode, str(seconds + _LONGER), stage.spin_ptx]
        with stage.start("bare", argv) as other:
            report = window(seconds, neighbour)[0]
            other.read()
        return report


def measure(context: Context) -> None:
    with context.item("a wait-value behind a gate"):
        _order(context)
    seconds = context.seconds(10)
    alone = _beside(context, None, seconds)["latency_ns"]
    for mode, label in (
        ("spin", "a kernel that spins on every multiprocessor"),
        ("blocked", "a stream blocked in wait-value"),
    ):
        with context.item(f"a 20 us kernel beside {label}"):
            found = _beside(context, mode, seconds)["latency_ns"]
            for quantile in ("p50", "p99", "max"):
                context.row(
                    f"a 20 us kernel beside {label}, {quantile}",
                    found[quantile] / 1e3,
                    "us",
                    against=f"alone {alone[quantile] / 1e3:.4g} us",
                    values={"alone_us": alone[quantile] / 1e3, "other_s": seconds + _LONGER},
                )


def copies(context: Context) -> None:
    """Host-to-device copies of one process beside the compute of another, bare and under each arm."""
    for arm in ("bare", *context.stage.arms):
        with context.item(f"copies beside compute, {arm}"):
            _copies(context, arm)


def _copies(context: Context, arm: str) -> None:
    copying, computing = Unit(0, 0, copy=64 << 20, depth=4), Unit(20, 100)
    with context.stage.load(arm) as copier, context.stage.load(arm) as computer:
        copier.set(copying)
        computer.set(computing)
        pairs = []
        for _ in range(context.repeats(5)):
            alone = (window(context.seconds(3), copier)[0], window(context.seconds(3), computer)[0])
            pairs.append((alone, window(context.seconds(3), copier, computer)))
    gbps = [both[0]["units"] * copying.copy / both[0]["wall_ns"] for _, both in pairs]
    lone = [alone[0]["units"] * copying.copy / alone[0]["wall_ns"] for alone, _ in pairs]
    alone_gbps = spread(lone).median
    context.row(
        f"copies beside another's compute, {arm}",
        spread(gbps),
        "GB/s",
        against=f"alone {alone_gbps:.4g}",
        values={"alone": alone_gbps},
    )
    kept = [
        100 * (both[1]["units"] / both[1]["wall_ns"]) / (alone[1]["units"] / alone[1]["wall_ns"])
        for alone, both in pairs
    ]
    context.row(f"compute beside another's copies, {arm}", spread(kept), "%", against="the same program alone")
