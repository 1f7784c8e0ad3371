"""The command."""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gpubench import machine

from duelbench import evasions, judge, report
from duelbench.evasions import Evasion
from duelbench.match import MatchError, play

RESULTS = machine.ROOT / "bench" / "results"
SECONDS = 3.0
ROUNDS = 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/duel/run",
        description="Plays each evasion as a tenant of 25 % against an honest one of 75 %, on the simulated device. "
        "Without options: all of them, into bench/results. Exit status 1 when one wins.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these evasions, or kinds of them")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="N", help=f"of each duel, {SECONDS:g}")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N",
        help=f"up to so many where the first is lost, {ROUNDS}: the median counts",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the result goes")
    parser.add_argument("--list", action="store_true", help="list the evasions")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def chosen(names: list[str], known: list[Evasion]) -> list[Evasion]:
    """Raises ValueError."""
    words = {one.name for one in known} | {one.kind for one in known}
    if strange := [name for name in names if name not in words]:
        raise ValueError(f"there is no {', '.join(strange)}: see --list")
    return [one for one in known if not names or one.name in names or one.kind in names]


def _outcome(evasion: Evasion, program: Path, seconds: float, rounds: int) -> report.Outcome:
    decide = judge.of_memory if evasion.of_memory else judge.of_time
    played: list[judge.Round] = []
    verdict = judge.Verdict("broken", "-")
    try:
        while len(played) < rounds:
            played.append(play(evasion, program, max(seconds, evasion.seconds)))
            verdict = decide(played, bool(evasion.open))
            if len(played) == 1 and (verdict.good or evasion.of_memory):
                break
    except (MatchError, OSError, AssertionError, subprocess.SubprocessError) as error:
        verdict = judge.Verdict("broken", "-", str(error).replace("\n", " ")[:300])
    return report.Outcome(evasion, played, verdict)


def _run(args: argparse.Namespace, scratch: Path) -> int:
    program = evasions.build(scratch)
    known = evasions.known(program)
    if args.list:
        for one in known:
            print(f"{one.name:24} {one.kind:10} {one.about}")
        return 0
    try:
        wanted = chosen(args.names, known)
    except ValueError as error:
        _say(f"bench/duel/run: {error}")
        return 2
    if os.geteuid() != 0:
        _say("bench/duel/run: run it as root: the daemon needs it")
        return 2
    facts = {
        word: found for word, found in machine.facts(simulated=True).items() if word in ("machine", "date", "commit")
    }
    facts["command"] = shlex.join(["bench/duel/run", *sys.argv[1:]])
    started = time.monotonic()
    outcomes = []
    for evasion in wanted:
        outcomes.append(_outcome(evasion, program, args.seconds, args.rounds))
        print(report.line(outcomes[-1]), flush=True)
    facts["minutes"] = (time.monotonic() - started) / 60
    print(report.summary(outcomes))
    whole = len(wanted) == len(known) and args.seconds >= SECONDS
    out = args.out or (RESULTS if whole else Path(tempfile.mkdtemp(prefix="gsd-results-", dir="/tmp")))
    _say(f"written: {report.write(out, facts, outcomes)}")
    return 0 if all(one.verdict.good for one in outcomes) else 1


def main() -> int:
    args = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="gsd-program-", dir="/tmp") as scratch:
        return _run(args, Path(scratch))
