"""bench/duel: its arithmetic, and two duels whose end is certain. The benchmark judges the evasions."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from duelbench import evasions, judge, main, match, report
from duelbench.evasions import Evasion
from gpubench.machine import ROOT

RUN = ROOT / "bench" / "duel" / "run"
GIB = 1 << 30
root = pytest.mark.skipif(os.geteuid() != 0, reason="bench/duel/run needs root")


def evasion(name: str, **changes: object) -> Evasion:
    counts = {"devices": 1, "grants": 1, "seconds": 0.0}
    given = {"kind": "uneven", "about": "a | b", "open": "", "options": "", "found": False, **counts, **changes}
    return Evasion(name=name, **given)


def of_time(honest: int, evader: int, *more: tuple[int, int], metered: int = 0) -> judge.Round:
    pairs = [(honest, evader), *more]
    return judge.Round(
        seconds=1, honest_ns=[a for a, _ in pairs], evader_ns=[b for _, b in pairs], wall_ns=[1000] * len(pairs),
        metered_ns=metered,
    )  # fmt: skip


def test_shares_count_what_both_used_and_not_idle_time():
    assert of_time(300, 100).share() == 0.75
    assert of_time(0, 0).share() == 0
    assert of_time(750, 250, (500, 500)).share() == 0.5  # the worse of two devices
    assert of_time(500, 500, metered=100).metered() == 0.2
    assert judge.of_time([of_time(500, 500, metered=100)], False).more.endswith("charged 20 % of it")
    assert judge.of_time([of_time(999, 1, metered=7_000_000)], False).more.endswith("charged 7 ms")
    assert judge.of_time([of_time(730, 270)], False).state == "held"
    assert judge.of_time([of_time(729, 271)], False).state == "won"
    assert judge.of_time([of_time(729, 271)], True).state == "open"


def test_an_evasion_that_wants_little_is_no_test():
    assert judge.of_time([of_time(900, 100)], False).state == "weak"
    small = judge.Round(seconds=1, limit_bytes=GIB, peak_bytes=GIB // 4)
    assert judge.of_memory([small], False).state == "weak"


def test_one_that_was_found_and_stopped_was_a_test():
    stopped = replace(of_time(999, 1), found=["evader"])
    assert judge.of_time([stopped], False).state == "held"
    assert judge.of_time([stopped], False).more.endswith("found: evader")
    assert judge.of_time([stopped, of_time(999, 1)], False).state == "weak", "in each round"


def test_what_it_has_before_it_is_found_is_bounded():
    soon = replace(of_time(750, 250), found=["overuse"], before_ns=2_100_000_000, before_seconds=8.44)
    assert judge.of_time([soon], False).state == "held"
    assert judge.of_time([soon], False).more.endswith("found: overuse, after 8.4 s and 2.10 s beyond its share")
    assert judge.of_time([replace(soon, before_ns=judge.BEFORE_NS + 1)], False).state == "won"


def test_the_median_of_the_rounds_counts_for_time_and_the_worst_for_memory():
    good, bad = of_time(750, 250), of_time(500, 500)
    assert judge.of_time([bad, good, good], False).state == "held"
    assert judge.of_time([bad, bad, good], False).state == "won"
    full = judge.Round(seconds=1, limit_bytes=GIB, peak_bytes=GIB)
    over = judge.Round(seconds=1, limit_bytes=GIB, peak_bytes=GIB + 1)
    left = judge.Round(seconds=1, limit_bytes=GIB, peak_bytes=GIB, left_bytes=1)
    assert judge.of_memory([full], False) == judge.Verdict("held", "0 bytes over", "most 100 % of the limit")
    assert judge.of_memory([full, over], False).measured == "1 bytes over"
    assert judge.of_memory([left], False).state == "won"


def test_evasions_are_chosen_by_name_and_kind():
    known = [evasion("one"), evasion("two", kind="memory"), evasion("three")]
    assert [found.name for found in main.chosen([], known)] == ["one", "two", "three"]
    assert [found.name for found in main.chosen(["uneven"], known)] == ["one", "three"]
    with pytest.raises(ValueError, match="there is no four"):
        main.chosen(["four"], known)


def test_a_duel_is_played_again_only_where_it_was_not_held(monkeypatch):
    def outcome(*rounds: judge.Round) -> report.Outcome:
        left = list(rounds)
        monkeypatch.setattr(main, "play", lambda *_: left.pop(0))
        return main._outcome(evasion("one"), RUN, 1, 3)

    good, bad = of_time(750, 250), of_time(500, 500)
    assert len(outcome(good).rounds) == 1
    assert outcome(bad, good, bad).verdict.state == "won"
    assert outcome(bad, good, good).verdict.state == "held"
    assert len(outcome(bad, good, good).rounds) == 3

    def broken(*_: object) -> judge.Round:
        raise match.MatchError("it ended")

    monkeypatch.setattr(main, "play", broken)
    assert main._outcome(evasion("one"), RUN, 1, 3).verdict == judge.Verdict("broken", "-", "it ended")


def test_the_result_says_what_is_open(tmp_path):
    outcomes = [
        report.Outcome(evasion("one"), [of_time(750, 250, metered=250)], judge.of_time([of_time(750, 250)], False)),
        report.Outcome(evasion("two", open="by design"), [], judge.Verdict("open", "50.0 %")),
    ]
    facts = {"machine": "m", "date": "2026-01-02", "commit": "c", "command": "x", "minutes": 1.0}
    table = report.write(tmp_path, facts, outcomes).read_text()
    assert "2 duels: 1 held, 1 open" in table
    assert "- two: by design" in table
    stored = json.loads((tmp_path / "duel-simulated-2026-01-02.json").read_text())
    assert [duel["state"] for duel in stored["duels"]] == ["held", "open"]
    assert stored["duels"][0]["rounds"][0]["honest_ns"] == [750]


@pytest.mark.slow
@root
def test_duels_are_judged_by_the_simulator(tmp_path):
    """A tenant that evades nothing, and one duel for memory, half a second each. Shares over so short a time are not
    judged here, but both sides work, and the charge equals the use."""
    program = evasions.build(tmp_path / "program")
    known = {found.name: found for found in evasions.known(program)}
    assert len({found.name for found in known.values()}) == len(evasions.known(program))
    played = match.play(known["honest"], program, 0.5)
    assert played.honest_ns[0] > 0
    assert played.evader_ns[0] > 0
    assert sum(played.honest_ns) + sum(played.evader_ns) <= 1.01 * sum(played.wall_ns)
    assert played.metered() == pytest.approx(1, abs=0.2)

    words = [sys.executable, RUN, "release-map", "--seconds", "0.5", "--rounds", "1", "--out", tmp_path / "out"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110, check=False)
    (file,) = (tmp_path / "out").glob("*.json")
    (row,) = json.loads(file.read_text())["duels"]
    assert row["rounds"][0]["peak_bytes"] > 0, done.stderr
    assert done.returncode == (0 if row["state"] == "held" else 1)
    assert row["name"] in done.stdout
