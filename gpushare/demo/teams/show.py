"""The outcome of each step as text and JSON, and the verdict: pure functions of what was measured."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from gpushare.demo import machine
from gpushare.demo.live import Row, Table
from gpushare.demo.teams.script import Act, Step, Team
from gpushare.demo.teams.story import Outcome
from gpushare.demo.verdict import Claim, claims_as_json
from gpushare.text.units import format_time

RECLAIM_MS = 20.0  # one lease
_LINES = 4  # up to this many tenants have a line each
_COLUMNS = (("TENANT", 18), ("GUARANTEED", 11), ("WANTS", 8), ("DUE", 8), ("GOT", 16))


def begin(devices: int) -> None:
    """Prints what is played."""
    print(f"{devices} SIMULATED devices. Processes, quotas and turns are real; only the silicon is a model.")
    print("100% is the whole time of one device.", flush=True)


class Screen:
    """Prints each step: its title when it begins, each team's usage while it is measured, then its outcome."""

    def __init__(self) -> None:
        self._table = Table(_COLUMNS)

    def began(self, step: Step) -> None:
        """Prints the step's title and the column titles."""
        print(f"\n{step.title}")
        self._table.head()

    def watched(self, act: Act, step: Step, got: Mapping[str, int]) -> None:
        """Shows the latest usage, on a terminal. `got`: milli by team."""
        if self._table.live:
            self._table.rows(_rows(act, step, got))

    def again(self, others: float) -> None:
        """Says that a measurement does not count, and is made again."""
        print(f"  other programs had {others:.0%} of the processors: measured again", flush=True)
        if self._table.live:
            self._table.head()  # what was redrawn so far stays above

    def ended(self, found: Outcome) -> None:
        """Prints what was measured."""
        self._table.rows(_rows(found.act, found.step, found.got))
        if found.idle >= found.act.error:
            print(f"  idle: {format_time(found.idle)}")
        if found.served_ms:
            print(f"  owners had their devices after {max(found.served_ms):.2f} ms at most")
        print(end="", flush=True)


def _rows(act: Act, step: Step, got: Mapping[str, int]) -> list[Row]:
    """Returns the rows. Similar tenants share one; its bar is relative to all devices."""
    found: list[Row] = []
    for teams in _alike(act, step):
        each = sorted(got[team.name] for team in teams)
        first, least, most = teams[0], format_time(each[0]), format_time(each[-1])
        cells = [
            first.name if len(teams) == 1 else f"{first.name} to {teams[-1].name[-2:]}",
            format_time(first.guarantee),
            format_time(step.wants(first.name)),
            format_time(step.due.get(first.name, 0)),
            least if least == most else f"{least} to {most}",
        ]
        found.append((cells, sum(each) / (1000 * act.devices)))
    return found


def _alike(act: Act, step: Step) -> list[list[Team]]:
    if len(act.teams) <= _LINES:
        return [[team] for team in act.teams]
    return [list(alike) for _, alike in groupby(act.teams, lambda team: (team.guarantee, step.wants(team.name)))]


def claims(outcomes: Sequence[Outcome]) -> list[Claim]:
    """Returns one claim per step; then that processes that resumed got a device within one lease, and none died."""
    found = [_step(one) for one in outcomes]
    served = [ms for one in outcomes for ms in one.served_ms]
    found.append(
        Claim(
            f"whoever came back to a device of its own had it within {RECLAIM_MS:.0f} ms",
            bool(served) and max(served) <= RECLAIM_MS,
            f"{max(served):.2f} ms at most, of {len(served)}" if served else "nobody came back",
            _late(outcomes),
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
    ok, why = abs(off[worst]) <= one.act.error, ""
    if one.others > machine.BUSY:
        why = f"other programs had {one.others:.0%} of the processors in the last of {one.tries} tries"
    elif one.tries > 1:
        measured += f", in try {one.tries}, the first on a quiet machine"
    return Claim(one.step.title, ok, measured, "" if ok else why)


def _late(outcomes: Sequence[Outcome]) -> str:
    """Why waits that were too long do not count: all of them were in steps that began on a busy machine."""
    late = [one for one in outcomes if max(one.served_ms, default=0) > RECLAIM_MS]
    if not late or any(one.others_at_wake <= machine.BUSY for one in late):
        return ""
    return f"other programs had up to {max(one.others_at_wake for one in late):.0%} of the processors then"


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
                "tries": one.tries,
                "others_percent": round(100 * one.others),
            }
            for one in outcomes
        ],
        **claims_as_json(found),
    }
