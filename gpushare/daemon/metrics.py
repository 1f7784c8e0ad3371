"""Prometheus text exposition of what the daemon knows."""

from collections.abc import Callable, Iterable

from gpushare.api import types
from gpushare.arbiter import GrantStats, Spans
from gpushare.daemon.node import NodeContext
from gpushare.daemon.placement import standing
from gpushare.daemon.view import grant_view, tenant_views

Sample = tuple[dict[str, str], float]


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{_escape(label)}"' for key, label in labels.items())
        number = repr(value) if isinstance(value, float) else str(value)
        lines.append(f"{name}{{{inside}}} {number}" if inside else f"{name} {number}")
    return lines


def _histogram(name: str, text: str, context: NodeContext, spans: Callable[[GrantStats], Spans]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
    for live in context.state:
        if live.handle is None:
            continue
        for place in live.record.places:
            found = spans(context.arbiter.grant_stats(live.handle, place.index))
            label = f'grant="{live.id}",tenant="{_escape(live.record.tenant)}",device="{place.device}"'
            below = 0
            for power, count in enumerate(found.buckets[:-1]):
                below += count
                lines.append(f'{name}_bucket{{{label},le="{(1 << power) / 1e6}"}} {below}')
            lines.append(f'{name}_bucket{{{label},le="+Inf"}} {found.count}')
            lines.append(f"{name}_count{{{label}}} {found.count}")
            lines.append(f"{name}_sum{{{label}}} {found.total_ns / 1e9}")
    return lines


def _wakes(stats: GrantStats) -> Spans:
    return Spans(sum(stats.wake_to_lease), stats.wake_to_lease_ns, stats.wake_to_lease_max_ns, stats.wake_to_lease)


def text(context: NodeContext, devices: list[types.Device]) -> str:
    """The body of /metrics. `devices`: as the node API shows them."""
    state = context.state

    def per_device(value: "str") -> list[Sample]:
        return [({"device": device.id}, getattr(device, value) / 1e9) for device in devices]

    stands = standing(state)
    grants = [
        (live, device)
        for live in state
        for device in grant_view(state, live.record, live, context.arbiter, stands).devices
    ]

    def per_grant(value: str, scale: float = 1) -> list[Sample]:
        return [
            ({"grant": live.id, "tenant": live.record.tenant, "device": device.id}, getattr(device, value) / scale)
            for live, device in grants
        ]

    tenants, ledger = tenant_views(state), state.ledger.health
    lines = [
        *_family(
            "gpushare_device_leased_seconds_total",
            "counter",
            "Time leased to grants since the daemon started",
            per_device("leased_ns"),
        ),
        *_family(
            "gpushare_device_idle_seconds_total", "counter", "Time in which nobody had a lease", per_device("idle_ns")
        ),
        *_family("gpushare_device_switch_seconds_total", "counter", "Time between leases", per_device("switch_ns")),
        *_family(
            "gpushare_device_idle_with_waiters_seconds_total",
            "counter",
            "Idle time while a grant waited: must stay near 0",
            per_device("idle_with_waiters_ns"),
        ),
        *_family(
            "gpushare_device_memory_used_bytes",
            "gauge",
            "Device memory in use by anybody",
            [({"device": device.id}, device.memory_used_bytes) for device in devices],
        ),
        *_family(
            "gpushare_device_healthy",
            "gauge",
            "1 when the device answers",
            [({"device": device.id}, int(device.health == "healthy")) for device in devices],
        ),
        *_family("gpushare_ledger_healthy", "gauge", "1 when it can be written", [({}, int(not ledger.reason))]),
        *_family("gpushare_ledger_waiting_rows", "gauge", "Rows that are kept until it can", [({}, ledger.waiting)]),
        *_family("gpushare_ledger_lost_rows_total", "counter", "Rows that were given up", [({}, ledger.lost)]),
        *_family("gpushare_ledger_set_aside_rows", "gauge", "Rows that could not be used", [({}, ledger.set_aside)]),
        *_family(
            "gpushare_tenant_guarantee_milli",
            "gauge",
            "Guaranteed time, 1000 is one device",
            [({"tenant": tenant.name}, tenant.guarantee.time) for tenant in tenants],
        ),
        *_family(
            "gpushare_tenant_have_milli",
            "gauge",
            "What is left of the guaranteed time on the devices that work",
            [({"tenant": tenant.name}, tenant.have.time) for tenant in tenants],
        ),
        *_family(
            "gpushare_tenant_limit_milli",
            "gauge",
            "Most time a tenant's grants may ask for",
            [({"tenant": tenant.name}, tenant.limit_time) for tenant in tenants],
        ),
        *_family("gpushare_grant_busy_seconds_total", "counter", "Metered work", per_grant("busy_ns", 1e9)),
        *_family("gpushare_grant_leased_seconds_total", "counter", "Time with a lease", per_grant("leased_ns", 1e9)),
        *_family(
            "gpushare_grant_borrowed_seconds_total",
            "counter",
            "Leased time beyond the guarantee",
            per_grant("borrowed_ns", 1e9),
        ),
        *_family(
            "gpushare_grant_wait_seconds_total", "counter", "Time spent waiting for a lease", per_grant("wait_ns", 1e9)
        ),
        *_family("gpushare_grant_memory_bytes", "gauge", "Device memory held", per_grant("memory_bytes")),
        *_family(
            "gpushare_grant_memory_limit_bytes",
            "gauge",
            "Most device memory it may hold",
            per_grant("memory_limit_bytes"),
        ),
        *_family("gpushare_grant_time_milli", "gauge", "Time share, 1000 is the whole device", per_grant("time_milli")),
        *_histogram("gpushare_lease_wait_seconds", "Waits for a lease that are over", context, lambda s: s.waited),
        *_histogram("gpushare_wake_to_lease_seconds", "Those of them that began as a grant woke", context, _wakes),
        *_histogram(
            "gpushare_reclaim_seconds",
            "From taking a lease in mid-work until that work was done",
            context,
            lambda s: s.reclaimed,
        ),
    ]
    return "\n".join(lines) + "\n"
