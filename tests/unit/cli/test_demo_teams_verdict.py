"""`gpushare demo --scenario teams`: its script's expected shares agree with the rules, and its verdict can fail."""

import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gpushare.demo import machine, screen
from gpushare.demo.teams import show, story
from gpushare.demo.teams.script import ACTS, QUOTA
from gpushare.demo.teams.story import Outcome
from gpushare.demo.verdict import verdict
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


def test_a_busy_machine_is_said_and_neither_passes_nor_fails(capsys):
    outcomes = good()
    outcomes[5] = replace(outcomes[5], got={"team-a": 2101, "team-b": 5899}, tries=3, others=0.45)
    outcomes[6] = replace(outcomes[6], tries=3, others=0.45)
    outcomes[7] = replace(outcomes[7], tries=2, others=0.1)
    found = show.claims(outcomes)
    assert (failed(outcomes), verdict(found)) == (["B is fully back"], "busy")
    screen.verdict(found)
    text = capsys.readouterr().out
    assert "(other programs had 45% of the processors in the last of 3 tries)" in text
    assert "in try 2, the first on a quiet machine" in text
    assert f"BUSY: {len(found) - 1} of {len(found)} claims hold, 1 cannot be judged" in text
    outcomes[3] = replace(outcomes[3], served_ms=(20.1,), others_at_wake=0.3)
    assert verdict(show.claims(outcomes)) == "busy"
    outcomes[4] = replace(outcomes[4], served_ms=(20.1,))
    assert verdict(show.claims(outcomes)) == "fail", "this one was on a quiet machine"


def test_what_others_had_is_what_neither_stood_idle_nor_was_ours():
    assert machine.others(machine.Usage(10, 3, 1), machine.Usage(18, 5, 4)) == pytest.approx(3 / 8)
    assert machine.others(machine.Usage(10, 3, 1), machine.Usage(10, 3, 1)) == 0
    assert machine.family({2: 1, 3: 2, 4: 3, 5: 1}, [2]) == {2, 3, 4}
    before = machine.usage([os.getpid()])
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert machine.usage([os.getpid()]).own - before.own >= 0.05


class Quiet:
    """A story's view, and a machine that is busy until it has said so often enough."""

    def __init__(self, busy: int) -> None:
        self.busy, self.said = busy, 0

    def usage(self) -> machine.Usage:
        """Each measurement takes a second of two processors: others have one of them, or none."""
        self.busy -= 1
        self.all = getattr(self, "all", 0) + 2
        self.used = getattr(self, "used", 0) + (self.busy > 0)
        return machine.Usage(self.all, self.all - self.used, 0)

    def again(self, others: float) -> None:
        self.said += 1


@pytest.mark.parametrize(("busy", "tries"), [(0, 1), (5, 2), (99, 3)])
def test_a_phase_is_measured_again_whatever_it_gave(monkeypatch, tmp_path, busy, tries):
    view = Quiet(busy)
    node = SimpleNamespace(client=SimpleNamespace(call=lambda *_: {"newest": 0}), simulator_pid=None)
    played = story.Story(node, tmp_path, 0, print, view)
    view.began = view.watched = lambda *_: None
    for name, value in (("_usage", view.usage), ("_set", lambda _: []), ("_served", lambda *_: ())):
        monkeypatch.setattr(played, name, value)
    books = iter(range(0, 10_000, 1000))
    monkeypatch.setattr(played, "_pass", lambda *_: (next(books), {}))
    outcome = played._play(QUOTA, QUOTA.steps[0])
    assert (outcome.tries, view.said, outcome.others > machine.BUSY) == (tries, min(tries, 3) - 1, busy == 99)
    assert outcome.got == {"team-a": 0, "team-b": 0}, "far from what is due, all the same"


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
