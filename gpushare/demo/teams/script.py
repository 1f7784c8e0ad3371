"""The scenario's script, as data: teams, their processes, and what each is entitled to at every step.

All in milli of the node: 1000 is one device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpushare.client.types import TenantPolicy

DEVICES = 8


@dataclass(frozen=True, slots=True)
class Team:
    """A tenant, and the grants of its processes: (device, milli) each; one of 0 milli only borrows."""

    name: str
    guarantee: int
    grants: tuple[tuple[int, int], ...]
    weight: int = 1
    tier: int = 0

    @property
    def policy(self) -> "TenantPolicy":
        """As `PUT /v1/tenants` takes it."""
        return {"time": self.guarantee, "weight": self.weight, "tier": self.tier}


@dataclass(frozen=True, slots=True)
class Step:
    """`work`: numbers of each team's processes that work; each could use a whole device. `due`: what each team is
    entitled to. `lost`: a device that fails."""

    title: str
    work: Mapping[str, range]
    due: Mapping[str, int]
    lost: int | None = None

    def wants(self, team: str) -> int:
        """Returns how much the team could use."""
        return 1000 * len(self.work.get(team, ()))


@dataclass(frozen=True, slots=True)
class Act:
    """Steps with the same teams, on the first `devices` of the node. `error`: tolerance per team, in milli."""

    teams: tuple[Team, ...]
    steps: tuple[Step, ...]
    devices: int = DEVICES
    error: int = 100


def _on(first: int, last: int, milli: int) -> tuple[tuple[int, int], ...]:
    return tuple((device, milli) for device in range(first, last + 1))


_A = Team("team-a", 2000, _on(0, 1, 1000) + _on(2, 7, 0))
_B = Team("team-b", 6000, _on(2, 7, 1000) + _on(0, 1, 0) + _on(2, 5, 0))
_ALL, _SIX = range(8), range(6)

QUOTA = Act(
    (_A, _B),
    (
        Step("both teams work", {"team-a": _ALL, "team-b": _SIX}, {"team-a": 2000, "team-b": 6000}),
        Step("B is on holiday: A borrows its six devices", {"team-a": _ALL}, {"team-a": 8000, "team-b": 0}),
        Step("A needs only five, three stand idle", {"team-a": range(5)}, {"team-a": 5000, "team-b": 0}),
        Step("B runs one process", {"team-a": _ALL, "team-b": range(1)}, {"team-a": 7000, "team-b": 1000}),
        Step("B runs three", {"team-a": _ALL, "team-b": range(3)}, {"team-a": 5000, "team-b": 3000}),
        Step("B is fully back", {"team-a": _ALL, "team-b": _SIX}, {"team-a": 2000, "team-b": 6000}),
        Step("B asks for twelve", {"team-a": _ALL, "team-b": range(12)}, {"team-a": 2000, "team-b": 6000}),
        Step("A is idle: B borrows its two devices", {"team-b": range(12)}, {"team-a": 0, "team-b": 8000}),
        Step(
            "a device fails: both have less, in proportion",
            {"team-a": _ALL, "team-b": range(12)},
            {"team-a": 1750, "team-b": 5250},
            lost=7,
        ),
        Step("it is back", {"team-a": _ALL, "team-b": range(12)}, {"team-a": 2000, "team-b": 6000}),
    ),
)

_EVERYWHERE = _on(0, 7, 0)

WEIGHT = Act(
    (Team("team-a", 2000, ()), Team("team-b", 6000, ()), Team("phd", 0, _EVERYWHERE, 3), Team("bsc", 0, _EVERYWHERE)),
    (Step("A and B are away: by weight, 3 to 1", {"phd": _ALL, "bsc": _ALL}, {"phd": 6000, "bsc": 2000}),),
)

TIER = Act(
    (
        Team("team-a", 2000, _on(0, 1, 1000)),
        Team("team-b", 6000, ()),
        Team("phd", 0, _on(2, 5, 0), tier=1),
        Team("bsc", 0, _EVERYWHERE),
    ),
    (
        Step(
            "PhD students in a higher tier want four",
            {"team-a": range(2), "phd": range(4), "bsc": _ALL},
            {"team-a": 2000, "phd": 4000, "bsc": 2000},
        ),
    ),
)

_NOTEBOOKS = tuple(Team(f"user-{i:02}", 50, ((0, 50),)) for i in range(20))


def _notebooks(count: int) -> Step:
    users = [team.name for team in _NOTEBOOKS]
    due = {user: 1000 // count if i < count else 0 for i, user in enumerate(users)}
    title = f"20 notebooks on one device: {count} work{'s' if count == 1 else ''}"
    return Step(title, {user: range(1) for user in users[:count]}, due)


NOTEBOOKS = Act(_NOTEBOOKS, (_notebooks(1), _notebooks(4), _notebooks(20)), devices=1, error=10)

HALVES = Act(
    (Team("first", 0, ((0, 0),)), Team("second", 0, ((0, 0),))),
    (
        Step(
            "one device, two that borrow",
            {"first": range(1), "second": range(1)},
            {"first": 500, "second": 500},
        ),
    ),
    devices=1,
    error=20,
)

ACTS = (QUOTA, WEIGHT, TIER, NOTEBOOKS, HALVES)
