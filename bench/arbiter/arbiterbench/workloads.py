"""The workloads, as data."""

from dataclasses import dataclass, replace

US, MS = 1_000, 1_000_000
LEASE_NS = 20 * MS
BOUND_NS = 2 * MS  # D: work in flight while others want the device


@dataclass(frozen=True)
class Work:
    """A pattern of tenant.c."""

    pattern: str
    kernel_ns: int = MS
    kernels: int = 1
    gap_ns: int = 0
    period_ns: int = 0
    jitter_ns: int = 0

    @property
    def hungry(self) -> bool:
        """Always has more for the device."""
        return self.pattern in ("stream", "graph")

    @property
    def unit_ns(self) -> int:
        """The longest piece of submitted work that cannot be interrupted."""
        return self.kernel_ns * (self.kernels if self.pattern == "graph" else 1)

    def arguments(self) -> list[str]:
        values = {
            "pattern": self.pattern,
            "kernel-ns": self.kernel_ns,
            "kernels": self.kernels,
            "gap-ns": self.gap_ns,
            "period-ns": self.period_ns,
            "jitter-ns": self.jitter_ns,
        }
        return [f"--{name}={value}" for name, value in values.items()]


@dataclass(frozen=True)
class Tenant:
    name: str
    share_milli: int
    work: Work
    class_: str = "training"
    device: int = 0


@dataclass(frozen=True)
class Workload:
    """`wakes`: added to D + 1 ms, the bound on wake-to-lease of requests; None where no wake is judged. `alone`: the
    workload that latencies are compared with. `latency`: how they are judged."""

    name: str
    title: str
    tenants: tuple[Tenant, ...]
    seconds: float = 7
    shares: bool = False  # all tenants always have work, so each gets the share it asked for
    kept: bool = False  # every tenant must keep the throughput that the bare device gives it
    wakes: int | None = None
    alone: str = ""
    latency: str = "sum"  # or "ratio": at most 1.1 times alone
    devices: int = 1
    bound_ns: int = BOUND_NS
    systems: tuple[str, ...] = ()  # none: all

    @property
    def of_curve(self) -> bool:
        """A point of what D costs: published, not judged."""
        return self.name.startswith("bound-")

    @property
    def foreign_ns(self) -> int:
        """The longest piece of work among the tenants without requests."""
        return max((tenant.work.unit_ns for tenant in self.tenants if tenant.work.hungry), default=0)

    @property
    def wake_bound_ns(self) -> int | None:
        return None if self.wakes is None else self.bound_ns + self.foreign_ns + self.wakes + MS


STREAM = Work("stream")
REQUEST = Work("requests", MS, kernels=2, period_ns=10 * MS, jitter_ns=2 * MS)
LONG_REQUEST = Work("requests", MS, kernels=20, period_ns=60 * MS, jitter_ns=5 * MS)
GAP_NS = 940 * US  # a sleep ends about 60 us late
NOTEBOOK = Work("requests", MS, kernels=20, period_ns=1000 * MS, jitter_ns=300 * MS)


def _shares(name: str, title: str, *milli: int) -> Workload:
    tenants = tuple(Tenant(f"t{index}", share, STREAM) for index, share in enumerate(milli))
    return Workload(name, title, tenants, seconds=11, shares=True)


def _inference(name: str, kernel_ns: int, **more: object) -> Workload:
    return Workload(
        name,
        f"100 requests a second of 2 x 1 ms next to training with {kernel_ns / MS:g} ms kernels",
        (Tenant("inference", 400, REQUEST, "inference"), Tenant("training", 600, Work("stream", kernel_ns))),
        wakes=0,
        alone="alone-requests",
        **more,  # type: ignore[arg-type]
    )


def _crowd() -> Workload:
    """256 tenants on 8 devices with 32 each, of shares 10 to 51 milli that sum up to 967."""
    milli = [10 + round(41 * place / 31) for place in range(32)]
    tenants = tuple(
        Tenant(f"d{device}t{place}", milli[place], Work("stream", 4 * MS), device=device)
        for device in range(8)
        for place in range(32)
    )
    title = "256 processes on 8 devices, 32 shares of 1.0 to 5.1 % on each, 4 ms kernels"
    return Workload("crowd", title, tenants, seconds=12, shares=True, devices=8, systems=("gpushare",))


_ALONE = (
    Workload("alone", "one tenant, 0.1 ms kernels", (Tenant("only", 1000, Work("stream", 100 * US)),), seconds=3),
    Workload("alone-requests", "100 requests a second of 2 x 1 ms, nothing else",
             (Tenant("inference", 400, REQUEST, "inference"),), systems=("none", "gpushare")),
    Workload("alone-long", "16 requests a second of 20 ms, nothing else",
             (Tenant("interactive", 500, LONG_REQUEST, "interactive"),), systems=("none", "gpushare")),
)  # fmt: skip

_BESIDE = (
    Workload("launch-bound", "two launch-bound tenants at 30 % fill: a 0.3 ms kernel for each millisecond of host work",
             tuple(Tenant(f"eager{i}", 500, Work("gaps", 300 * US, gap_ns=GAP_NS)) for i in range(2)), kept=True),
    Workload("graphs", "200 ms graphs next to 1 ms kernels, 50/50",
             (Tenant("graphs", 500, Work("graph", MS, kernels=200)), Tenant("kernels", 500, STREAM)), 11, shares=True),
    Workload("notebooks", "20 notebooks at 2 % duty (20 ms a second) and a trainer",
             (*(Tenant(f"notebook{i}", 40, NOTEBOOK, "interactive") for i in range(20)),
              Tenant("trainer", 180, STREAM)), 10, wakes=19 * LEASE_NS),
    _inference("inference-0.1", 100 * US),
    _inference("inference-4", 4 * MS),
    _inference("inference-20", 20 * MS),
    Workload("interactive", "16 requests a second of 20 ms, class interactive, next to 0.1 ms kernels",
             (Tenant("interactive", 500, LONG_REQUEST, "interactive"),
              Tenant("training", 500, Work("stream", 100 * US))), 10, wakes=0, alone="alone-long", latency="ratio"),
)  # fmt: skip

BOUNDS_NS = (100 * US, 250 * US, 500 * US, MS, 2 * MS, 4 * MS)

WORKLOADS = (
    *_ALONE,
    _shares("25-75", "25/75, 1 ms kernels", 250, 750),
    _shares("10-90", "10/90, 1 ms kernels", 100, 900),
    _shares("thirds", "34/33/33, 1 ms kernels", 340, 330, 330),
    _shares("eight", "eight equal, 1 ms kernels", *[125] * 8),
    *_BESIDE,
    _crowd(),
    *(
        replace(_inference(f"bound-{bound / MS:g}", 100 * US, bound_ns=bound, systems=("gpushare",)),
                title=f"D = {bound / MS:g} ms: 100 requests a second of 2 x 1 ms next to 0.1 ms kernels")
        for bound in BOUNDS_NS
    ),
)  # fmt: skip
