"""The live table and the verdict, as text."""

import sys
from typing import Any

from gpushare.demo.story import Tick
from gpushare.demo.verdict import Claim, Facts, Tenant
from gpushare.units import format_size, format_time

PHASES = {
    "both": "both tenants want the device",
    "owner_idle": "research goes idle",
    "owner_back": "research comes back",
    "over_limit": "class asks for 6GiB",
}
_COLUMNS = (("TENANT", 10), ("ASKED", 7), ("GOT", 8), ("MEMORY", 9), ("LIMIT", 7), ("LEASES", 8), ("WAITS", 7))
_LINE_SECONDS = 1.0


def step(text: str) -> None:
    """Shows the current step, before the first and after the last measurement."""
    print(f"... {text}", flush=True)


class Screen:
    """Prints the progress of the demo: a redrawn table on a terminal, otherwise a line per second."""

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        self._tenants = tenants
        self._redraw = sys.stdout.isatty()
        self._phase = ""
        self._next_line = 0.0

    def begin(self, facts: dict[str, Any]) -> None:
        """Prints the device and its tenants. `facts`: as in the JSON."""
        device = facts["device"]
        if device["simulated"]:
            print(f"No NVIDIA driver here: the device is SIMULATED ({device['name']}, {device['uuid']}).")
            print("Shares, limits and leases are real decisions of gpushare; only the silicon is a model.")
        else:
            print(f"Device: {device['name']}, {device['uuid']}.")
        print("Two containers (runc) share it:")
        for tenant in self._tenants:
            print(
                f"  {tenant.name}: {format_time(tenant.time_milli)} of its time, {format_size(tenant.memory_bytes)}",
                flush=True,
            )

    def watch(self, tick: Tick) -> None:
        """Shows a measurement, and the title of its phase once."""
        if tick.phase != self._phase:
            self._phase = tick.phase
            print(f"\n{PHASES[tick.phase]}")
            self._print([name for name, _ in _COLUMNS])
            self._next_line = 0.0
        elif self._redraw:
            print(f"\x1b[{len(self._tenants)}A", end="")
        if self._redraw or tick.seconds >= self._next_line:
            self._next_line = tick.seconds + _LINE_SECONDS
            for tenant in self._tenants:
                self._print(_row(tenant, tick))

    def _print(self, cells: list[str]) -> None:
        padded = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, (_, width)) in enumerate(zip(cells, _COLUMNS, strict=True))
        ]
        print("  " + " ".join(padded), flush=True)


def _row(tenant: Tenant, tick: Tick) -> list[str]:
    state = tick.grants[tenant.name]
    return [
        tenant.name,
        format_time(tenant.time_milli),
        format_time(tick.shares[tenant.name]),
        format_size(tick.page.readings[tenant.name].bytes),
        format_size(state["memory_limit_bytes"]),
        str(state["leases"]),
        str(state["waits"]),
    ]


def verdict(claims: list[Claim]) -> None:
    """Prints each claim with its measurement, and PASS or FAIL."""
    print("\nverdict")
    for claim in claims:
        print(f"  {'ok  ' if claim.ok else 'FAIL'}  {claim.claim}: {claim.measured}")
    passed = all(claim.ok for claim in claims)
    print(f"\n{'PASS' if passed else 'FAIL'}: {sum(claim.ok for claim in claims)} of {len(claims)} claims hold")


def as_json(device: dict[str, Any], facts: Facts, claims: list[Claim]) -> dict[str, Any]:
    """The whole result for `--json`."""
    return {
        "device": device,
        "tenants": [
            {
                "name": tenant.name,
                "pid": facts.pids[tenant.name],
                "share_asked_milli": tenant.time_milli,
                "share_got_milli": facts.shares["both"][tenant.name],
                "memory_limit_bytes": tenant.memory_bytes,
                "memory_peak_bytes": facts.peak_bytes[tenant.name],
            }
            for tenant in facts.tenants
        ],
        "phases": [
            {"name": name, "seconds": round(facts.seconds[name], 3), "shares_milli": shares}
            for name, shares in facts.shares.items()
        ],
        "reclaim_ms": facts.reclaim_ms,
        "oom_refused_at_bytes": facts.refused_at_bytes,
        "kills": facts.kills,
        "verdict": "pass" if all(claim.ok for claim in claims) else "fail",
        "claims": [{"claim": claim.claim, "ok": claim.ok, "measured": claim.measured} for claim in claims],
    }
