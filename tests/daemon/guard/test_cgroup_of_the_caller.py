"""`gpushare run` and its caller's cgroup: asking for a share takes no process out of the limits of its slice or job."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from run import running
from run.waiting import until

from gpushare.enforce import cgroup
from gpushare.enforce.cgroup import Cgroup, Hierarchies
from gpushare.errors import FailedError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

USER = 64123  # a uid that no user has

# Asks for a share as USER, as `gpushare run` does, then moves itself to the cgroups that it is told.
CALLER = """
import os, sys
from gpushare import client
from gpushare.client import transport
from http import client as http
daemon = client.Client(sys.argv[1])
os.setgroups([]); os.setgid({user}); os.setuid({user})
grant = daemon.create(memory="1GiB", time="10%")["id"]
print(grant, flush=True)
sys.stdin.readline()
daemon.bind(grant, "process")
print("bound", flush=True)
for line in sys.stdin:
    try:
        with open(line.strip() + "/cgroup.procs", "w") as file:
            file.write("0")
        print("moved", flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


@pytest.fixture
def job() -> Iterator[Cgroup]:
    """A cgroup like a systemd slice or a Slurm job."""
    where = Hierarchies.of().unified
    if where is None:
        pytest.skip("needs a cgroup v2 hierarchy")
    made = Cgroup(where / f"gst-job-{os.getpid()}", v2=True)
    made.make()
    yield made
    made.kill()
    until(made.remove, "the job's cgroup goes")


class Caller:
    def __init__(self, daemon, job: Cgroup, user: int) -> None:
        path = daemon.layout.socket
        path.chmod(0o777)
        for directory in (path.parent, daemon.state_dir, daemon.state_dir.parent):
            directory.chmod(0o755)
        command = [sys.executable, "-c", CALLER.format(user=user), str(path)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=daemon.env,
            preexec_fn=lambda: job.add(os.getpid()),
        )  # fmt: skip
        self.job, self.daemon = job, daemon
        self.grant = self.process.stdout.readline().strip()

    def bind(self) -> None:
        assert self.say("") == "bound", self.daemon.log.read_text()[-2000:]

    def say(self, line: object) -> str:
        self.process.stdin.write(f"{line}\n")
        return self.process.stdout.readline().strip()

    def walls(self) -> dict[str, str]:
        """The grant's walls that do not hold, with the reasons."""
        return {
            wall["name"]: wall["why"] for wall in self.daemon.client.grant(self.grant)["walls"] if not wall["holds"]
        }

    def own(self) -> Path:
        return cgroup.of_process(self.process.pid).path

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def call(daemon, job) -> Iterator:
    callers = []

    def start(user: int = USER) -> Caller:
        callers.append(Caller(daemon, job, user))
        return callers[-1]

    yield start
    for caller in callers:
        caller.end()
    daemon.nothing_left()
    assert [entry for entry in os.listdir(job.path) if (job.path / entry).is_dir()] == []


@pytest.mark.promise("own-cgroup-below-callers")
def test_it_stays_below_its_job(daemon, call, job):
    neighbour = subprocess.Popen(["sleep", "100"], preexec_fn=lambda: job.add(os.getpid()))
    try:
        one = call()
        one.bind()
        assert one.own() == job.path / f"gpushare-{one.grant}"
        assert one.say(job.path) == "Permission denied"
        assert one.say(job.path.parent) == "Permission denied"
        assert set(one.walls()).isdisjoint({"cgroup", "freezer"})
        assert cgroup.of_process(neighbour.pid).path == job.path
        daemon.client.release(one.grant)
        one.process.wait(20)
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_a_user_who_owns_its_cgroup_can_leave_and_that_is_reported(call, job):
    """As below systemd's user@.service. The kernel lets a user move a process if the user may write the common
    ancestor."""
    for name in ("", "cgroup.procs"):
        os.chown(job.path / name, USER, USER)
    one = call()
    one.bind()
    assert one.own() == job.path / f"gpushare-{one.grant}"
    assert str(job.path) in one.walls()["cgroup"]
    assert one.say(job.path) == "moved"
    assert one.own() == job.path
    assert not (job.path / f"gpushare-{one.grant}" / "cgroup.procs").stat().st_mode & 0o022


def test_one_that_left_ends_with_its_grant(daemon, call, job):
    for name in ("", "cgroup.procs"):
        os.chown(job.path / name, USER, USER)
    one = call()
    one.bind()
    assert one.say(job.path) == "moved"
    assert daemon.client.grant(one.grant)["phase"] == "active"
    daemon.client.release(one.grant)
    one.process.wait(20)  # the daemon kills it by its pidfd


def test_a_grant_ends_even_if_its_processes_cannot_be_killed(make_daemon):
    """A hierarchy that was mounted read-only, and a process that has become another user's by a set-user-ID program."""
    daemon = make_daemon()
    daemon.forked = False
    daemon.patch(
        "import signal",
        "def refuse(*_): raise PermissionError(1, 'Operation not permitted')",
        "signal.pidfd_send_signal = refuse",
    )
    daemon.command = ["unshare", "--mount", *daemon.command]
    child, grant = daemon.start().join()
    cgroups = "/sys/fs/cgroup"
    for words in (["--rbind", cgroups, cgroups], ["-o", "remount,bind,ro", Hierarchies.of().unified]):
        command = ["nsenter", "-t", str(daemon.process.pid), "--mount", "mount", *map(str, words)]
        # not while the daemon writes a file of it
        until(lambda command=command: subprocess.run(command, capture_output=True).returncode == 0, "the mount")
    ended = daemon.client.release(grant)
    assert ended["phase"] == "released"
    assert f"process {child.pid} cannot be killed: Operation not permitted" in ended["reason"]
    assert f"grant {grant} ends, and not all of its processes do" in daemon.log.read_text()
    assert daemon.client.grants() == []
    subprocess.run(["nsenter", "-t", str(daemon.process.pid), "--mount", "umount", "--lazy", cgroups], check=True)
    child.kill()
    daemon.nothing_left()  # the cgroup neither


def test_a_grant_ends_even_if_its_cgroup_is_not_found(make_daemon):
    daemon = make_daemon()
    child, grant = daemon.start().join()
    group, links = daemon.cgroup(grant), daemon.layout.cgroups
    links.rename(links.with_name("aside"))
    links.touch()
    with pytest.raises(FailedError, match="the daemon's log says which"):
        daemon.client.release(grant)
    child.wait(20)
    assert daemon.client.grant(grant)["phase"] == "released"
    links.unlink()
    until(group.remove, "its cgroup goes")
    daemon.nothing_left()


def test_a_cgroup_that_its_user_removes_at_once_keeps_the_daemon_busy_for_no_time(daemon, call, job):
    """The kernel says that a file of a removed cgroup is ready, without end, to whoever has not read it before."""
    for name in ("", "cgroup.procs"):
        os.chown(job.path / name, USER, USER)
    one = call()
    one.bind()
    daemon.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{daemon.process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it stands")
    time.sleep(0.05)  # the kernel tells of changes at most every 10 ms
    assert one.say(job.path) == "moved"
    (job.path / f"gpushare-{one.grant}").rmdir()
    daemon.process.send_signal(signal.SIGCONT)
    daemon.client.version()
    schedstat = Path(f"/proc/{daemon.process.pid}/schedstat")
    before = int(schedstat.read_text().split()[0])
    time.sleep(0.5)
    assert int(schedstat.read_text().split()[0]) - before < 250_000_000
    assert daemon.client.grant(one.grant)["phase"] == "active"
    one.end()
    until(lambda: daemon.client.grant(one.grant)["phase"] == "released", "it ends")


@pytest.mark.promise("own-cgroup-below-callers")
def test_where_no_child_may_be_made(call, job):
    (job.path / "cgroup.max.descendants").write_text("0")
    one = call()
    one.bind()
    assert one.own() == job.path
    assert "its limits allow no more" in one.walls()["cgroup"]


def test_a_child_made_before_is_not_taken_for_ours(call, job):
    for name in ("", "cgroup.procs"):
        os.chown(job.path / name, USER, USER)
    one = call()
    squatted = job.path / f"gpushare-{one.grant}"
    squatted.mkdir()
    os.chown(squatted, USER, USER)
    try:
        one.bind()
        assert one.own() == job.path
        assert "File exists" in one.walls()["cgroup"]
        one.end()
        until(lambda: one.daemon.client.grant(one.grant)["phase"] == "released", "it ends")
        assert squatted.exists()
    finally:
        squatted.rmdir()


def test_a_threaded_cgroup(call, job):
    """A child of a threaded cgroup takes no process until it is threaded too, and a process's threads may be in
    several: the cgroup wall does not hold, and the grant is still active."""
    inner = Cgroup(job.path / "threads", v2=True)
    inner.make()
    (inner.path / "cgroup.type").write_text("threaded")
    one = call()
    inner.add(one.process.pid)
    try:
        one.bind()
        assert one.walls()["cgroup"]
        assert one.daemon.client.grant(one.grant)["phase"] == "active"
    finally:
        one.end()
        until(inner.remove, "it goes")


def test_a_run_in_a_run_is_beside_it(daemon, job):
    """The inner run's cgroup is a sibling of the outer one's: the job's limits apply, and each has its own device
    program and its own end."""
    inner = daemon.run("1GiB", "10%", "sh", "-c", "cat /proc/self/cgroup; echo; cat")
    process = subprocess.Popen(
        daemon.run("1GiB", "10%", *inner), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=daemon.env,
        preexec_fn=lambda: job.add(os.getpid()),
    )  # fmt: skip
    with process:
        lines = []
        while line := process.stdout.readline().strip():
            lines.append(line)
        own = next(line.partition("::")[2] for line in lines if line.startswith("0::"))
        assert Path(own).parent.name == job.path.name
        process.stdin.close()
    daemon.nothing_left()


def test_a_killed_daemon_forgets_no_cgroup(daemon, call, job):
    """If it is killed between making the cgroup and writing the ledger's row, the next start finds the link."""
    one = call()
    one.bind()
    path = one.own()
    daemon.kill()
    one.end()
    assert path.exists()
    daemon.start()
    until(lambda: not path.exists(), "it is removed")


@pytest.mark.promise("nested-cgroups")
def test_many_nested_cgroups_are_no_containers_own(job):
    """A starting container has one or two: the search for its processes ends early."""
    made = [job.path / str(number) for number in range(50)]
    for path in made:
        path.mkdir()
    process = subprocess.Popen(["sleep", "100"], preexec_fn=lambda: job.add(os.getpid()))
    try:
        assert cgroup.own_of_process(process.pid) == job
        assert len(job.pids(most=10)) <= 10
        with contextlib.suppress(OSError), pytest.MonkeyPatch.context() as patch:
            patch.setattr(cgroup, "_ANCESTORS_MAX", 0)
            assert not cgroup._descend([os.getppid()], process.pid)
    finally:
        process.kill()
        process.wait()


@pytest.mark.promise("nested-cgroups")
def test_nested_cgroups_go_in_several_steps(job, monkeypatch):
    monkeypatch.setattr(cgroup, "_REMOVE_AT_ONCE", 7)
    top = Cgroup(job.path / "deep", v2=True)
    for outer in range(4):
        for inner in range(4):
            (top.path / str(outer) / str(inner)).mkdir(parents=True)
    steps = 0
    while not top.remove():
        steps += 1
        assert steps < 50
    assert steps > 0


def test_on_a_machine_with_v1_alone(make_daemon):
    """The grant's cgroup is below the caller's freezer cgroup; all processes in it end with the grant."""
    freezer = Hierarchies.of().freezer
    if freezer is None:
        pytest.skip("needs a v1 freezer hierarchy")
    here = f"cgroup._here = lambda: cgroup.Hierarchies(None, Path({str(freezer)!r}))"
    daemon = make_daemon().patch("from pathlib import Path", "from gpushare.enforce import cgroup", here).start()
    job = Cgroup(freezer / f"gst-job-{os.getpid()}", v2=False)
    job.make()
    script = "sleep 100 & echo $!; grep freezer /proc/self/cgroup; cat"
    try:
        process = subprocess.Popen(
            daemon.run("1GiB", "10%", "sh", "-c", script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=daemon.env, preexec_fn=lambda: job.add(os.getpid()),
        )  # fmt: skip
        with process:
            child = int(process.stdout.readline())
            [grant] = daemon.client.grants()
            assert process.stdout.readline().strip().endswith(f"{job.path.name}/gpushare-{grant['id']}")
            assert {"cgroup", "freezer"} <= {wall["name"] for wall in grant["walls"] if wall["holds"]}
            daemon.client.release(grant["id"])
            process.wait(20)
            until(lambda: not running.alive(child), "all of it ends")
        until(lambda: not os.listdir(daemon.layout.cgroups), "the cgroup goes")
        assert daemon.client.grant(grant["id"])["walls"]
    finally:
        until(job.remove, "the job's cgroup goes")
