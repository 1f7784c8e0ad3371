"""Prometheus text exposition of what the daemon knows."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import get_args

from gpushare.api import events as event_types
from gpushare.api import types
from gpushare.arbiter import LATENCY_BUCKETS, GrantStats, Spans
from gpushare.daemon.node import NodeContext
from gpushare.daemon.pulse import BUCKETS, Latency
from gpushare.daemon.view import grant_view, tenant_views
from gpushare.policy.recall import Outcome
from gpushare.policy.reclaim import Rung

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


# Ends of the lines of a histogram's buckets, less the number; most grants have none.
_UP_TO = [f',le="{(1 << power) / 1e6}"}} ' for power in range(LATENCY_BUCKETS - 1)]
_NONE_UP_TO = "".join(f"{end}0\n@" for end in _UP_TO)


def _histogram(name: str, label: str, found: Spans) -> str:
    """Of one grant on one device. `label`: what all its lines have."""
    line = f"{name}_bucket{{{label}"
    if found.count:
        below = itertools.accumulate(found.buckets[:-1])
        buckets = "".join(f"{line}{end}{count}\n" for end, count in zip(_UP_TO, below, strict=True)) + line
    else:
        buckets = line + _NONE_UP_TO.replace("@", line)
    return (
        f'{buckets},le="+Inf"}} {found.count}\n{name}_count{{{label}}} {found.count}\n'
        f"{name}_sum{{{label}}} {found.total_ns / 1e9}"
    )


def _loop_latency(latency: Latency) -> list[str]:
    name = "gpushare_loop_latency_seconds"
    lines = [f"# HELP {name} Turns of the daemon's loop: nothing waits for longer than one", f"# TYPE {name} histogram"]
    for bound, count in zip(BUCKETS, itertools.accumulate(latency.below), strict=True):
        lines.append(f'{name}_bucket{{le="{bound}"}} {count}')
    lines.append(f'{name}_bucket{{le="+Inf"}} {latency.count}')
    return [*lines, f"{name}_count {latency.count}", f"{name}_sum {latency.total}"]


def _wakes(stats: GrantStats) -> Spans:
    return Spans(sum(stats.wake_to_lease), stats.wake_to_lease_ns, stats.wake_to_lease_max_ns, stats.wake_to_lease)


@dataclass(frozen=True, slots=True)
class _Counter:
    """A family with a sample of each grant on each device: a number of its view, over `scale`."""

    name: str
    kind: str
    text: str
    field: str
    scale: float = 1


_COUNTERS = (
    _Counter("gpushare_grant_busy_seconds_total", "counter", "Metered work", "busy_ns", 1e9),
    _Counter("gpushare_grant_leased_seconds_total", "counter", "Time with a lease", "leased_ns", 1e9),
    _Counter(
        "gpushare_grant_borrowed_seconds_total", "counter", "Leased time beyond the guarantee", "borrowed_ns", 1e9
    ),
    _Counter("gpushare_grant_wait_seconds_total", "counter", "Time spent waiting for a lease", "wait_ns", 1e9),
    _Counter("gpushare_grant_memory_bytes", "gauge", "Device memory held", "memory_bytes"),
    _Counter("gpushare_grant_memory_limit_bytes", "gauge", "Most device memory it may hold", "memory_limit_bytes"),
    _Counter("gpushare_grant_memory_borrowed_bytes", "gauge", "Of that, on loan from others", "memory_borrowed_bytes"),
    _Counter("gpushare_grant_marked_processes", "gauge", "Processes that say of themselves what cannot be", "marked"),
    _Counter("gpushare_grant_time_milli", "gauge", "Time share, 1000 is the whole device", "time_milli"),
)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[GrantStats], Spans]], ...] = (
    ("gpushare_lease_wait_seconds", "Waits for a lease that are over", lambda stats: stats.waited),
    ("gpushare_wake_to_lease_seconds", "Those of them that began as a grant woke", _wakes),
    (
        "gpushare_reclaim_seconds",
        "From taking a lease in mid-work until that work was done",
        lambda stats: stats.reclaimed,
    ),
)
_AT_ONCE = 32
"""Grants between which others' calls are answered: a thousand of them take a tenth of a second."""


async def _grants(context: NodeContext) -> list[str]:
    state, arbiter = context.state, context.arbiter
    families = [[f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"] for family in _COUNTERS]
    histograms = [[f"# HELP {name} {text}", f"# TYPE {name} histogram"] for name, text, _ in _HISTOGRAMS]
    for number, live in enumerate(state):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        if live.id not in state:
            continue  # it ended meanwhile
        for device in grant_view(state, live.record, live, arbiter).devices:
            label = f'grant="{live.id}",tenant="{_escape(live.record.tenant)}",device="{device.id}"'
            for lines, family in zip(families, _COUNTERS, strict=True):
                lines.append(f"{family.name}{{{label}}} {getattr(device, family.field) / family.scale!r}")
            if live.handle is None:
                continue
            stats = arbiter.grant_stats(live.handle, device.index)
            for lines, (name, _, spans) in zip(histograms, _HISTOGRAMS, strict=True):
                lines.append(_histogram(name, label, spans(stats)))
    return [line for lines in (*families, *histograms) for line in lines]


async def text(context: NodeContext, devices: list[types.Device]) -> str:
    """The body of /metrics. `devices`: as the node API shows them."""
    state = context.state

    def per_device(value: "str") -> list[Sample]:
        return [({"device": device.id}, getattr(device, value) / 1e9) for device in devices]

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
            "gpushare_helper_failures_total",
            "counter",
            "Helper processes that hung or ended, and were started again",
            [
                ({"helper": "door"}, context.door.restarts),
                ({"helper": "reader"}, context.readers.failures),
                ({"helper": "lookup"}, context.lookups.failures),
            ],
        ),
        *_family(
            "gpushare_evictions",
            "gauge",
            "Grants that are asked for memory that they have on loan",
            [({}, len(context.evictions.asked))],
        ),
        *_family(
            "gpushare_reclaims_total",
            "counter",
            "Loans of memory that were wanted back, by the last rung and how it ended",
            [
                ({"rung": rung.word, "outcome": outcome.replace(" ", "_")}, context.evictions.ended[rung.word, outcome])
                for rung in (Rung.EVICT, Rung.KILL)
                for outcome in get_args(Outcome)
            ],
        ),
        *_family(
            "gpushare_attempts_total",
            "counter",
            "Containers without a share that asked for a GPU in NVIDIA's ways",
            [
                ({"by": way, "path": path}, context.attempts.counts[way, path])
                for way in get_args(event_types.Way)
                for path in get_args(event_types.Path)
            ],
        ),
        *_family(
            "gpushare_attempts_unread_total",
            "counter",
            "Containers of which it is not known whether they did",
            [({}, context.attempts.unread)],
        ),
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
        *await _grants(context),
        *_loop_latency(context.latency),
    ]
    return "\n".join(lines) + "\n"
