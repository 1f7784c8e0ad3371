"""A process that uses a device past the interposer is found in the driver's list, and stopped. The simulator is the
judge."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from machine import freezer
from run.built import SUPPORT
from run.running import SPIN, Tenant, alive, copied_driver, start
from run.waiting import until

from gpushare.daemon.guard.holds import Holds
from gpushare.enforce.cgroup import Cgroup, Hierarchies, below
from gpushare.enforce.freezer import freeze
from gpushare.errors import FailedError
from gpushare.paths import SIM_DIR_ENV

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the daemon has to make cgroups")


def past(daemon, *command: str | Path) -> list[str]:
    """A command that clears the environment and finds a copy of the driver."""
    bare = (f"LD_LIBRARY_PATH={copied_driver(daemon.state_dir).parent}", f"{SIM_DIR_ENV}={daemon.layout.sim}")
    return ["env", "-i", *bare, *map(str, command)]


def evade(daemon, **options: str) -> tuple[Tenant, str]:
    """Starts a tenant that computes past the interposer from the first instant; also returns its grant."""
    before = {grant["id"] for grant in daemon.client.grants()}
    command = past(daemon, SPIN, "--alloc", "64MiB", "--kernel-ns", "100000", "--seconds", "600")
    child = start(daemon.run("1GiB", "25%", *command, **options), daemon.env, stderr=False, forked=False)
    daemon.children.append(child)
    found = until(lambda: {grant["id"] for grant in daemon.client.grants()} - before, "its grant")
    return child, found.pop()


def with_an_evader(daemon) -> str:
    """A shell command that starts an evader, prints its pid, and execs an honest tenant."""
    evader = " ".join(past(daemon, SPIN, "--alloc", "1MiB", "--seconds", "600"))
    return f"{evader} >/dev/null & echo $!; exec {SPIN}"


def stands_still(daemon, pid: int) -> bool:
    return len({daemon.busy(pid)[0] for _ in range(5)}) == 1


@pytest.mark.promise("evader-is-found")
def test_an_evader_is_frozen_and_notified(daemon):
    child, grant = evade(daemon)
    [found] = until(lambda: daemon.findings(grant=grant, act="frozen"), "it is found")
    assert (found["kind"], found["pid"], found["device"], found["outcome"]) == ("evader", child.pid, 0, "")
    until(lambda: freezer.frozen(daemon.cgroup(grant)), "its grant is frozen")
    until(lambda: stands_still(daemon, child.pid), "its work stands still")
    until(lambda: daemon.findings(grant=grant)[0]["stop_ns"], "it is told when")
    until(lambda: str(SPIN) in daemon.findings(grant=grant)[0]["command"], "its command line is told")
    assert f"process {child.pid} " in daemon.client.grant(grant)["notice"]
    assert f"process {child.pid} [{SPIN}" in daemon.cli_here("events", "--findings").stdout
    metrics = daemon.client.text("/metrics")
    assert 'gpushare_findings{kind="evader"} 1' in metrics
    # If somebody thaws it, it is frozen again.
    freezer.thaw(daemon.cgroup(grant))
    until(lambda: freezer.frozen(daemon.cgroup(grant)), "it is frozen again")
    child.kill()
    until(lambda: daemon.findings(grant=grant)[0]["outcome"] in ("ended", "released"), "its end is seen")


def test_an_honest_neighbour_in_the_grant_goes_on_when_the_evader_has_ended(daemon):
    """Both share one cgroup, which is frozen as a whole."""
    shell = "; ".join(
        (f"{' '.join(past(daemon, SPIN, '--alloc 1MiB --seconds 600'))} >/dev/null & echo $!", f"exec {SPIN}")
    )
    tenant = Tenant(daemon.run("1GiB", "25%", "sh", "-c", shell))
    try:
        evader = int(tenant.ready)
        [found] = until(lambda: daemon.findings(pid=evader, act="frozen"), "the evader is found")
        group = daemon.cgroup(found["grant"])
        until(lambda: freezer.frozen(group), "its grant is frozen")
        os.kill(evader, signal.SIGKILL)
        if not group.v2:
            freezer.thaw(group)  # a process frozen by cgroup v1 does not end until it is thawed
        until(lambda: daemon.findings(pid=evader)[0]["outcome"] in ("ended", "left"), "its end is seen")
        until(lambda: not freezer.frozen(group), "the grant is thawed")
        assert tenant.process.stdout.readline().startswith("{")
        assert tenant.tell("alloc 1MiB")["ok"]
    finally:
        tenant.close()


@pytest.mark.promise("hidden-memory-is-found")
def test_one_that_joins_goes_on_until_it_holds_too_much(daemon):
    """A process uses the device and then joins (latejoiner.py)."""
    child = daemon.tenant(sys.executable, str(SUPPORT / "run" / "latejoiner.py"), forked=False)
    pid = int(child.stdout.readline())
    [found] = until(lambda: daemon.findings(pid=pid, act="frozen"), "it is found")
    group = daemon.cgroup(found["grant"])
    child.stdin.write("join\n")
    child.stdin.flush()

    def joined() -> bool:
        freezer.thaw(group)  # so that it can join meanwhile
        return bool(daemon.findings(pid=pid)[0]["outcome"] == "joined")

    until(joined, "it has joined")
    assert child.stdout.readline().startswith("joined ")
    assert not freezer.frozen(group)
    assert daemon.client.grant(found["grant"])["processes"] == [pid]
    # Having joined, it allocates more than its grant allows, which its slot does not report.
    child.stdin.write(f"{2 << 30}\n")
    child.stdin.flush()
    assert child.stdout.readline() == "0\n"
    [more] = until(lambda: daemon.findings(pid=pid, kind="excess", act="frozen"), "what it has taken is found")
    assert more["memory_bytes"] > 2 << 30
    until(lambda: freezer.frozen(group), "its grant is frozen")
    assert "more than they may" in daemon.client.grant(found["grant"])["notice"]


def test_one_outside_of_all_grants_is_notified_and_goes_on(daemon):
    child = start([*past(daemon, SPIN, "--alloc", "1MiB", "--kernel-ns", "100000", "--seconds", "600")], stderr=False)
    daemon.children.append(child)
    # While a grant is in use, the devices are audited often.
    daemon.join()
    [found] = until(lambda: daemon.findings(pid=child.pid), "it is found")
    assert (found["kind"], found["grant"], found["act"]) == ("outside", None, "told")
    before = daemon.busy(child.pid)[0]
    until(lambda: daemon.busy(child.pid)[0] > before, "it goes on")


def test_an_evader_is_killed_after_the_grace(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('simulate = "1x16GiB"\n[audit]\nevader = "kill"\ngrace_seconds = 0.1\n')
    daemon = make_daemon("--config", str(config)).start()
    child, grant = evade(daemon)
    assert child.wait(20) == -signal.SIGKILL
    until(lambda: daemon.findings(grant=grant)[0]["outcome"] in ("ended", "released"), "its end is seen")
    assert daemon.findings(grant=grant)[0]["act"] == "killed"
    until(lambda: not daemon.client.grants(), "the grant ends")


def test_a_killed_daemon_leaves_nobody_frozen_for_nothing(fresh):
    """The next daemon thaws grants that no longer have a reason to be frozen, and stops evaders again."""
    shell = "; ".join(
        (f"{' '.join(past(fresh, SPIN, '--alloc 1MiB --seconds 600'))} >/dev/null & echo $!", f"exec {SPIN}")
    )
    tenant = Tenant(fresh.run("1GiB", "25%", "sh", "-c", shell))
    evader = int(tenant.ready)
    [found] = until(lambda: fresh.findings(pid=evader, act="frozen"), "the evader is found")
    group = fresh.cgroup(found["grant"])
    until(lambda: freezer.frozen(group), "its grant is frozen")
    fresh.kill()
    fresh.start()
    until(lambda: fresh.findings(pid=evader, act="frozen"), "the next daemon finds it")
    fresh.kill()
    os.kill(evader, signal.SIGKILL)
    if not group.v2:
        freezer.thaw(group)
        until(lambda: not alive(evader), "the evader has ended")
        freezer.freeze(group)
    until(lambda: not alive(evader), "the evader has ended")
    assert freezer.frozen(group)
    fresh.start()
    until(lambda: not freezer.frozen(group), "the next daemon thaws it")
    tenant.kill()
    assert not list((fresh.layout.run / "frozen").iterdir())


def test_what_an_engine_has_paused_is_not_resumed(daemon, tmp_path):
    _, grant = daemon.join()
    group = daemon.cgroup(grant)
    freezer.freeze(group)
    until(lambda: freezer.frozen(group), "it is paused")
    holds = Holds(tmp_path / "frozen")
    holds.take(group, "one")
    holds.take(group, "two")
    holds.release(group, "one")
    holds.release(group, "two")
    assert freezer.frozen(group)
    # Resumed by its engine meanwhile, it stays frozen only because of the holds.
    holds.take(group, "one")
    freezer.thaw(group)
    holds.renew()
    until(lambda: freezer.frozen(group), "it is frozen again")
    holds.release(group, "one")
    until(lambda: not freezer.frozen(group), "it goes on")
    assert not list((tmp_path / "frozen").iterdir())


def test_neither_the_daemons_own_cgroup_nor_the_root_is_ever_frozen(tmp_path):
    own = below(os.getpid(), "none").path.parent
    for path in filter(None, (own, Hierarchies.of().unified, Hierarchies.of().freezer)):
        with pytest.raises(FailedError, match="never frozen"):
            freeze(Cgroup(path, Hierarchies.of().unified is not None))
    assert not freeze(Cgroup(tmp_path, v2=True))
    assert not list(tmp_path.iterdir())


def test_a_bad_rule_is_refused(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    for text, answer in (('evader = "hang"', "evader"), ("grace_seconds = -1", "grace_seconds is -1")):
        config.write_text(f"[audit]\n{text}\n")
        done = make_daemon().cli("daemon", "--config", config)
        assert done.returncode == 2
        assert answer in done.stderr


SHARED = """
import ctypes, os, signal, socket, struct, sys
mine, theirs = socket.socketpair()
if (exporter := os.fork()) == 0:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory, file = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    what = struct.pack("<iiiiQ8x", 1, 1, 1, 0, 0)  # pinned, a file, on device 0
    assert cuda.cuMemCreate(ctypes.byref(memory), ctypes.c_size_t(512 << 20), what, ctypes.c_ulonglong(0)) == 0
    assert cuda.cuMemExportToShareableHandle(ctypes.byref(file), memory, 1, ctypes.c_ulonglong(0)) == 0
    socket.send_fds(theirs, [b"x"], [file.value])
    signal.pause()
_, [kept], _, _ = socket.recv_fds(mine, 1, 1)
os.kill(exporter, signal.SIGKILL)
os.waitpid(exporter, 0)
print("shared", flush=True)
sys.stdin.readline()
os.close(kept)
print("closed", flush=True)
sys.stdin.readline()
"""


def test_memory_that_outlives_who_shared_it_is_reported(make_daemon):
    """The driver keeps the memory while any process has a descriptor of it. It is reported; no grant is charged, and no
    process is stopped."""
    daemon = make_daemon().quicken(unowned=1).start()
    process = subprocess.Popen(
        daemon.run("1GiB", "10%", sys.executable, "-c", SHARED, gpu="0"),
        env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "shared\n"
        [found] = until(lambda: daemon.findings(kind="unowned"), "it is told")
        assert (found["device"], found["grant"], found["act"], found["outcome"]) == (0, None, "told", "")
        assert 512 << 20 <= found["memory_bytes"] < 600 << 20
        assert "device 0 has memory in use that no process has: 512" in daemon.cli_here("events", "--findings").stdout
        assert "are in use and no process has them" in daemon.cli_here("doctor").stdout
        process.stdin.write("\n")
        assert process.stdout.readline() == "closed\n"
        until(lambda: daemon.findings(kind="unowned")[0]["outcome"] == "within", "it is over")
        process.communicate("\n")
    assert [one["kind"] for one in daemon.findings()] == ["unowned"]
