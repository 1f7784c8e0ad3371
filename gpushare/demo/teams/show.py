"""The outcome of each step as text and JSON, and the verdict: pure functions of what was measured."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from gpushare.demo.teams.script import Team
from gpushare.demo.teams.story import Outcome
from gpushare.demo.verdict import Claim
from gpushare.units import format_time

RECLAIM_MS = 20.0  # one lease
_LINES = 4  # of tenants, each of which has its own
_COLUMNS = (("TENANT", 18), ("GUARANTEED", 11), ("WANTS", 8), ("DUE", 8), ("GOT", 16))


def begin(devices: int) -> None:
    """Says what is played."""
    print(f"{devices} SIMULATED devices. Processes, quotas and leases are real; only the silicon is a model.")
    print("100% is the whole time of one device.", flush=True)


def outcome(found: Outcome) -> None:
    """Prints one step. Tenants that are alike are one line."""
    print(f"\n{found.step.title}")
    _line([name for name, _ in _COLUMNS])
    for teams in _alike(found):
        got = sorted(found.got[team.name] for team in teams)
        first, step = teams[0], found.step
        _line(
            [
                first.name if len(teams) == 1 else f"{first.name} to {teams[-1].name[-2:]}",
                format_time(first.guarantee),
                format_time(step.wants(first.name)),
                format_time(step.due.get(first.name, 0)),
                format_time(got[0]) if got[0] == got[-1] else f"{format_time(got[0])} to {format_time(got[-1])}",
            ]
        )
    if found.idle >= found.act.error:
        print(f"  idle: {format_time(found.idle)}")
    if found.served_ms:
        print(f"  owners had their devices after {max(found.served_ms):.2f} ms at most")
    print(end="", flush=True)


def _alike(found: Outcome) -> list[list[Team]]:
    teams = found.act.teams
    if len(teams) <= _LINES:
        return [[team] for team in teams]
    return [list(alike) for _, alike in groupby(teams, lambda team: (team.guarantee, found.step.wants(team.name)))]


def _line(cells: Sequence[str]) -> None:
    padded = [
        cell.ljust(width) if column == 0 else cell.rjust(width)
        for column, (cell, (_, width)) in enumerate(zip(cells, _COLUMNS, strict=True))
    ]
    print("  " + "".join(padded).rstrip())


def claims(outcomes: Sequence[Outcome]) -> list[Claim]:
    """One for each step; then that who came back had its device within a lease, and that nobody died."""
    found = [_step(one) for one in outcomes]
    served = [ms for one in outcomes for ms in one.served_ms]
    found.append(
        Claim(
            f"whoever came back to a device of its own had it within {RECLAIM_MS:.0f} ms",
            bool(served) and max(served) <= RECLAIM_MS,
            f"{max(served):.2f} ms at most, of {len(served)}" if served else "nobody came back",
        )
    )
    alive, of = sum(one.alive for one in outcomes), sum(one.processes for one in outcomes)
    dead = of - alive
    found.append(Claim("nobody was killed", dead == 0, str(dead)))
    return found


def _step(one: Outcome) -> Claim:
    off = {name: one.got[name] - one.step.due.get(name, 0) for name in one.got}
    worst = max(off, key=lambda name: abs(off[name]))
    measured = (
        ", ".join(f"{name} {format_time(milli)}" for name, milli in one.got.items() if one.step.due.get(name))
        if len(one.got) <= _LINES
        else f"at most {format_time(abs(off[worst]))} off"
    )
    return Claim(one.step.title, abs(off[worst]) <= one.act.error, measured)


def as_json(outcomes: Sequence[Outcome], found: Sequence[Claim]) -> dict[str, Any]:
    """The whole result for `--json`."""
    return {
        "scenario": "teams",
        "simulated": True,
        "steps": [
            {
                "title": one.step.title,
                "tenants": [
                    {
                        "name": team.name,
                        "guarantee_milli": team.guarantee,
                        "weight": team.weight,
                        "tier": team.tier,
                        "wants_milli": one.step.wants(team.name),
                        "entitlement_milli": one.step.due.get(team.name, 0),
                        "got_milli": one.got[team.name],
                    }
                    for team in one.act.teams
                ],
                "idle_milli": one.idle,
                "served_ms": [round(ms, 3) for ms in one.served_ms],
                "processes": one.processes,
                "alive": one.alive,
            }
            for one in outcomes
        ],
        "verdict": "pass" if all(claim.ok for claim in found) else "fail",
        "claims": [{"claim": claim.claim, "ok": claim.ok, "measured": claim.measured} for claim in found],
    }
