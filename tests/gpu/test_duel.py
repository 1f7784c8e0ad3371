"""bench/duel: its arithmetic, and two duels whose end is certain. The benchmark judges the evasions."""

import os
from dataclasses import replace

import duels
import judge
import match
import pytest
from match import Evasion

GIB = 1 << 30


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


def test_a_duel_is_played_again_only_where_it_was_not_held(monkeypatch):
    def outcome(*rounds: judge.Round) -> tuple[str, int]:
        left = list(rounds)
        monkeypatch.setattr(match, "play", lambda *_: left.pop(0))
        verdict, played = duels.played(evasion("one"))
        return verdict.state, len(played)

    good, bad = of_time(750, 250), of_time(500, 500)
    assert outcome(good) == ("held", 1)
    assert outcome(bad, good, bad) == ("won", 3)
    assert outcome(bad, good, good) == ("held", 3)

    def broken(*_: object) -> judge.Round:
        raise match.MatchError("it ended")

    monkeypatch.setattr(match, "play", broken)
    assert duels.played(evasion("one"))[0] == judge.Verdict("broken", "-", "it ended")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the daemon of a duel needs root")
def test_duels_are_judged_by_the_simulator():
    """A tenant that evades nothing, and one duel for memory, half a second each. Shares over so short a time are not
    judged here, but both sides work, and the charge equals the use."""
    known = {found.name: found for found in match.known()}
    assert len(known) == len(match.known())
    played = match.play(known["honest"], 0.5)
    assert played.honest_ns[0] > 0
    assert played.evader_ns[0] > 0
    assert sum(played.honest_ns) + sum(played.evader_ns) <= 1.01 * sum(played.wall_ns)
    assert played.metered() == pytest.approx(1, abs=0.5)  # on a busy machine; others test how exact it is
    assert match.play(known["release-map"], 0.5).peak_bytes > 0
