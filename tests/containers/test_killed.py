"""Every gpushare program in a container's start is killed at one of its system calls, or a call fails, chosen by chance
(more of them in the slow tests): no container runs without its share, and nothing is left after the next start.

strace injects the signal or the error: `inject=NAME:signal=KILL:when=N` counts the calls of one name.
"""

import contextlib
import json
import os
import random
import re
import select
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engines import cdi_apply
from run.running import Daemon, alive
from run.waiting import until

from gpushare.paths import HOOK

pytestmark = [
    pytest.mark.xdist_group("machine"),
    pytest.mark.skipif(shutil.which("strace") is None or shutil.which("runc") is None, reason="needs strace and runc"),
]

SHARE = {"memory": "1GiB", "time": "30%"}
SHOW = ("/bin/sh", "-c", "ls /run/gpushare/self && head -c 0 /run/gpushare/self/limits && cat /etc/ld.so.preload")
# The runtime behind the wrapper: it puts strace in front of one of gpushare's hooks, then execs runc.
RUNTIME = """#!/usr/bin/python3 -I
import json, os, sys
bundle = {bundle!r}
if "run" in sys.argv:
    config = json.load(open(bundle + "/config.json"))
    for hook in config.get("hooks", {{}}).get("createRuntime", []):
        hook["path"], hook["args"] = "/usr/bin/strace", ["strace", *{options!r}, {hook!r}, *hook["args"][1:]]
    json.dump(config, open(bundle + "/config.json", "w"))
os.execv("/usr/sbin/runc", ["runc", *sys.argv[1:]])
"""

Call = tuple[str, int]  # a system call's name, and its number among calls of that name


class Life:
    """A container's life with one gpushare program traced, and what must hold after it."""

    def __init__(self, runc, node: Daemon, part: str) -> None:
        self.runc, self.node, self.part = runc, node, part
        self.command = runc.command(*SHOW, annotations=SHARE)
        self.bundle = runc.directory / runc.names[-1]
        if part == "place":  # plain runc, after an engine has applied the CDI spec
            config = json.loads((self.bundle / "config.json").read_text())
            cdi_apply.own_usr(config, runc.directory / "machine")
            cdi_apply.apply(config, node.layout.cdi, "gpushare.dev/gpu=any")
            (self.bundle / "config.json").write_text(json.dumps(config))
        self.config = (self.bundle / "config.json").read_text()
        self.trace = runc.directory / f"trace-{part}"

    def _options(self, inject: str | None) -> list[str]:
        return ["-qq", "-o", str(self.trace), *(["-e", f"inject={inject}"] if inject else [])]

    def run(self, inject: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs the container as an engine does, with a fresh configuration each time."""
        (self.bundle / "config.json").write_text(self.config)
        command = list(self.command)
        if self.part == "wrapper":
            command = ["strace", *self._options(inject), *command]
        elif self.part != "none":
            runtime = self.runc.directory / "runtime"
            options = self._options(inject)
            runtime.write_text(RUNTIME.format(bundle=str(self.bundle), options=options, hook=str(HOOK)))
            runtime.chmod(0o755)
            if self.part == "place":
                command[:2] = [str(runtime)]  # instead of the wrapper and its socket
            else:
                command.insert(1, f"--gpushare-runtime={runtime}")
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def calls(self) -> list[Call]:
        """The system calls of an undisturbed life: from after the execve that started the program up to the one by
        which the wrapper becomes the runtime."""
        assert has_share(self.run())
        found = calls_in(self.trace)[1:]
        last = [number for number, (name, _) in enumerate(found) if name == "execve"]
        found = found[: last[0] + 1] if last else found
        return [(name, count - (name == "execve")) for name, count in found]

    def check(self, result: subprocess.CompletedProcess[str], what: str) -> None:
        """Asserts that the container had its share or did not run, and that after the next start nothing is left."""
        assert result.stdout == "" or has_share(result), (what, result)
        subprocess.run([*self.runc.wrapper, "delete", "--force", self.runc.names[-1]], capture_output=True)
        self.part, part = "none", self.part
        again = self.run()
        self.part = part
        assert has_share(again), (what, again)
        nothing_left(self.node, what)
        assert sorted(os.listdir(self.bundle)) == ["config.json", "rootfs"], what


def nothing_left(node: Daemon, what: str) -> None:
    for grant in node.client.grants():
        # No process is left to report that the container will not start: the grant expires.
        if grant["phase"] in ("reserved", "bound"):
            assert grant["expires_ns"] - grant["created_ns"] <= 41e9, what
            node.client.release(grant["id"])
    node.nothing_left()
    assert f" {node.layout.grants}/g-" not in Path("/proc/self/mountinfo").read_text(), what


def calls_in(trace: Path) -> list[Call]:
    seen: Counter[str] = Counter()
    found = []
    for line in trace.read_text().splitlines():
        if (match := re.match(r"(\w+)\(", line)) is not None:
            seen[match[1]] += 1
            found.append((match[1], seen[match[1]]))
    return found


def has_share(result: subprocess.CompletedProcess[str]) -> bool:
    words = result.stdout.split()
    return result.returncode == 0 and "limits" in words and any("libgpushare" in word for word in words)


def chosen(calls: list[Call], few: bool, seed: int) -> list[Call]:
    """One random call if `few`; else the first two and the last of each name, as those in between only repeat for other
    mounts."""
    if few:
        return sorted(random.Random(seed).sample(calls, min(1, len(calls))))
    last = dict(calls)
    return [(name, count) for name, count in calls if count < 3 or count == last[name]]


SLOW = [
    pytest.param(which, int(os.environ.get("GST_KILLS", "8")), marks=pytest.mark.slow) for which in ("daemon", "reader")
]
FEW = [1, pytest.param(int(os.environ.get("GST_KILLS", "8")), marks=pytest.mark.slow)]
AMOUNTS = [pytest.param(True, id="some"), pytest.param(False, id="all", marks=pytest.mark.slow)]


@pytest.mark.drawn(2)
@pytest.mark.promise("killed-start-leaves-nothing")
@pytest.mark.parametrize("few", AMOUNTS)
@pytest.mark.parametrize("part", ["wrapper", "createRuntime", "place"])
def test_killed_at_every_call(runc, node, part, few):
    life = Life(runc, node, part)
    calls = life.calls()
    assert len(calls) > 15
    for name, count in chosen(calls, few, 1):
        result = life.run(f"{name}:signal=KILL:when={count}")
        assert result.returncode != 0 and result.stdout == "", (name, count, result)
        life.check(result, f"{part} killed at {name} {count}")


@pytest.mark.drawn(2)
@pytest.mark.promise("killed-start-leaves-nothing")
@pytest.mark.parametrize("few", AMOUNTS)
@pytest.mark.parametrize("part", ["wrapper", "createRuntime", "place"])
def test_every_call_fails(runc, node, part, few):
    """If the start succeeds in spite of it, the container has its share."""
    life = Life(runc, node, part)
    calls = [call for call in life.calls() if call[0] not in ("execve", "exit_group")]
    for name, count in chosen(calls, few, 2):
        result = life.run(f"{name}:error=EIO:when={count}")
        life.check(result, f"{name} {count} of {part} failed")


# The daemon and its helpers.


def helpers(daemon: int) -> dict[str, list[int]]:
    """Pids of this daemon's helper processes, by module."""
    found: dict[str, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            names = re.findall(rb"gpushare\.(reader|door)", (entry / "cmdline").read_bytes())
            if names and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == daemon:
                found.setdefault(names[0].decode(), []).append(int(entry.name))
    return found


@contextlib.contextmanager
def traced(pid: int, trace: Path, kill: Call | None = None) -> Iterator[None]:
    """Traces a process. `kill`: the call at which it is killed, counted from now. The kill may take effect only when
    the tracer ends; in that case this waits for the end of the process."""
    options = ["-e", f"inject={kill[0]}:signal=KILL:when={kill[1]}"] if kill else []
    process = os.pidfd_open(pid)
    tracer = subprocess.Popen(["strace", "-qq", "-o", str(trace), *options, "-p", str(pid)], stderr=subprocess.DEVNULL)
    try:
        until(lambda: ended(process) or has_tracer(pid), "it is traced")
        yield
    finally:
        tracer.terminate()
        tracer.wait()
        if kill in calls_in(trace):
            until(lambda: ended(process), "it is killed")
        os.close(process)


def has_tracer(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text()
    return False


def ended(process: int) -> bool:
    """Whether a process has ended, with all of its threads. `process`: its pidfd."""
    return bool(select.select([process], [], [], 0)[0])


def target(node: Daemon, which: str) -> int:
    assert node.process is not None
    return node.process.pid if which == "daemon" else helpers(node.process.pid)[which][0]


def through(node: Daemon, start: Callable[[], subprocess.CompletedProcess[str]]) -> subprocess.CompletedProcess[str]:
    """What becomes of a start if the daemon, once it is killed, is started again as its unit does."""
    assert node.process is not None
    ours = [one for group in helpers(node.process.pid).values() for one in group]
    with ThreadPoolExecutor() as pool:
        started = pool.submit(start)
        until(lambda: started.done() or node.process.poll() is not None, "it has started, or cannot", 60)
        if not started.done():
            until(lambda: not any(map(alive, ours)), "its helpers end with it")
            node.start()
        return started.result()


@pytest.mark.promise("killed-start-leaves-nothing")
@pytest.mark.parametrize(("which", "few"), [("daemon", 1), ("reader", 1), *SLOW])
def test_daemon_and_reader_killed(runc, node, which, few):
    life = Life(runc, node, "none")
    assert has_share(life.run())
    trace = runc.directory / "trace"
    with traced(target(node, which), trace):
        assert has_share(life.run())
    calls = random.Random(few).sample(found := calls_in(trace), min(few, len(found)))
    for name, count in calls:
        what = f"{which} killed at {name} {count}"
        pid = target(node, which)
        with traced(pid, trace, (name, count)):
            result = through(node, life.run)
        if node.process.poll() is not None:  # it was killed after the container's start
            node.start()
        assert has_share(result) or (which == "reader" and result.stdout == ""), (what, result)
        if result.returncode:
            assert len(result.stderr.strip().splitlines()[-1]) < 400
        life.check(result, what)


@pytest.mark.parametrize("few", FEW)
def test_daemon_killed_around_a_plain_command(node, short_path, few):
    """It runs with its share, or does not run; the cgroup made below its caller's is removed."""
    trace = short_path / "trace"
    run = (
        "run",
        "--memory",
        "1GiB",
        "--time",
        "30%",
        "--",
        "sh",
        "-c",
        "ls $GPUSHARE_GRANT_DIR; cat /proc/self/cgroup",
    )
    with traced(node.process.pid, trace):
        assert "limits" in node.cli(*run).stdout
    for name, count in random.Random(few).sample(found := calls_in(trace), min(few, len(found))):
        what = f"killed at {name} {count}"
        with traced(node.process.pid, trace, (name, count)):
            result = through(node, lambda: node.cli(*run))
        if result.returncode:
            assert (result.returncode, result.stdout) == (125, ""), (what, result)
            assert result.stderr.count("\n") == 1, (what, result)
        else:
            assert "/gpushare-g-" in result.stdout, (what, result)
        if node.process.poll() is not None:
            node.start()
        nothing_left(node, what)
