"""An idle owner wants its device back from a borrower."""

from gpubench.context import Context
from gpubench.stats import Spread
from gpubench.worker import Json, Unit, WorkerError, window

OWNER = Unit(5, 100, depth=1, pause_ms=60, wake=True)
BORROWERS = {
    "20 us kernels": Unit(50, 20),
    "1 ms kernels": Unit(4, 1000),
    "20 ms kernels": Unit(1, 20_000),
    "a graph of 200 ms": Unit(100, 2000, graph=True),
}
IN_FLIGHT_MS, SPARE_MS = 2.0, 1.0
"""Target of a wake: the bound on work in flight, the borrower's longest piece of work, and what the switch may take."""
LOSS_PERCENT = 3.0
"""Target of the borrower: the part of what it has on the bare device that it loses to the owner's leases."""


def longest_ms(unit: Unit) -> float:
    """What the device cannot stop in: a kernel, or a whole graph."""
    return unit.kernel_us * (unit.kernels if unit.graph else 1) / 1000


def _next_to(context: Context, arm: str, unit: Unit) -> tuple[Json, Json, list[float]]:
    """Reports of owner and borrower, and the waits in ms that the arbiter recorded."""
    stage = context.stage
    with (
        stage.load(arm, class_="interactive", time_milli=750) as owner,
        stage.load(arm, "gemm", time_milli=250) as borrower,
    ):
        owner.set(OWNER)
        borrower.set(unit)
        grant = stage.grant_of(owner)["id"] if arm == "gpushare" else None
        after = stage.client.call("GET", "/v1/events")["after"] if grant else 0
        reports = window(context.seconds(10), owner, borrower)
        if borrower.process.poll() is not None:
            raise WorkerError("the borrower died")
        waits = []
        if grant:
            events = stage.client.call("GET", f"/v1/events?after={after}")["events"]
            waits = [
                event["wait_ns"] / 1e6
                for event in events
                if event["kind"] == "lease" and event["grant"] == grant and event["woke"]
            ]
    return reports[0], reports[1], waits


def measure(context: Context) -> None:
    with context.stage.load() as owner:
        alone = window(context.seconds(5), owner.set(OWNER))[0]["wake_ns"]
    for name, unit in context.some(list(BORROWERS.items())):
        values: dict[str, dict[str, float]] = {"p50": {}, "p99": {}, "max": {}}
        used: dict[str, float] = {}
        for arm in ("bare", "gpushare"):
            with context.item(f"next to {name}, {arm}"):
                used[arm] = _arm(context, arm, name, unit, values)
        if len(used) == 2:
            loss = 100 * (1 - used["gpushare"] / used["bare"])
            context.row(f"borrower's loss: {name}", loss, "%", against="bare", limit=LOSS_PERCENT)
        for quantile, found in values.items():
            context.compare(
                f"owner's wake to the end of its first kernel next to {name}, {quantile}",
                "ms",
                found,
                against=f"alone {alone[quantile] / 1e6:.3g} ms",
                limit=IN_FLIGHT_MS + longest_ms(unit) + SPARE_MS if quantile == "p99" else None,
            )


def _arm(context: Context, arm: str, name: str, unit: Unit, values: dict[str, dict[str, float]]) -> float:
    """Returns the part of the device that the borrower used, in percent."""
    owner_report, borrower_report, waits = _next_to(context, arm, unit)
    for quantile, found in values.items():
        found[arm] = owner_report["wake_ns"][quantile] / 1e6
    if waits:
        waits.sort()
        context.row(
            f"owner's wait for its lease next to {name}, by the arbiter's record",
            Spread(waits[len(waits) // 2], waits[0], waits[-1], len(waits)),
            "ms",
        )
    used: float = 100 * borrower_report["work_ns"] / borrower_report["wall_ns"]
    context.row(f"borrower's work meanwhile: {name}, {arm}", used, "% of the device", against="its process survives")
    return used
