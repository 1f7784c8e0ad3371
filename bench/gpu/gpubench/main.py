"""The command."""

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from gpubench import build, isolate, machine, published
from gpubench.config import Config, clean_environment
from gpubench.groups import GROUPS, PREFLIGHT, Group, select
from gpubench.results import Results, keep_logs, merged, save
from gpubench.worker import show

RESULTS = machine.ROOT / "bench" / "results" / "gpu"
GROUP_SECONDS = 530
"""Of a run of one group, build included."""
_LEAST_SECONDS = 20  # a group begun with less left would measure nothing


def _scale(text: str) -> float:
    scale = float(text)
    if not 0 < scale <= 1:
        raise ValueError
    return scale


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/gpu/run", description="Builds gpushare from this checkout and measures it on this machine's GPU."
    )
    parser.add_argument("--group", default="", metavar="NAME,...", help="only these groups")
    parser.add_argument("--list", action="store_true", help="list the groups")
    parser.add_argument(
        "--simulated", action="store_true", help="try the programs on the simulated device; proves no number"
    )
    parser.add_argument("--installed", action="store_true", help="use the gpushare that this Python imports")
    parser.add_argument(
        "--wheels", type=Path, metavar="DIR", help="take Python packages from here, for a machine without a network"
    )
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="which one of several, as nvidia-smi counts")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the result goes (default bench/results)")
    parser.add_argument(
        "--within", type=float, metavar="S", help=f"seconds for everything (default of one group: {GROUP_SECONDS})"
    )
    parser.add_argument(
        "--scale", type=_scale, default=1.0, metavar="X", help="of the usual seconds and repeats, how many: up to 1"
    )
    parser.add_argument("--commit", help="what this checkout is, where there is no git")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="make one result of these, measure none")
    parser.add_argument("--keep", action="store_true", help="keep the scratch directory with all logs")
    return parser


_ABOUT_THE_RESULT = ("--out", "--commit")
"""Options with a value, and --keep: they change nothing of what is measured."""


def _asked(arguments: list[str]) -> list[str]:
    """The command line as the result shows it: without where the result went."""
    asked, rest = [], iter(arguments)
    for one in rest:
        if one in _ABOUT_THE_RESULT:
            next(rest, None)
        elif one != "--keep" and not one.startswith(tuple(f"{name}=" for name in _ABOUT_THE_RESULT)):
            asked.append(one)
    return asked


def _fail(text: str) -> int:
    print(f"bench/gpu/run: {text}", file=sys.stderr)
    return 2


def _refresh(path: Path) -> None:
    """A result that is kept in the checkout is shown by its page."""
    if path.parent.resolve() != RESULTS.resolve():
        return
    try:
        if published.refresh(machine.ROOT):
            show(f"written: {published.PAGE}")
    except (OSError, ValueError, KeyError) as error:
        show(f"{published.PAGE} does not show this result: {type(error).__name__}: {error}")


def merge(files: list[Path], out: Path | None) -> int:
    """Into the file that a run of the newest one's date would write; the runs in that file stay in it."""
    try:
        documents = [json.loads(file.read_text()) for file in files]
        last = merged(documents)["runs"][-1]
        if last["simulated"] and out is None:
            return _fail("simulated runs prove no number: give --out")
        path = machine.result(out or RESULTS, last)
        if path.exists():
            documents.append(json.loads(path.read_text()))
        save(path, merged(documents))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return _fail(f"--merge: {error}")
    show(f"written: {path}")
    _refresh(path)
    return 0


def _groups(groups: list[Group], results: Results, config: Path, env: dict[str, str], end: float | None) -> bool:
    """Runs them in turn. True when all that can run on this device ended well."""
    good = fit = True
    for number, group in enumerate(groups, 1):
        entry = results.begin(group)
        left = group.seconds if end is None else min(group.seconds, end - isolate.END_SECONDS - time.monotonic())
        if group.real and results.run["simulated"]:
            entry["state"], entry["reason"] = "skipped", "needs a real GPU"
            continue
        if group.shares and not fit:
            entry["state"], entry["reason"] = "not run", "gpushare shares nothing here, see preflight"
        elif left < _LEAST_SECONDS:
            entry["state"], entry["reason"] = "not run", "of the time for everything, too little was left"
        else:
            show(f"{number} of {len(groups)}: {group.title} (`{group.name}`, at most {left:.0f} s)")
            isolate.run(group, config, env, left, entry, results.write)
        if entry["state"] != "ok":
            show(f"  {entry['state']}: {entry['reason']}")
            good = False
            fit = fit and group is not PREFLIGHT
    results.write()
    return good


def _measure(args: argparse.Namespace, groups: list[Group], work: Path) -> int:
    within = args.within or (GROUP_SECONDS if args.group and "," not in args.group else None)
    end = None if within is None else time.monotonic() + within
    facts = machine.facts(args.simulated, args.gpu)
    facts["commit"] = args.commit or facts["commit"]
    if not facts["gpu"]:
        raise build.BuildError(f"nvidia-smi shows no GPU {args.gpu}: is the driver loaded?")
    show("building gpushare and the programs that measure")
    paths = build.gpushare(args, work)
    not_built = build.programs(work / "build.log", work / "programs", gpu=None if args.simulated else args.gpu)
    for reason in not_built.values():
        show(f"  {reason}")
    config = work / "config.json"
    Config(args.simulated, str(work), str(work / "programs"), not_built, args.gpu, args.scale).save(config)
    own = [str(Path(__file__).resolve().parents[1]), *map(str, paths), os.environ.get("PYTHONPATH", "")]
    env = {**clean_environment(), "PYTHONPATH": os.pathsep.join(filter(None, own)), "PYTHONSAFEPATH": "1"}
    out = args.out or (work / "results" if args.simulated else RESULTS)
    results = Results(machine.result(out, facts), facts, shlex.join(["bench/gpu/run", *_asked(sys.argv[1:])]))
    good = False
    try:
        good = _groups(groups, results, config, env, end)
    finally:
        if not good:
            keep_logs(work, results.path.with_suffix(".logs.txt"))
        _refresh(results.path)
    print(results.path.with_suffix(".md").read_text())
    show(f"written: {results.path}")
    return 0 if good else 1


def _ended(number: int, frame: FrameType | None) -> None:
    """An exit, so that what was started is ended on the way."""
    del frame
    raise SystemExit(128 + number)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _ended)
    args = _parser().parse_args()
    if args.list:
        for group in GROUPS:
            print(f"{group.name:12} {group.seconds:4} s  {group.title}{' (real GPU only)' if group.real else ''}")
        return 0
    if args.merge:
        return merge(args.merge, args.out)
    try:
        groups = select([name for name in args.group.split(",") if name])
    except KeyError as error:
        return _fail(f"there is no group {error}: see --list")
    machine.find_driver_programs()
    if not args.simulated and shutil.which("nvidia-smi") is None:
        show("no NVIDIA driver is here: this tries the programs on the simulated device, and proves no number")
        args.simulated = True
    if args.simulated and args.out is not None and args.out.resolve() == RESULTS.resolve():
        return _fail("simulated runs prove no number: their output does not go to bench/results")
    if os.geteuid() != 0:
        return _fail("run it as root: the daemon needs it")
    work = Path(tempfile.mkdtemp(prefix="gsb-", dir="/tmp"))
    work.chmod(0o755)
    keep = args.keep or (args.simulated and args.out is None)
    try:
        status = _measure(args, groups, work)
        keep = keep or status != 0
        return status
    except build.BuildError as error:
        keep = (work / "build.log").exists()
        return _fail(str(error))
    finally:
        if keep:
            show(f"logs: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
