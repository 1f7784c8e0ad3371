"""`gpushare demo --scenario teams`: its script's expected shares agree with the rules, and its verdict can fail."""

from dataclasses import replace

import pytest

from gpushare.demo.teams import show
from gpushare.demo.teams.script import ACTS, QUOTA
from gpushare.demo.teams.story import Outcome
from gpushare.policy.quota.entitlement import TenantState, entitle

STEPS = [(act, step) for act in ACTS for step in act.steps]


@pytest.mark.parametrize(("act", "step"), STEPS, ids=[step.title for _, step in STEPS])
def test_what_is_due(act, step):
    states = [TenantState(t.name, t.guarantee, step.wants(t.name), t.weight, t.tier) for t in act.teams]
    found = entitle(1000 * (act.devices - (step.lost is not None)), states)
    assert {name: milli for name, milli in found.milli.items() if milli} == {
        name: milli for name, milli in step.due.items() if milli
    }
    assert found.degraded == (step.lost is not None)


def good():
    return [
        Outcome(QUOTA, step, {t.name: step.due.get(t.name, 0) for t in QUOTA.teams}, 0, (1.0,), 20, 20)
        for step in QUOTA.steps
    ]


def failed(outcomes):
    return [claim.claim for claim in show.claims(outcomes) if not claim.ok]


def test_the_verdict_fails_for_exactly_what_is_broken():
    outcomes = good()
    assert failed(outcomes) == []
    outcomes[5] = replace(outcomes[5], got={"team-a": 2101, "team-b": 5899})
    assert failed(outcomes) == ["B is fully back"]
    outcomes = good()
    outcomes[3] = replace(outcomes[3], served_ms=(20.1,))
    assert len(failed(outcomes)) == 1 and "within 20 ms" in failed(outcomes)[0]
    outcomes = good()
    outcomes[9] = replace(outcomes[9], alive=19)
    assert failed(outcomes) == ["nobody was killed"]


def test_alike_tenants_are_one_line(capsys):
    act = next(act for act in ACTS if len(act.teams) == 20)
    got = {team.name: 250 if i < 4 else 0 for i, team in enumerate(act.teams)}
    screen = show.Screen()
    screen.began(act.steps[1])
    screen.watched(act, act.steps[1], got)  # prints nothing without a terminal
    screen.ended(Outcome(act, act.steps[1], {**got, "user-01": 247}, 3, (), 20, 20))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[3].split() == ["user-00", "to", "03", "5%", "100%", "25%", "24.7%", "to", "25%"]
    assert lines[4].split() == ["user-04", "to", "19", "5%", "0%", "0%", "0%"]
