"""The tracepoint tier in a daemon: limits are enforced and its actions reported. A terminal stands in for the
driver."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from run import built, running
from run.waiting import until

from gpushare.daemon.guard.tracepoint import SLACK_BYTES

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MIB = 1 << 20
LIMIT = (1 << 30) + SLACK_BYTES
TRACEPOINT = "tracepoint"
KILL = """
[guard]
tracepoint = "kill"
"""


def start(directory, terminal, version="580.65.06", config=KILL, **seconds: float) -> running.Daemon:
    """`seconds`: as Daemon.quicken takes them."""
    directory.mkdir()
    file = directory / "gpushare.toml"
    file.write_text(config)
    standing = f"{terminal.nodes.major}:{terminal.nodes.first},{version}"
    daemon = running.Daemon(directory / "s", env={"GPUSHARE_SIM_RM": standing}, options=["--config", str(file)])
    return daemon.quicken(**seconds).start()


@pytest.fixture(scope="module")
def node(tmp_path_factory, terminal) -> Iterator[running.Daemon]:
    daemon = start(tmp_path_factory.mktemp("guard") / "node", terminal)
    yield daemon
    daemon.stop()


class Run:
    """rmtenant in a share of 1 GiB, run `times` times in a row."""

    def __init__(self, daemon: running.Daemon, terminal, times: int = 1) -> None:
        self.daemon = daemon
        command = [*running.GPUSHARE, "run", "--memory", "1GiB", "--time", "10%", "--"]
        one = f"env -i {built.program('rmtenant')} {terminal.path}"
        self.process = subprocess.Popen(
            [*command, "sh", "-c", ";".join([one] * (times - 1) + [f"exec {one}"])],
            env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        self.alloc(10, 1)

    def alloc(self, number: int, size: int) -> str:
        return self.say(f"alloc 1 {number} {size} 0")

    def say(self, words: str) -> str:
        self.process.stdin.write(f"{words}\n")
        return self.process.stdout.readline()

    def grant(self) -> dict:
        return next(one for one in self.daemon.client.grants() if one["pid"])

    def end(self) -> int:
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(20)


def walls(found: dict) -> dict[str, dict]:
    return {wall["name"]: wall for wall in found["walls"]}


@pytest.mark.promise("driver-requests-are-counted")
def test_an_evader_is_killed_and_notified(node, terminal):
    one = Run(node, terminal)
    grant = one.grant()
    assert walls(node.client.node())[TRACEPOINT]["holds"]
    assert walls(grant)[TRACEPOINT]["holds"]
    since = node.client.call("GET", "/v1/grants")["rv"]
    assert one.alloc(11, 1 << 30) == "0\n"
    assert one.alloc(12, 2 * SLACK_BYTES) == ""
    assert one.end() == -9
    exceeded = next(event["object"] for event in node.client.watch(since, 20) if event["name"] == "MemoryExceeded")
    assert exceeded["id"] == grant["id"]
    assert f"asked the driver for {2 * SLACK_BYTES} bytes past the limit and was killed" in exceeded["notice"]
    assert f"may have {LIMIT}" in node.log.read_text()


QUICK = {"settle": 0.1, "kept": 2}


def beyond_by_a_helper(daemon: running.Daemon, terminal) -> tuple[Run, int]:
    """A process has ended, its helper still has the descriptor, and the next process allocates as much. Returns the
    run and the helper's pid."""
    one = Run(daemon, terminal, times=2)
    assert one.alloc(11, 1 << 30) == "0\n"
    helper = int(one.say("child"))
    parent = int(re.search(r"PPid:\t(\d+)", Path(f"/proc/{helper}/status").read_text())[1])
    daemon.process.send_signal(signal.SIGSTOP)  # else it looks before the next process allocates
    try:
        os.kill(parent, signal.SIGKILL)
        until(lambda: not running.alive(parent), "the first process has ended")
        assert one.alloc(12, 1 << 30) == "0\n"
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    return one, helper


def test_who_took_more_while_it_was_in_doubt_is_killed_without_another_call(tmp_path, terminal):
    daemon = start(tmp_path / "node", terminal, **QUICK)
    try:
        honest, helper = beyond_by_a_helper(daemon, terminal)
        os.kill(helper, signal.SIGKILL)
        since = daemon.client.call("GET", "/v1/grants")["rv"]
        one, _ = beyond_by_a_helper(daemon, terminal)
        assert one.process.wait(20) == -9
        exceeded = next(
            event["object"] for event in daemon.client.watch(since, 20) if event["name"] == "MemoryExceeded"
        )
        assert "its processes keep" in exceeded["notice"]
        assert "they were killed" in exceeded["notice"]
        assert honest.alloc(13, MIB) == "0\n", "it held too much for a moment, and lives"
        assert (honest.end(), one.end()) == (0, -9)
    finally:
        daemon.stop()


def test_where_it_only_logs_it_goes_on_with_what_it_keeps(tmp_path, terminal):
    daemon = start(tmp_path / "node", terminal, config='[guard]\ntracepoint = "log"', **QUICK)
    try:
        since = daemon.client.call("GET", "/v1/grants")["rv"]
        one, helper = beyond_by_a_helper(daemon, terminal)
        exceeded = next(
            event["object"] for event in daemon.client.watch(since, 20) if event["name"] == "MemoryExceeded"
        )
        assert "they go on" in exceeded["notice"]
        os.kill(helper, signal.SIGKILL)
        assert one.alloc(13, MIB) == "0\n"
        assert one.end() == 0
    finally:
        daemon.stop()


def test_a_grant_that_grows_may_have_more(node, terminal):
    one = Run(node, terminal)
    node.client.resize(one.grant()["id"], memory="2GiB")
    assert one.alloc(11, 2 << 30) == "0\n"
    node.client.resize(one.grant()["id"], memory="1GiB")
    assert one.alloc(12, 1) == ""
    assert one.end() == -9


def test_each_grant_begins_at_zero(node, terminal):
    for _ in range(2):
        one = Run(node, terminal)
        assert one.alloc(11, 1 << 30) == "0\n"
        assert one.end() == 0


def test_what_ended_is_given_back_in_a_grant_that_goes_on(node, terminal, tmp_path):
    """Processes allocate the whole limit one after the other, each as soon as its predecessor has ended."""
    script = f"for i in $(seq 20); do echo alloc 1 10 {1 << 30} 0 | {built.program('rmtenant')} {terminal.path}; done"
    command = [*running.GPUSHARE, "run", "--memory", "1GiB", "--time", "10%", "--", "sh", "-c", script]
    done = subprocess.run(command, env=node.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n" * 20), done.stderr


def test_a_daemon_that_was_killed_holds_grants_again(tmp_path, terminal):
    daemon = start(tmp_path / "node", terminal)
    try:
        one = Run(daemon, terminal)
        daemon.kill()
        daemon.start()
        assert walls(one.grant())[TRACEPOINT]["holds"]
        assert one.alloc(11, 2 << 30) == ""
        assert one.end() == -9
    finally:
        daemon.stop()


@pytest.mark.parametrize(
    ("version", "config", "why"),
    [
        ("999.1", KILL, "the ioctls of driver 999.1 are not known"),
        ("580.1", '[guard]\ntracepoint = "log"', "it only logs, as configured"),
    ],
    ids=["unknown", "asked"],
)
def test_where_it_only_logs(tmp_path, terminal, version, config, why):
    daemon = start(tmp_path / "node", terminal, version, config)
    try:
        found = walls(daemon.client.node())[TRACEPOINT]
        assert not found["holds"]
        assert why in found["why"]
        one = Run(daemon, terminal)
        assert one.alloc(11, 2 << 30) == "0\n"
        until(lambda: "goes on" in one.grant()["notice"], "the grant shows it")
        assert one.end() == 0
    finally:
        daemon.stop()


def test_where_the_kernel_refuses(tmp_path, terminal):
    """The daemon starts, and reports that this wall does not hold."""
    daemon = start(tmp_path / "node", terminal, config='[guard]\ntracepoint = "off"')
    try:
        assert "turned off" in walls(daemon.client.node())[TRACEPOINT]["why"]
        daemon.terminate()
        refuse = "def refuse(self, layout): raise guard.FailedError('the kernel refused the BPF map settings')"
        daemon.patch("from gpushare.enforce import guard", refuse, "guard.Guard.__init__ = refuse")
        (daemon.state_dir.parent / "gpushare.toml").write_text(KILL)
        daemon.start()
        assert "refused the BPF map" in walls(daemon.client.node())[TRACEPOINT]["why"]
        one = Run(daemon, terminal)
        assert "refused the BPF map" in walls(one.grant())[TRACEPOINT]["why"]
        assert one.alloc(11, 2 << 30) == "0\n"
        assert one.end() == 0
    finally:
        daemon.stop()


def test_a_stand_in_that_is_malformed(tmp_path):
    done = subprocess.run(
        [*running.GPUSHARE, "daemon", "--simulate", "1x16GiB", "--state-dir", str(tmp_path / "s")],
        env={**os.environ, "GPUSHARE_SIM_RM": "nonsense"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "write MAJOR:MINOR,VERSION" in done.stderr
