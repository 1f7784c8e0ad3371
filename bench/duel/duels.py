"""Each evasion as a tenant of 25 % against an honest one of 75 %, which always has 8 ms of work queued; those of memory
alone. All numbers are the simulator's books."""

import os
import subprocess
from collections.abc import Sequence

import judge
import match
import pytest

SECONDS = float(os.environ.get("GPUSHARE_BENCH_DUEL_SECONDS", "3"))
ROUNDS = 3
"""Played where the first is not held; for time the median counts."""
SHARE = f">= {100 * judge.SHARE:.0f} % of what both used"
LIMIT = "<= 0 bytes over the limit"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    evasions = match.known()
    metafunc.parametrize("evasion", evasions, ids=[f"{one.kind}-{one.name}" for one in evasions])


def played(evasion: match.Evasion, rounds: int = ROUNDS) -> tuple[judge.Verdict, Sequence[judge.Round]]:
    """The verdict, and the rounds that it is of."""
    decide = judge.of_memory if evasion.of_memory else judge.of_time
    found: list[judge.Round] = []
    verdict = judge.Verdict("broken", "-")
    while len(found) < rounds:
        try:
            found.append(match.play(evasion, max(SECONDS, evasion.seconds)))
        except (match.MatchError, OSError, AssertionError, subprocess.SubprocessError) as error:
            return judge.Verdict("broken", "-", str(error).replace("\n", " ")[:300]), found
        verdict = decide(found, bool(evasion.open))
        if len(found) == 1 and (verdict.good or evasion.of_memory):
            break
    return verdict, found


def note(verdict: judge.Verdict, rounds: Sequence[judge.Round]) -> str:
    """What must be known to believe the number."""
    waited = max((one.waited for one in rounds), default=0.0)
    return "; ".join(filter(None, [
        verdict.state,
        verdict.more,
        f"{len(rounds)} rounds" if len(rounds) > 1 else "",
        next((one.crowded for one in rounds if one.crowded), ""),
        f"the honest one waited {100 * waited:.0f} % for a processor" if waited >= judge.WAITED else "",
    ]))  # fmt: skip


@pytest.mark.timeout(300)
def test_duel(report, evasion: match.Evasion) -> None:
    verdict, rounds = played(evasion)
    measured = f"{verdict.measured} ({note(verdict, rounds)})"
    baseline = evasion.open or ("its limit" if evasion.of_memory else "an honest tenant of 75 %")
    target = LIMIT if evasion.of_memory else SHARE
    report(f"{evasion.name}: {evasion.about}", measured, baseline, target, verdict.good)
    assert verdict.state not in ("won", "broken"), measured
