"""Prometheus text exposition of what the daemon knows."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from msgspec.structs import fields

from gpushare.api import events as event_types
from gpushare.api import findings as finding_types
from gpushare.api import types
from gpushare.api.tenants import Tenant
from gpushare.binding.arbiter import LATENCY_BUCKETS, GrantStats, Spans
from gpushare.daemon.grants.view import grant_view, tenant_views
from gpushare.daemon.host.pulse import BUCKETS, Latency
from gpushare.daemon.http import device_metrics, moves, remote_metrics
from gpushare.daemon.http.families import escape, family
from gpushare.daemon.node import NodeContext
from gpushare.inject.pod import Pod
from gpushare.ledger.usage import Sums
from gpushare.policy.loans.recall import Outcome
from gpushare.policy.loans.reclaim import Rung

# Ends of a histogram's bucket lines, without the count; most histograms are empty.
_UP_TO = [f',le="{(1 << power) / 1e6}"}} ' for power in range(LATENCY_BUCKETS - 1)]
_NONE_UP_TO = "".join(f"{end}0\n@" for end in _UP_TO)


def _histogram(name: str, label: str, found: Spans) -> str:
    """A histogram of one grant on one device. `label`: the labels of all its lines."""
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


def _pod(pod: Pod) -> str:
    return "".join(f',{name}="{escape(getattr(pod, name))}"' for name in _POD if getattr(pod, name))


def _wakes(stats: GrantStats) -> Spans:
    return Spans(sum(stats.wake_to_lease), stats.wake_to_lease_ns, stats.wake_to_lease_max_ns, stats.wake_to_lease)


@dataclass(frozen=True, slots=True)
class _Counter:
    """A family with one sample per grant and device: a field of the device's view, divided by `scale`."""

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
    _Counter("gpushare_memory_hosted_bytes", "gauge", "Of what is held, in host memory", "memory_hosted_bytes"),
    _Counter("gpushare_grant_marked_processes", "gauge", "Processes that say of themselves what cannot be", "marked"),
    _Counter("gpushare_memory_refusals_total", "counter", "Calls that were refused device memory", "memory_refusals"),
    _Counter("gpushare_grant_time_milli", "gauge", "Time share, 1000 is the whole device", "time_milli"),
    _Counter("gpushare_grant_lent_milli", "gauge", "Of its time, lent to others in the last second", "lent_milli"),
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
_POD = tuple(field.name for field in fields(Pod))
_STATES = {"suspended": "asleep"}
"""By phase, where it has another name."""
_AT_ONCE = 32
"""Grants after which others' calls are answered: a thousand grants take a tenth of a second."""


async def _grants(context: NodeContext) -> list[str]:
    state, arbiter = context.state, context.arbiter
    families = [[f"# HELP {one.name} {one.text}", f"# TYPE {one.name} {one.kind}"] for one in _COUNTERS]
    states = ["# HELP gpushare_grant_state 1 for the state that the grant is in", "# TYPE gpushare_grant_state gauge"]
    histograms = [[f"# HELP {name} {text}", f"# TYPE {name} histogram"] for name, text, _ in _HISTOGRAMS]
    shown = set()
    for number, live in enumerate(state):
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
        if live.id not in state:
            continue  # it ended meanwhile
        shown.add(live.id)
        of_grant = f'grant="{live.id}",tenant="{escape(live.record.tenant)}"{_pod(live.record.pod)}'
        shown_now = grant_view(state, live.record, live, arbiter)
        states.append(f'gpushare_grant_state{{{of_grant},state="{_STATES.get(shown_now.phase, shown_now.phase)}"}} 1')
        for device in shown_now.devices:
            label = f'{of_grant},gpu="{device.index}",gpu_uuid="{device.id}"'
            for lines, counter in zip(families, _COUNTERS, strict=True):
                lines.append(f"{counter.name}{{{label}}} {getattr(device, counter.field) / counter.scale!r}")
            if live.handle is None:
                continue
            stats = arbiter.grant_stats(live.handle, device.index)
            for lines, (name, _, spans) in zip(histograms, _HISTOGRAMS, strict=True):
                lines.append(_histogram(name, label, spans(stats)))
    numbers = {device.id: device.index for device in state.devices}
    for last in context.accounts.last.rows(time.monotonic()):
        if last.grant in shown:
            continue
        of_grant = f'grant="{last.grant}",tenant="{escape(last.tenant)}"{_pod(last.pod)}'
        label = f'{of_grant},gpu="{numbers[last.device]}",gpu_uuid="{last.device}"'
        for lines, counter in zip(families, _COUNTERS, strict=True):
            if counter.kind == "counter":
                of = last if counter.field == "memory_refusals" else last.stats
                lines.append(f"{counter.name}{{{label}}} {getattr(of, counter.field) / counter.scale!r}")
    return [line for lines in (*families, states, *histograms) for line in lines]


_TENANT_MILLI: tuple[tuple[str, str, Callable[[Tenant], int]], ...] = (
    ("guarantee", "Guaranteed time, 1000 is one device", lambda tenant: tenant.guarantee.time),
    ("have", "What is left of the guaranteed time on the devices that work", lambda tenant: tenant.have.time),
    ("limit", "Most time a tenant's grants may ask for", lambda tenant: tenant.limit_time),
    ("allocated", "Time that its grants were given", lambda tenant: tenant.allocated.time),
    ("entitlement", "Time that it should get now", lambda tenant: tenant.now.entitlement_milli),
    ("demand", "Time that it wants now", lambda tenant: tenant.now.demand_milli),
    ("used", "Time that it had in the last second", lambda tenant: tenant.now.used_milli),
    ("borrowed", "Of that, beyond its guarantee", lambda tenant: tenant.now.borrowed_milli),
    ("lent", "Of its guarantee, used by others in the last second", lambda tenant: tenant.now.lent_milli),
)
_BYTE_SECONDS = (1 << 20) / 1e3
_TENANT_SUMS: tuple[tuple[str, str, str, dict[str, Callable[[Sums], float]]], ...] = (
    (
        "gpu_seconds_total",
        "Time with a lease, over all devices, by whose time it was",
        "class",
        {
            "guaranteed": lambda sums: (sums.used_ns - sums.borrowed_ns - sums.extra_ns) / 1e9,
            "extra": lambda sums: sums.extra_ns / 1e9,
            "borrowed": lambda sums: (sums.borrowed_ns - sums.scavenged_ns) / 1e9,
            "scavenged": lambda sums: sums.scavenged_ns / 1e9,
        },
    ),
    ("busy_seconds_total", "Metered work, over all devices", "", {"": lambda sums: sums.busy_ns / 1e9}),
    ("lent_seconds_total", "Guaranteed time that others used", "", {"": lambda sums: sums.lent_ns / 1e9}),
    (
        "wait_seconds_total",
        "Time its grants waited for a lease: while they were owed guaranteed time, had used what their limit allows, or"
        " had had their guarantee",
        "reason",
        {
            "owed": lambda sums: sums.waited_owed_ns / 1e9,
            "limit": lambda sums: sums.waited_limit_ns / 1e9,
            "surplus": lambda sums: max(0, sums.waited_ns - sums.waited_owed_ns - sums.waited_limit_ns) / 1e9,
        },
    ),
    (
        "memory_byte_seconds_total",
        "Memory held, times how long: on devices, and of device memory in host memory",
        "tier",
        {
            "device": lambda sums: sums.memory_mib_ms * _BYTE_SECONDS,
            "host": lambda sums: sums.hosted_mib_ms * _BYTE_SECONDS,
        },
    ),
)


def _tenants(context: NodeContext) -> list[str]:
    lines, found, sums = [], tenant_views(context.state), context.accounts.sums
    for name, text, value in _TENANT_MILLI:
        of_each = (({"tenant": tenant.name}, value(tenant)) for tenant in found)
        lines += family(f"gpushare_tenant_{name}_milli", "gauge", text, of_each)
    kept = sorted({tenant.name for tenant in found} | sums.keys())
    for name, text, label, kinds in _TENANT_SUMS:
        samples = [
            ({"tenant": tenant, **({label: kind} if label else {})}, value(sums.get(tenant) or Sums()))
            for tenant in kept
            for kind, value in kinds.items()
        ]
        lines += family(f"gpushare_tenant_{name}", "counter", text, samples)
    owed = (({"tenant": name}, (sums.get(name) or Sums()).waited_owed_ns / 1e9) for name in kept)
    text = "Time its grants waited although they were owed guaranteed time: must stay near 0"
    return lines + family("gpushare_guarantee_deficit_seconds_total", "counter", text, owed)


async def text(context: NodeContext, devices: list[types.Device]) -> str:
    """The body of /metrics. `devices`: as the node API shows them."""
    state = context.state

    ledger, pool = state.ledger.health, context.pool.facts()
    lines = [
        *device_metrics.families(devices, context.accounts.busy_ns),
        *family("gpushare_ledger_healthy", "gauge", "1 when it can be written", [({}, int(not ledger.reason))]),
        *family("gpushare_ledger_waiting_rows", "gauge", "Rows that are kept until it can", [({}, ledger.waiting)]),
        *family("gpushare_ledger_lost_rows_total", "counter", "Rows that were given up", [({}, ledger.lost)]),
        *family("gpushare_ledger_set_aside_rows", "gauge", "Rows that could not be used", [({}, ledger.set_aside)]),
        *family(
            "gpushare_helper_failures_total",
            "counter",
            "Helper processes that hung or ended, and were started again",
            [
                ({"helper": "door"}, context.door.restarts),
                ({"helper": "reader"}, context.readers.failures),
                ({"helper": "lookup"}, context.lookups.failures),
                ({"helper": "hostpool"}, sum(helper.failures for helper in context.pool.helpers)),
            ],
        ),
        *family(
            "gpushare_host_pool_bytes",
            "gauge",
            "The node's memory that device memory can move to",
            [({"state": state}, getattr(pool, state)) for state in ("free", "reserved", "used")],
        ),
        *family(
            "gpushare_evictions",
            "gauge",
            "Grants that are asked for memory that they have on loan",
            [({}, len(context.evictions.asked))],
        ),
        *family(
            "gpushare_reclaims_total",
            "counter",
            "Loans of memory that were wanted back, by the last rung and how it ended",
            [
                ({"rung": rung.word, "outcome": outcome.replace(" ", "_")}, context.evictions.ended[rung.word, outcome])
                for rung in (Rung.DEMOTE, Rung.EVICT, Rung.KILL)
                for outcome in get_args(Outcome)
            ],
        ),
        *moves.suspends(context.residency),
        *moves.costs(context),
        *remote_metrics.families(context),
        *family(
            "gpushare_attempts_total",
            "counter",
            "Containers without a share that asked for a GPU in NVIDIA's ways",
            [
                ({"by": way, "path": path}, context.attempts.counts[way, path])
                for way in get_args(event_types.Way)
                for path in get_args(event_types.Path)
            ],
        ),
        *family(
            "gpushare_attempts_unread_total",
            "counter",
            "Containers of which it is not known whether they did",
            [({}, context.attempts.unread)],
        ),
        *family(
            "gpushare_findings_total",
            "counter",
            "Processes past their share, or without one, that the driver listed",
            [({"kind": kind}, context.findings.counts[kind]) for kind in get_args(finding_types.FindingKind)],
        ),
        *family(
            "gpushare_findings",
            "gauge",
            "Those of them that last",
            [({"kind": kind}, context.findings.count(kind)) for kind in get_args(finding_types.FindingKind)],
        ),
        *_tenants(context),
        *await _grants(context),
        *_loop_latency(context.latency),
    ]
    return "\n".join(lines) + "\n"
