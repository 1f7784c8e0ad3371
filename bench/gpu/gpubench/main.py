"""The command."""

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from gpubench import build, machine, readme, registry
from gpubench.config import Config, Peer, clean_environment
from gpubench.deadline import Deadline
from gpubench.prepare import prepare
from gpubench.results import Json, Results, keep_logs, merged, save
from gpubench.session import Session
from gpubench.worker import say

RESULTS = machine.ROOT / "bench" / "results"
_SPARE_SECONDS = 10  # for Python to start and end, tables and copies


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/gpu/run", description="Builds gpushare from this checkout and measures it on this machine's GPU."
    )
    parser.add_argument("--part", default="", metavar="NAME,...", help="only these parts")
    parser.add_argument("--group", choices=registry.groups(), help="only this group; each stays under 9 minutes")
    parser.add_argument("--list", action="store_true", help="list parts and groups")
    parser.add_argument(
        "--simulated",
        action="store_true",
        help="try the programs on the simulated device; no numbers (what happens where there is no driver)",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PATH,KEY=VALUE...",
        help="measure under this preload library, too",
    )
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="which one of several, as nvidia-smi counts")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the result goes (default bench/results)")
    parser.add_argument("--limit", type=float, metavar="S", help="seconds a part may take, instead of its own limit")
    parser.add_argument(
        "--within", type=float, metavar="S", help="seconds for everything, build included (default with --group: 530)"
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        metavar="DIR",
        help="Python packages that this machine lacks, as files (default: wheels/ of the checkout, where it is there)",
    )
    parser.add_argument(
        "--prefix", type=Path, metavar="DIR", help="use this build of gpushare; with --build-only, make it"
    )
    parser.add_argument("--build-only", action="store_true", help="build gpushare into --prefix and end")
    parser.add_argument("--installed", action="store_true", help="use the gpushare that this Python imports")
    parser.add_argument("--commit", help="what this checkout is, where there is no git")
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="FILE", help="measure nothing: make one result of these"
    )
    parser.add_argument("--keep", action="store_true", help="keep the scratch directory with all logs")
    return parser


def _list() -> None:
    for part in registry.PARTS:
        note = " (real GPU only)" if part.real else ""
        print(f"{part.group:16} {part.name:12} {part.seconds:4} s  {part.title}{note}")


def _fail(text: str) -> int:
    print(f"bench/gpu/run: {text}", file=sys.stderr)
    return 2


def _merge(files: list[Path], out: Path | None) -> int:
    """Into the file that a run of the newest one's date would write; what that holds already stays in it."""
    try:
        documents = [json.loads(file.read_text()) for file in files]
        last = merged(documents)["runs"][-1]
        if last["simulated"] and out is None:
            return _fail("simulated runs prove no number: give --out")
        path = _result(out or RESULTS, last)
        if path.exists():
            documents.append(json.loads(path.read_text()))
        save(path, merged(documents))
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return _fail(f"--merge: {error}")
    say(f"written: {path}")
    _refresh(path)
    return 0


def _refresh(path: Path) -> None:
    """A result that is kept in the checkout is shown by its README files."""
    if path.parent.resolve() != RESULTS.resolve():
        return
    try:
        for name in readme.refresh(machine.ROOT):
            say(f"written: {name}")
    except Exception as error:
        say(f"README.md and bench/README.md do not show this result: {type(error).__name__}: {error}")


def _result(out: Path, facts: Json) -> Path:
    name = "simulated" if facts["simulated"] else machine.slug(facts["gpu"])
    return out / f"{name}-{facts['date']}.json"


def _environment(paths: list[Path]) -> dict[str, str]:
    env = clean_environment()
    own = [str(Path(__file__).resolve().parents[1]), *map(str, paths), env.get("PYTHONPATH", "")]
    # Nothing is to be imported from the directory that somebody happens to be in: it may be this checkout.
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, own)), "PYTHONSAFEPATH": "1"}


def _measure(args: argparse.Namespace, parts: list[registry.Part], peers: list[Peer], work: Path) -> int:
    deadline = Deadline(args.within or (registry.GROUP_SECONDS - _SPARE_SECONDS if args.group else None))
    facts = machine.facts(args.simulated, args.gpu)
    facts["commit"] = args.commit or facts["commit"]
    facts["surroundings"] = {} if args.simulated else machine.surroundings(args.gpu)
    if not facts["gpu"] and not args.build_only:
        raise build.BuildError(
            f"nvidia-smi shows no GPU {args.gpu}: is the driver loaded? (--simulated tries the programs without one)"
        )
    ready = prepare(args, work, deadline)
    if args.build_only:
        return 0
    out = args.out or (work / "results" if args.simulated else RESULTS)
    results = Results(_result(out, facts), facts, shlex.join(["bench/gpu/run", *sys.argv[1:]]))
    config = work / "config.json"
    Config(
        args.simulated, str(work), str(work / "programs"), ready.lib, peers, ready.not_built, args.gpu, ready.without
    ).save(config)
    session = Session(
        config,
        _environment(ready.paths),
        results,
        deadline,
        args.limit,
        1 + len(peers),
        simulated=args.simulated,
        without=ready.without,
    )
    good = False
    try:
        bad = [part.name for part in parts if not session.part(part)]
        good = not bad
    finally:
        if not good:
            keep_logs(work, results.path.with_suffix(".logs.txt"))
        _refresh(results.path)
    print(results.path.with_suffix(".md").read_text())
    say(f"written: {results.path}")
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
        _list()
        return 0
    if args.merge:
        return _merge(args.merge, args.out)
    try:
        parts = registry.select([name for name in args.part.split(",") if name], args.group)
        peers = [Peer.parse(text) for text in args.peer]
    except KeyError as error:
        return _fail(f"there is no part or group {error}: see --list")
    except ValueError as error:
        return _fail(str(error))
    machine.find_driver_programs()
    if not args.simulated and not args.build_only and shutil.which("nvidia-smi") is None:
        say("no NVIDIA driver is here: this tries the programs on the simulated device, and proves no number")
        args.simulated = True
    if args.build_only and args.prefix is None:
        return _fail("--build-only needs --prefix, where the build goes")
    if args.simulated and args.out is not None and args.out.resolve() == RESULTS.resolve():
        return _fail("simulated runs prove no number: their output does not go to bench/results")
    if args.wheels is not None and not any(args.wheels.glob("*.whl")):
        return _fail(f"--wheels {args.wheels}: there are no .whl files")
    if os.geteuid() != 0 and not args.build_only:
        return _fail("run it as root: the daemon needs it")
    work = Path(tempfile.mkdtemp(prefix="gsb-", dir="/tmp"))
    work.chmod(0o755)
    keep = args.keep or (args.simulated and args.out is None and not args.build_only)
    try:
        status = _measure(args, parts, peers, work)
        keep = keep or status != 0
        return status
    except build.BuildError as error:
        keep = (work / "build.log").exists()
        if keep and args.out is not None:
            keep_logs(work, args.out / "build.logs.txt")
        return _fail(str(error))
    finally:
        if keep:
            say(f"logs: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
