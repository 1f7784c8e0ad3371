"""Programs that go past the interposer, on a real driver: how soon they stand still, how many bytes they get, what the
tracepoint tier counts of a driver's ioctls, and who opens the devices' nodes."""

import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpubench.config import MissingError
from gpubench.context import Context
from gpubench.process import tied
from gpubench.stats import spread
from gpubench.worker import START_SECONDS, Worker, WorkerError

MIB, GIB = 1 << 20, 1 << 30
LIMIT = 4 * GIB
STEP = 64 * MIB
TARGET_MS = 150.0
"""From the context to the last kernel, in the worst of all trials."""
TRIALS = 20
FRAMEWORK_LIMIT = 16 * GIB
FRAMEWORK = ("import", "context", "cublas", "conv", "graph", f"grow {GIB}")
COUNTED = {
    "context": "a context",
    "module": "two modules",
    "launch": "a first launch",
    "pool 64MiB": "a pool's 64 MiB",
    "alloc 4KiB": "4 KiB",
    "alloc 2MiB": "2 MiB",
    "alloc 1GiB": "1 GiB",
    "bigstack": "a kernel with 16 KiB of local memory",
}
NOBODY = 65534
_WORDS = struct.Struct("<QQQQ")
_STILL_SECONDS, _FOUND_SECONDS, _ENDED_SECONDS = 0.5, 10.0, 30.0
_KILL = '[guard]\ntracepoint = "kill"\n[audit]\nevader = "tell"\n'
_EXCLUSIVE = "exclusive = true\n"


class _Words:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_WORDS.size))

    def read(self) -> tuple[int, ...]:
        """ns: began, context, beat; bytes."""
        return _WORDS.unpack(self.path.read_bytes())


@contextmanager
def _evader(context: Context, words: _Words, *more: str) -> Iterator[Worker]:
    """It may stand still: it is killed in the end."""
    stage = context.stage
    argv = [stage.program("evader"), str(words.path), stage.spin_ptx, *more]
    with stage.start("past", argv, memory=LIMIT, time_milli=500) as worker:
        try:
            yield worker
        finally:
            worker.process.kill()
            worker.process.wait()


def _until(what: str, seconds: float, look: Any) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            raise WorkerError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.005)


def _stopped_at(words: _Words, frozen: Callable[[], bool]) -> tuple[int, int, int]:
    """ns: before its first call, with its context, after its last kernel. 0 where it did not come so far."""
    _until("it is found", _FOUND_SECONDS, frozen)
    deadline = time.monotonic() + _FOUND_SECONDS
    before, since = words.read(), time.monotonic()
    while time.monotonic() < since + _STILL_SECONDS:
        if time.monotonic() > deadline:
            raise WorkerError(f"it still computes {_FOUND_SECONDS:.0f} s after it was found")
        time.sleep(0.01)
        now = words.read()
        if now != before:
            before, since = now, time.monotonic()
    return before[:3]


def _stopped(context: Context) -> None:
    client = context.stage.client
    words = _Words(context.stage.work / "words")
    computed = []
    for _ in range(context.repeats(TRIALS)):
        words = _Words(words.path)
        with _evader(context, words) as worker:

            def frozen(pid: int = worker.pid) -> bool:
                rows = client.call("GET", "/v1/findings")["findings"]
                return any(row["pid"] == pid and row["act"] == "frozen" for row in rows)

            _, made, beat = _stopped_at(words, frozen)
        if beat:
            computed.append((beat - made) / 1e6)
        _until("its grant ends", _ENDED_SECONDS, lambda: not client.grants())
    trials = context.repeats(TRIALS)
    text = f"{trials - len(computed)} of {trials} were frozen before their first kernel had ended"
    name = "past the interposer: from its context to its last kernel"
    if not computed:
        context.row(name, None, text=text)
        return
    context.row(name, spread(computed), "ms", against=text, limit=TARGET_MS, judged=max(computed))


def _tracepoint(context: Context) -> None:
    """Raises MissingError where the tier kills nobody."""
    walls = {wall["name"]: wall for wall in context.stage.client.node()["walls"]}
    why = walls["tracepoint"]["why"] if "tracepoint" in walls else "there is no such wall here"
    if why:
        raise MissingError(f"the tracepoint tier does not hold: {why}")


def _limited(context: Context) -> None:
    words = _Words(context.stage.work / "words")
    with _evader(context, words, str(STEP)) as worker:
        _until("it is killed", _ENDED_SECONDS, lambda: worker.process.poll() is not None)
        status = worker.process.poll()
        had = words.read()[3]
    limit = (LIMIT + STEP) / MIB
    ended = "killed" if status == -signal.SIGKILL else f"ended with status {status}"
    context.row(
        "past the interposer, a limit of 4 GiB: bytes it had before the one that ended it",
        had / MIB,
        "MiB",
        against=f"{ended}; steps of {STEP // MIB} MiB, 64 MiB are let pass",
        limit=limit,
        judged=had / MIB if status == -signal.SIGKILL else 2 * limit,  # it would have gone on
    )


def _honest(context: Context) -> None:
    """Who fills its grant through the interposer is not killed."""
    stage = context.stage
    with stage.load("gpushare", memory=LIMIT) as worker:
        for piece in ("256MiB", "16MiB", "1MiB", "64KiB"):
            held = worker.ask(f"fill {piece}", 120)
        worker.ask("memory")
        context.row(
            "a full grant where the tracepoint tier kills", None, text=f"lives, with {held['held_bytes']} bytes"
        )
    if not context.has("torch"):
        return
    argv = stage.python("torch_steps.py")
    with stage.start("gpushare", argv, memory=FRAMEWORK_LIMIT) as worker:
        for step in FRAMEWORK:
            worker.ask(step, START_SECONDS)
        book = stage.grant_of(worker)["devices"][0]["memory_bytes"]
        context.row("PyTorch where the tracepoint tier kills", None, text=f"lives, charged {book / MIB:.0f} MiB")


@contextmanager
def _counted_group(context: Context) -> Iterator[tuple[Any, int, Path]]:
    """A guard of the benchmark's own, which tells only, and a cgroup that it counts."""
    from gpushare.enforce import cgroup, rm
    from gpushare.enforce.guard import Guard

    major = os.major(os.stat("/dev/nvidiactl").st_rdev)
    group = cgroup.below(os.getpid(), f"bench-{os.getpid()}")
    if not group.v2:
        raise MissingError("no cgroup v2 hierarchy is mounted")
    group.make()
    try:
        with Guard(rm.Layout((rm.Nodes(major),))) as guard:
            yield guard, guard.limit(group.path, 1 << 50, 0), group.path
    finally:
        group.remove()


def _counted(context: Context) -> None:
    """What the ioctls of a bare program ask for, against what the device then has less."""
    stage = context.stage
    join = ["sh", "-c", 'echo $$ > "$0"/cgroup.procs && exec "$@"']
    with _counted_group(context) as (guard, number, path):
        modules = [stage.spin_ptx, stage.program("big_stack.cubin")]
        with stage.start("bare", [*join, str(path), stage.program("steps"), *modules]) as worker:
            worker.ask("init")
            counted, used = guard.books(number).used, stage.settled_bytes()
            for step, name in COUNTED.items():
                worker.ask(step, START_SECONDS)
                books, now = guard.books(number), stage.settled_bytes()
                context.row(
                    f"{name}: NVML beyond what the ioctls asked for",
                    (now - used - (books.used - counted)) / MIB,
                    "MiB",
                    against=f"NVML {(now - used) / MIB:.2f} MiB, ioctls {(books.used - counted) / MIB:.2f} MiB",
                )
                counted, used = books.used, now
        text = (
            f"{books.allocations} allocations, {books.failed} refused, {books.lost} lost, {books.doubt} bytes in doubt"
        )
        context.row("the guard's books of a bare program", None, text=text)


def _opens(context: Context, arm: str) -> str:
    """What a user who is not root gets of the device's node."""
    script = 'exec 3<> "$0" && echo opened'
    node = f"/dev/nvidia{context.stage.gpu}"
    argv = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "sh", "-c", script, node]
    command, env = context.stage.command(arm, argv, memory=GIB, time_milli=100)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False, preexec_fn=tied())
    return (done.stdout or done.stderr).strip().rpartition(": ")[2][:100]


def _exclusive(context: Context) -> None:
    before = _opens(context, "bare")
    context.stage.configure(_EXCLUSIVE)
    found = _opens(context, "gpushare"), _opens(context, "bare")
    good = (before, *found) == ("opened", "opened", "Operation not permitted")
    text = f"with a grant: {found[0]}; without: {found[1]}; without `exclusive`: {before}"
    context.row("`exclusive`, a user opens the device's node", None, text=f"{'ok' if good else 'NOT OK'}: {text}")


def measure(context: Context) -> None:
    with context.item("a program past the interposer"):
        _stopped(context)
    if context.simulated:
        context.skip("the tracepoint tier, and who opens the nodes: need a real driver")
        return
    with context.item("the ioctls' bytes"):
        _counted(context)
    context.stage.configure(_KILL)
    with context.item("bytes past the interposer"):
        _tracepoint(context)
        _limited(context)
    with context.item("who is not to be killed"):
        _tracepoint(context)
        _honest(context)
    with context.item("who opens the nodes"):
        _exclusive(context)
