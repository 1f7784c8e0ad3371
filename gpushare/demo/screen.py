"""The live table and the verdict, as text."""

from typing import Any

from gpushare.demo.live import GREEN, RED, YELLOW, Table, painted
from gpushare.demo.story import Tick
from gpushare.demo.verdict import Claim, Facts, Tenant, claims_as_json
from gpushare.demo.verdict import verdict as overall
from gpushare.text.units import format_size, format_time

PHASES = {
    "both": "both tenants want the device",
    "owner_idle": "research goes idle",
    "owner_back": "research comes back",
    "over_limit": "class asks for 6GiB",
}
_COLUMNS = (("TENANT", 10), ("ASKED", 8), ("GOT", 9), ("MEMORY", 10), ("LIMIT", 8), ("LEASES", 9), ("WAITS", 8))
_LINE_SECONDS = 1.0


def step(text: str) -> None:
    """Shows the current step, before the first and after the last measurement."""
    print(f"... {text}", flush=True)


class Screen:
    """Prints the progress of the demo: a redrawn table on a terminal, otherwise a line per second."""

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        self._tenants = tenants
        self._table = Table(_COLUMNS)
        self._phase = ""
        self._next_line = 0.0

    def begin(self, facts: dict[str, Any]) -> None:
        """Prints the device and its tenants. `facts`: as in the JSON."""
        device = facts["device"]
        if device["simulated"]:
            print(f"No NVIDIA driver here: the device is SIMULATED, {device['uuid']}.")
            print("Shares, limits and turns are real decisions of gpushare; only the silicon is a model.")
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
            self._table.head()
            self._next_line = 0.0
        if self._table.live or tick.seconds >= self._next_line:
            self._next_line = tick.seconds + _LINE_SECONDS
            self._table.rows([(_row(tenant, tick), tick.shares[tenant.name] / 1000) for tenant in self._tenants])


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
    """Prints each claim with its measurement, and PASS, FAIL, or BUSY where the machine kept some from being judged."""
    print("\nverdict")
    words = {"pass": painted("PASS", GREEN), "fail": painted("FAIL", RED), "busy": painted("BUSY", YELLOW)}
    for claim in claims:
        word = painted("ok  ", GREEN) if claim.ok else words["busy" if claim.why_not else "fail"]
        print(f"  {word}  {claim.claim}: {claim.measured}{f' ({claim.why_not})' if claim.why_not else ''}")
    held, unjudged = sum(claim.ok for claim in claims), sum(not claim.ok and bool(claim.why_not) for claim in claims)
    more = f", {unjudged} cannot be judged on a machine as busy as this: run it again on a quieter one"
    print(f"\n{words[overall(claims)]}: {held} of {len(claims)} claims hold{more if unjudged else ''}")


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
        **claims_as_json(claims),
    }
