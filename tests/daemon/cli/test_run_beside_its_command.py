"""`gpushare run --simulate` and `--report`: what stays beside a command is seen in one line at its end, and in nothing
else; and nothing of it is left, however it ends."""

import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from machine import ordinary
from run import running
from run.waiting import until

from gpushare.cli.grants import private
from gpushare.client import Client
from gpushare.text.units import parse_size

SIMULATE = (*running.GPUSHARE, "run", "--simulate")
SIMULATED = "gpushare: simulated, 1x16GiB: kernels compute nothing and take a modelled time\n"
GOT = re.compile(r"gpushare: (\S+) and (\S+): got (\d+)% of the device in (\S+) s, waited (\S+) s, peak (\S+)\n")


def words_of(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def parent_of(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdecimal()]


def children(pid: int) -> list[int]:
    return [int(one) for one in pids() if parent_of(one) == pid]


def directory_of(run: "subprocess.Popen[str]") -> Path:
    """Where everything of a run is. It is known once its daemon has been started."""
    [daemon] = until(
        lambda: [
            words for one in children(run.pid) for two in children(one) if "daemon" in (words := words_of(str(two)))
        ]
    )
    return Path(daemon[daemon.index("--state-dir") + 1])


def left(directory: Path) -> list[str]:
    """What there is of a run's directory and of the processes that work in it."""
    return [str(directory)] * directory.exists() + [pid for pid in pids() if str(directory) in " ".join(words_of(pid))]


def begun(*command: str) -> "subprocess.Popen[str]":
    """An ordinary user's run, once its command runs: that has to say something first."""
    run = ordinary.begun([*SIMULATE, *command])
    assert run.stdout.readline(), run.stderr.read()
    return run


def closed(run: "subprocess.Popen[str]") -> str:
    """Ends the run's input, and returns what it says on stderr."""
    _, errors = run.communicate(timeout=60)
    return str(errors)


def test_an_ordinary_user_needs_one_command():
    """As on a machine without gpushare's daemon: the whole device, the status of the command, on stderr two lines and
    what was refused, and two runs have two devices."""
    much = f"{running.SPIN} --alloc 11GiB --seconds 0.1 >&2"
    fill = f"{much}; {running.SPIN} --alloc 9GiB --kernel-ns 1000000 --seconds 0.3 >&2; echo filled; read x; exit 7"
    one, other = (begun("1x16GiB", "--memory", "10G", "--", "sh", "-c", f"({fill}) 2>/dev/null") for _ in range(2))
    assert directory_of(one) != directory_of(other)
    directory = directory_of(one)
    assert directory.stat().st_mode & 0o777 == 0o700
    for run in (one, other):
        errors = closed(run)
        assert run.returncode == 7
        assert errors.startswith(SIMULATED)
        refused, got = errors.removeprefix(SIMULATED).splitlines(keepends=True)
        assert (
            refused.startswith("gpushare: refused memory when it asked for 11GiB") and "with --memory 12GiB" in refused
        )
        asked, time, got, _, _, peak = GOT.fullmatch(got).groups()
        assert (asked, time) == ("10GiB", "100%")
        assert int(got) > 0 and re.fullmatch(r"9\.0\dGiB", peak)
    assert not left(directory)


def test_a_caller_that_ignores_the_end_of_its_children():
    """As shells and service managers may; the command ignores it too, as if it were alone."""
    ignored = "import signal; print(signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN)"
    words = [*SIMULATE, "--", sys.executable, "-c", ignored]
    done = subprocess.run(
        ["bash", "-c", 'trap "" CHLD; exec "$@"', "bash", *words], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_a_users_python_modules_are_for_the_command_alone(tmp_path):
    for name in ("select", "typing", "argparse", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the module that gpushare wants')\n")
    installed = Path(sys.executable).parent / "gpushare"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [installed, "run", "--simulate", "--", "printenv", "PYTHONPATH"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}\n"), done.stderr


def test_nothing_is_left_of_a_killed_run():
    run = begun("--", "sh", "-c", "echo $$; exec sleep 1000")
    directory = directory_of(run)
    [command] = [pid for pid in children(run.pid) if "sleep" in words_of(str(pid))]
    run.kill()
    run.communicate()
    until(lambda: not left(directory) and "sleep" not in words_of(str(command)))


def test_daemon_and_keeper_are_killed():
    run = begun(
        "--",
        "sh",
        "-c",
        f"echo; {running.SPIN} --alloc 1GiB --kernel-ns 1000000 --seconds 0.3 >/dev/null; read x; true",
    )
    directory = directory_of(run)
    [keeper] = [pid for pid in children(run.pid) if "daemon" in str([words_of(str(one)) for one in children(pid)])]
    [first] = [pid for pid in children(keeper) if "daemon" in words_of(str(pid))]
    os.kill(first, signal.SIGKILL)
    until(lambda: [pid for pid in children(keeper) if pid != first and "daemon" in words_of(str(pid))])
    until(lambda: (directory / "run" / "node.sock").exists())
    os.kill(keeper, signal.SIGKILL)
    closed(run)
    assert run.returncode == 0
    assert not left(directory)


def test_what_cannot_be_simulated_is_refused_before_anything_starts():
    for options, status, message in (
        (["1x16GiB", "--memory", "17GiB"], 125, "17GiB of memory does not fit"),
        (["16"], 2, "write for example 2x16GiB"),
        (["python3"], 2, "write -- before the command"),
        (["--grant", "g-1"], 2, "leave out --grant and --socket"),
    ):
        done = subprocess.run([*SIMULATE, *options, "--", "echo", "ran"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert message in done.stderr


def report(daemon, *command: str) -> "subprocess.Popen[str]":
    words = [*running.GPUSHARE, *("run", "--report", "--memory", "1GiB", "--time", "25%", "--"), *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=daemon.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_the_figures_are_those_of_the_simulator(daemon):
    run = report(daemon, "sh", "-c", f"echo $$; exec {running.SPIN} --alloc 512MiB --kernel-ns 1000000 --seconds 1")
    pid = int(run.stdout.readline())
    asked, time, got, seconds, _, peak = GOT.fullmatch(closed(run)).groups()
    books = next(one for n in range(2) for one in daemon.books(n)["processes"] if one["pid"] == pid)
    assert (asked, time) == ("1GiB", "25%")
    assert parse_size(peak) == books["peak_bytes"]
    assert int(got) / 100 * float(seconds) == pytest.approx(books["busy_ns"] / 1e9, rel=0.1, abs=0.1)


def test_a_command_beside_which_something_stays_is_treated_as_if_it_were_alone(daemon):
    for script, status in (("exit 3", 3), ("kill -TERM $$", -signal.SIGTERM), ("kill -KILL $$", -signal.SIGKILL)):
        run = report(daemon, "sh", "-c", script)
        assert "did nothing on the device" in closed(run)
        assert run.returncode == status, script
    run = report(daemon, "sh", "-c", "trap 'echo told; exit 5' TERM; echo; kill -STOP $$; while :; do sleep 0.01; done")
    run.stdout.readline()
    until(lambda: state_of(run.pid) == "T")  # as the command
    run.send_signal(signal.SIGCONT)
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    assert (out, run.returncode) == ("told\n", 5)
    run = report(daemon, "/dev/null")
    assert (closed(run), run.returncode) == ("gpushare: /dev/null: not executable\n", 126)


def test_where_no_process_can_be_made_that_is_said_and_nothing_is_left(daemon, monkeypatch, tmp_path):
    def fork():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(private, "in_memory", lambda _: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mask, descriptors = signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.listdir("/proc/self/fd")
    for options in (["--simulate"], ["--report", "--memory=1GiB", "--time=25%"]):
        done = daemon.cli_here("run", *options, "--", "true")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1), done.stderr
        assert "no process can be started (Resource temporarily unavailable): end some" in done.stderr
    assert not daemon.client.grants() and not list(tmp_path.iterdir())
    assert (signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.listdir("/proc/self/fd")) == (mask, descriptors)


def test_a_run_waits_for_a_daemon_that_is_being_started(tmp_path):
    """And only for one that will serve where it asks."""
    socket = tmp_path / "run" / "node.sock"
    started = [*running.GPUSHARE, "daemon", "--simulate", "1x1GiB", "--state-dir"]
    with subprocess.Popen([*started, str(tmp_path)], stdout=subprocess.DEVNULL) as daemon:
        try:
            elsewhere = tmp_path / "none.sock"
            run = [*running.GPUSHARE, "run", f"--socket={elsewhere}", "--memory=1GiB", "--time=25%", "--", "true"]
            none = subprocess.run(run, capture_output=True, text=True, check=False)
            assert none.returncode == 125
            assert f"no daemon at {elsewhere}: start one with `gpushare daemon`" in none.stderr
            assert none.stderr.endswith("Without a GPU: `gpushare run --simulate -- CMD` needs no daemon\n")
            assert Client(socket).patient(60).version()  # as the run is, for less long
        finally:
            daemon.terminate()
