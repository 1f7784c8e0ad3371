"""Metrics of memory that moves."""

from typing import get_args

from gpushare.daemon.accounts.moves import For
from gpushare.daemon.http import device_metrics
from gpushare.daemon.http.families import family
from gpushare.daemon.node import NodeContext
from gpushare.daemon.residency.residency import OUTCOMES, WAIT_BUCKETS_S, Residency
from gpushare.policy.residency.costs import Cause, Way
from gpushare.policy.residency.states import By


def costs(context: NodeContext) -> list[str]:
    """What moving memory costs. `context`: has the tenants and devices, of which there are few."""
    moves = context.accounts.moves
    tenants = sorted({tenant.name for tenant in context.state.tenants} | {tenant for tenant, _ in moves.stalled_ns})
    return [
        *family(
            "gpushare_swap_bytes_total",
            "counter",
            "Bytes of device memory copied to host memory and back, by why",
            [
                (
                    {**device_metrics.labels(device.index, device.id), "dir": way, "cause": why},
                    moves.bytes[device.id, way, why],
                )
                for device in context.state.devices
                for way in Way
                for why in Cause
            ],
        ),
        *family(
            "gpushare_swap_stall_seconds_total",
            "counter",
            "Time calls waited for memory that was in host memory: for room that others had, for the copy alone, or for"
            " a person who had it stay away",
            [
                ({"tenant": tenant, "for": what}, moves.stalled_ns[tenant, what] / 1e9)
                for tenant in tenants
                for what in get_args(For)
            ],
        ),
    ]


def suspends(moves: Residency) -> list[str]:
    """Memory of grants that was moved to host memory and back."""
    name = "gpushare_residency_wait_seconds"
    lines = family(
        "gpushare_suspends_total",
        "counter",
        "How often memory of a grant was to move to host memory, by who wanted that and how it ended",
        [
            ({"rung": "demote", "by": by, "outcome": outcome}, moves.suspends[by, outcome])
            for by in By
            for outcome in OUTCOMES
        ],
    )
    lines += [f"# HELP {name} From wanting memory back to having it on the device", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{le="{bound}"}} {moves.waits[bound]}' for bound in WAIT_BUCKETS_S]
    lines.append(f'{name}_bucket{{le="+Inf"}} {moves.waited}')
    return [*lines, f"{name}_count {moves.waited}", f"{name}_sum {moves.waited_ns / 1e9}"]
