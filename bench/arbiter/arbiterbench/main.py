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

from arbiterbench import build, measure, report
from arbiterbench.systems import SYSTEMS, System
from arbiterbench.workloads import WORKLOADS, Workload

RESULTS = machine.ROOT / "bench" / "results"
REPETITIONS = 3  # of what only noise tells from zero
QUICK_SECONDS, QUICK_WARM = 1.2, 0.2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/arbiter/run",
        description="Measures gpushare against other ways to share a GPU, on the simulated device. Without options: "
        "everything, into bench/results.",
    )
    parser.add_argument(
        "--workload", default="", metavar="NAME,...", help="only these, and those they are compared with"
    )
    parser.add_argument("--system", default="", metavar="NAME,...", help="only these")
    parser.add_argument("--seconds", type=float, metavar="N", help="seconds per case")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_SECONDS:g} s a case: tries the programs, proves nothing"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the result goes")
    parser.add_argument("--list", action="store_true", help="list workloads and systems")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _list() -> None:
    for workload in WORKLOADS:
        print(f"{workload.name:16} {workload.seconds:4g} s  {workload.title}")
    for system in SYSTEMS:
        print(f"{system.name:16}         {system.title}: {system.note}")


def _chosen(text: str, known: list[str]) -> list[str]:
    """Raises ValueError."""
    names = [name for name in text.split(",") if name]
    if strange := [name for name in names if name not in known]:
        raise ValueError(f"there is no {', '.join(strange)}: see --list")
    return names or known


def plan(workloads: list[str], systems: list[str]) -> list[tuple[Workload, System]]:
    """The cases in order, with those that others are compared with."""
    by_name = {system.name: system for system in SYSTEMS}
    wanted = {(name, system) for name in workloads for system in systems}
    chosen = [workload for workload in WORKLOADS if workload.name in workloads]
    wanted |= {(workload.alone, "none") for workload in chosen if workload.alone}
    wanted |= {(workload.name, "none") for workload in chosen if workload.kept}
    wanted.add(("alone", "none"))
    found = []
    for workload in WORKLOADS:
        for name, system in by_name.items():
            if (workload.name, name) in wanted and name in (workload.systems or by_name):
                found.append((workload, system))
    return found


def _rounds(cases: list[tuple[Workload, System]], repetitions: int) -> list[tuple[Workload, System]]:
    """`alone` several times, in turns."""
    alone = [case for case in cases if case[0].name == "alone"]
    return [*alone, *(alone[:1] + alone[-1:] if len(alone) > 1 else []) * (repetitions - 1),
            *(case for case in cases if case[0].name != "alone")]  # fmt: skip


def _measure(
    args: argparse.Namespace, cases: list[tuple[Workload, System]], programs: Path, out: Path, name: str
) -> int:
    facts = machine.facts(simulated=True)
    facts = {word: facts[word] for word in ("machine", "date", "commit")}
    facts["command"] = shlex.join(["bench/arbiter/run", *sys.argv[1:]])
    found: dict[tuple[str, str], list[report.Json]] = {}
    failed = []
    started = time.monotonic()
    for number, (workload, system) in enumerate(cases):
        seconds = args.seconds or (QUICK_SECONDS if args.quick else workload.seconds)
        _say(f"{number + 1}/{len(cases)} {workload.name}: {system.name}")
        try:
            warm = QUICK_WARM if args.quick else system.settles
            record = measure.run(system, workload, seconds, programs, warm)
            numbers = measure.numbers(system, workload, record)
            found.setdefault((workload.name, system.name), []).append(numbers)
        except (measure.CaseError, OSError, AssertionError, RuntimeError, subprocess.SubprocessError) as error:
            failed.append(f"`{workload.name}` under {system.title}: {error}")
            _say(f"  failed: {error}")
    facts["minutes"] = (time.monotonic() - started) / 60
    table = report.write(out, name, facts, found, failed)
    _say(f"written: {table}")
    return 1 if failed else 0


def main() -> int:
    args = _parser().parse_args()
    if args.list:
        _list()
        return 0
    try:
        workloads = _chosen(args.workload, [workload.name for workload in WORKLOADS])
        systems = _chosen(args.system, [system.name for system in SYSTEMS])
    except ValueError as error:
        _say(f"bench/arbiter/run: {error}")
        return 2
    if os.geteuid() != 0:
        _say("bench/arbiter/run: run it as root: the daemon needs it")
        return 2
    whole = not (args.workload or args.system or args.quick or args.seconds)
    out = args.out or (RESULTS if whole else Path(tempfile.mkdtemp(prefix="gsa-results-", dir="/tmp")))
    with tempfile.TemporaryDirectory(prefix="gsa-programs-", dir="/tmp") as programs:
        build.programs(Path(programs))
        cases = _rounds(plan(workloads, systems), 1 if args.quick else REPETITIONS)
        return _measure(args, cases, Path(programs), out, f"arbiter-simulated-{time.strftime('%Y-%m-%d')}")
