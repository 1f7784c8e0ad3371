"""The targets, compared with gpushare's numbers. A latency is judged only while fewer processes than cores burn CPU:
otherwise the machine itself takes milliseconds for a wake, and the latency is only reported."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from arbiterbench import load
from arbiterbench.workloads import MS, Workload

Json = dict[str, Any]
Cases = Mapping[tuple[str, str], list[Json]]
"""(workload, system) -> the numbers of each repetition."""

SHARE_10S, SHARE_1S = 1.0, 3.0  # points
TOTAL, IDLE, KEPT, CPU = 0.98, 0.005, 0.98, 0.02
RATIO = 1.10
NOISE = 0.001  # of a rate, where repetitions happen to agree better
CPU_TENANTS = 8


@dataclass(frozen=True)
class Verdict:
    """`state`: ok, missed, or reported."""

    workload: str
    target: str
    measured: str
    bound: str
    state: str

    def row(self) -> Json:
        return asdict(self)


def one(cases: Cases, workload: str, system: str) -> Json | None:
    found = cases.get((workload, system))
    return found[0] if found else None


def exclusive(cases: Cases) -> float | None:
    """The part of the time for which the device works when one tenant always has more work."""
    alone = one(cases, "alone", "none")
    return alone["busy"] if alone else None


def total(cases: Cases, workload: Workload, numbers: Json) -> float | None:
    """Work done relative to exclusive use; None where no tenant always has more."""
    whole = exclusive(cases)
    hungry = any(tenant.work.hungry for tenant in workload.tenants)
    return numbers["busy"] / whole if hungry and whole else None


def kept(cases: Cases, workload: Workload, numbers: Json) -> float | None:
    """The smallest fraction of its bare throughput that any tenant keeps."""
    bare = one(cases, workload.name, "none")
    if bare is None or not workload.kept:
        return None
    pairs = zip(numbers["tenant_kernels_s"], bare["tenant_kernels_s"], strict=True)
    return min(mine / max(its, 1e-9) for mine, its in pairs)


def alone_p99(cases: Cases, workload: Workload) -> float | None:
    alone = one(cases, workload.alone, "none") if workload.alone else None
    return alone["latency_ms"]["p99"] if alone else None


class _Judge:
    def __init__(self, cases: Cases, workload: Workload, numbers: Json) -> None:
        self.cases, self.workload, self.numbers = cases, workload, numbers
        self.found: list[Verdict] = []

    def add(
        self, target: str, value: float | None, bound: float, show: Callable[[float], str], *, least: bool = False,
        latency: bool = False,
    ) -> None:  # fmt: skip
        if value is None:
            return
        holds = value >= bound if least else value <= bound
        state = "ok" if holds else "missed"
        if latency and load.crowded(self.numbers["load"]):
            state = "reported"
        self.found.append(
            Verdict(self.workload.name, target, show(value), f"{'>=' if least else '<='} {show(bound)}", state)
        )


def _points(value: float) -> str:
    return f"{value:.2f} points"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _ms(value: float) -> str:
    return f"{value:.2f} ms"


def judge(cases: Cases, workload: Workload, numbers: Json) -> list[Verdict]:
    j = _Judge(cases, workload, numbers)
    j.add("share error over 10 s, worst window and tenant", numbers["share_error_10s"], SHARE_10S, _points)
    j.add("share error over 1 s, worst window and tenant", numbers["share_error_1s"], SHARE_1S, _points)
    if len(workload.tenants) > 1:
        # Many devices at once need more CPU than this machine may have; their shares are what counts.
        whole = total(cases, workload, numbers) if workload.devices == 1 else None
        j.add("total against exclusive", whole, TOTAL, _percent, least=True)
        j.add("device idle while a tenant waits", numbers["idle_with_waiters"], IDLE, _percent)
    j.add("throughput kept of the bare device's", kept(cases, workload, numbers), KEPT, _percent, least=True)
    if workload.wake_bound_ns is not None:
        j.add("wake to lease, p99", numbers["wake_to_lease_ms"]["p99"], workload.wake_bound_ns / MS, _ms, latency=True)
    alone = alone_p99(cases, workload)
    if alone is not None and workload.latency == "ratio":
        j.add("request p99", numbers["latency_ms"]["p99"], RATIO * alone, _ms, latency=True)
    elif alone is not None:
        added = (workload.bound_ns + workload.foreign_ns) / MS + 1
        j.add("request p99", numbers["latency_ms"]["p99"], alone + added, _ms, latency=True)
    if len(workload.tenants) == CPU_TENANTS:
        j.add("the arbiter's CPU, of a core", numbers["arbiter_cpu"], CPU, _percent)
    return j.found


def overhead(cases: Cases) -> Verdict | None:
    """Kernels per second alone, under gpushare relative to bare, over the repetitions."""
    rates = {
        system: [numbers["tenant_kernels_s"][0] for numbers in cases.get(("alone", system), [])]
        for system in ("none", "gpushare")
    }
    if not all(rates.values()):
        return None
    loss = 1 - median(rates["gpushare"]) / median(rates["none"])
    noise = max(NOISE, *((max(each) - min(each)) / median(each) for each in rates.values()))
    shown = f"{100 * loss:+.3f} % (medians of {len(rates['none'])})"
    return Verdict(
        "alone", "overhead alone", shown, f"<= {100 * noise:.3f} %, the spread", "ok" if loss <= noise else "missed"
    )
