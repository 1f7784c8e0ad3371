"""gpushare-hook: its requests, its messages, and its failures."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from run.waiting import until

STATE = json.dumps({"ociVersion": "1.0.2", "id": "c1", "status": "created", "pid": 4711, "bundle": "/b"}).encode()


def run(programs: Path, path: Path, state: bytes = STATE, verb: str = "create-runtime", grant: str = "g1"):
    return subprocess.run(
        [programs / "gpushare-hook", verb, "--grant", grant, "--socket", path],
        input=state, capture_output=True, timeout=30, env={"GPUSHARE_SOCKET": "/nowhere"},
    )  # fmt: skip


def line(result) -> str:
    """The only line on stderr."""
    text = result.stderr.decode()
    assert text.count("\n") == 1 and text.endswith("\n"), text
    return text.strip()


def test_hands_the_state_on(programs, daemon):
    result = run(programs, daemon.path)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert [(r.target, r.body) for r in daemon.requests] == [("/v1/hooks/create-runtime?grant=g1", STATE)]


def test_state_as_crun_writes_it(programs, daemon):
    state = STATE.replace(b"/b", b"\\/b").replace(b", ", b",\n  ")
    assert run(programs, daemon.path, state).returncode == 0
    assert daemon.requests[0].body == state


def test_refusal_is_the_daemons_line(programs, daemon):
    message = 'no share left on device 0: asked 50%, free 25% "é\u2028" \n\x1b[31mred'
    daemon.answer = lambda _: (409, {"error": {"code": "refused", "message": message}})
    result = run(programs, daemon.path)
    assert result.returncode == 1
    assert line(result) == 'gpushare: no share left on device 0: asked 50%, free 25% "é\u2028"   [31mred'


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 500 X\r\n\r\nnot json",
        b"HTTP/1.1 500 X\r\n\r\n" + b"[" * 5000,
        b'HTTP/1.1 500 X\r\n\r\n{"error": {"message": 7}}',
        b'HTTP/1.1 500 X\r\n\r\n{"error": {"message": "\\ud800\\u00"}}',
        b"HTTP/1.1 500 X\r\n\r\n" + b"x" * 100000,
    ],
)
def test_nonsense_from_the_daemon_is_a_refusal(programs, daemon, answer):
    daemon.answer = lambda _: answer
    result = run(programs, daemon.path)
    assert result.returncode == 1
    assert line(result).startswith("gpushare: ")


def test_daemon_absent(programs, tmp_path):
    """Where none has run since the machine was started, no start waits for one."""
    result = run(programs, tmp_path / "none.sock")
    assert result.returncode == 1
    missing = f"no daemon answers at {tmp_path}/none.sock (No such file or directory)"
    assert line(result) == f"gpushare: {missing}: start one with `gpushare daemon`"


def test_what_is_no_socket_is_not_waited_for(programs, tmp_path):
    """Connecting to a file or a directory is refused as by a socket that a killed daemon has left."""
    (tmp_path / "file").touch()
    for name in ("", "file"):
        result = run(programs, tmp_path / name)
        assert result.returncode == 1
        assert line(result).endswith("(Connection refused): start one with `gpushare daemon`")


def left(path: Path, by: str) -> None:
    """What a daemon leaves that was `killed` or `stopped`."""
    (path.parent / "daemon.lock").touch()
    if by == "killed":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


@pytest.mark.slow  # 10 s of waiting
@pytest.mark.parametrize("by", ["killed", "stopped"])
def test_a_daemon_that_does_not_come_back_is_given_up(programs, tmp_path, by):
    left(tmp_path / "node.sock", by)
    began = time.monotonic()
    result = run(programs, tmp_path / "node.sock")
    assert result.returncode == 1
    assert "no daemon answers at" in line(result)
    assert "waited 10." in line(result)
    assert "look why it is away" in line(result)
    assert time.monotonic() - began < 20, "an engine waits for the hook that long"


@pytest.mark.parametrize("by", ["killed", "stopped"])
def test_a_daemon_that_comes_back_is_waited_for(programs, daemon, by):
    path = daemon.path.with_name("other.sock")
    left(path, by)
    command = [programs / "gpushare-hook", "create-runtime", "--grant", "g1", "--socket", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as hook:
        hook.stdin.write(STATE)
        hook.stdin.close()

        def has_tried() -> bool:
            assert hook.poll() is None, hook.stderr.read()
            with contextlib.suppress(OSError):  # it may close one meanwhile
                return any(os.readlink(one).startswith("socket:") for one in Path(f"/proc/{hook.pid}/fd").iterdir())
            return False

        until(has_tried, "it has a socket, and nobody to connect to")
        path.unlink(missing_ok=True)
        back = type(daemon)(path)
        assert hook.wait(30) == 0, hook.stderr.read()
        back.close()
    assert [request.body for request in back.requests] == [STATE]


MORTAL = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1] + ".new")
server.listen(8)
os.rename(sys.argv[1] + ".new", sys.argv[1])
connection, _ = server.accept()
connection.recv(65536)
print("asked", flush=True)
"""


@pytest.mark.parametrize("mortal", [1, 2, 3])
def test_a_request_with_which_a_daemon_ends_goes_to_the_next_one(programs, daemon, tmp_path, mortal):
    """And to no third one: it may be what kills them."""
    path = tmp_path / "other.sock"
    left(path, "killed")
    command = [programs / "gpushare-hook", "create-runtime", "--grant", "g1", "--socket", path]
    asked, back = 0, None
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as hook:
        hook.stdin.write(STATE)
        hook.stdin.close()
        for _ in range(mortal):
            with subprocess.Popen([sys.executable, "-c", MORTAL, path], stdout=subprocess.PIPE) as one:
                until(lambda one=one: one.poll() is not None or hook.poll() is not None, "it is asked, or nobody is")
                one.kill()
                asked += one.stdout.read() == b"asked\n"
        if hook.poll() is None:
            path.unlink()
            back = type(daemon)(path)
        status = hook.wait(30)
        reply = hook.stderr.read().decode()
    if back is not None:
        back.close()
    assert (asked, status) == ((1, 0) if mortal == 1 else (2, 1)), reply
    assert status == 0 or "it ended meanwhile: try again" in reply or "Connection reset by peer" in reply


def test_a_daemon_that_is_being_killed_may_still_seem_to_accept(programs, daemon):
    daemon.answer = lambda _: b"" if len(daemon.requests) < 4 else (200, {})
    assert run(programs, daemon.path).returncode == 0
    daemon.answer = lambda _: b""
    assert "it ended meanwhile: try again" in line(run(programs, daemon.path))


@pytest.mark.slow  # 10 s of waiting
def test_slow_daemon_is_given_up(programs, daemon):
    daemon.answer = lambda _: None
    began = time.monotonic()
    result = run(programs, daemon.path)
    assert result.returncode == 1
    assert time.monotonic() - began < 20
    assert "did not answer: timed out" in line(result)


@pytest.mark.promise("hook-reads-no-bundle-trust")
def test_wrong_peer_gets_nothing(programs, foreign_socket):
    result = run(programs, foreign_socket)
    assert result.returncode == 1
    assert "served by uid 65534, not by root" in line(result)


@pytest.mark.promise("hook-reads-no-bundle-trust")
@pytest.mark.parametrize("state", [b"", b"{", b"[]", b"null", b"{} {}", b'{"a": "\n"}', b'{"pid": 1', b"\0" * 100])
def test_malformed_state(programs, daemon, state):
    result = run(programs, daemon.path, state)
    assert result.returncode == 1
    assert "not a JSON object" in line(result)
    assert daemon.requests == []


def test_oversized_state(programs, daemon):
    result = run(programs, daemon.path, b'{"a": "' + b"x" * 65536 + b'"}')
    assert result.returncode == 1
    assert "more than 65536 bytes" in line(result)
    assert daemon.requests == []


def test_largest_state(programs, daemon):
    state = b'{"a": "' + b"x" * (65536 - 9) + b'"}'
    assert run(programs, daemon.path, state).returncode == 0
    assert daemon.requests[0].body == state


def test_stdin_that_never_ends(programs, daemon):
    process = subprocess.Popen(
        [programs / "gpushare-hook", "create-runtime", "--grant", "g", "--socket", daemon.path],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.wait(20) == 1
        assert b"timed out" in process.stderr.read()


@pytest.mark.parametrize("grant", ["", "a b", "../x", "a?b", "a\nb", "x" * 64])
def test_grant_that_is_none(programs, daemon, grant):
    result = run(programs, daemon.path, grant=grant)
    assert result.returncode == 2
    assert daemon.requests == []


def test_usage(programs):
    for arguments in (
        [],
        ["create-runtime"],
        ["destroy", "--grant", "g"],
        ["create-runtime", "--grant"],
        ["precreate", "--grant", "g"],
    ):
        result = subprocess.run([programs / "gpushare-hook", *arguments], input=b"", capture_output=True)
        assert result.returncode == 2
        assert line(result).startswith("gpushare: usage:")


def test_killed_hook_leaves_the_connection(programs, daemon):
    """kill -9 during a call: the daemon sees the connection close, and nothing else remains."""
    daemon.answer = lambda _: None
    process = subprocess.Popen(
        [programs / "gpushare-hook", "create-runtime", "--grant", "g", "--socket", daemon.path],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        process.stdin.write(STATE)
        process.stdin.close()
        until(lambda: daemon.requests, "the hook has called", 10)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        assert len(daemon.requests) == 1


PLACED = {"grant": "g1", "root": "/", "mounts": [], "hidden": []}


@pytest.fixture
def made(tmp_path) -> bytes:
    """The state of a container whose first process is the test's own."""
    (tmp_path / "config.json").write_text('{"annotations": {"a": "b"}}')
    return json.dumps({"id": "c1", "pid": os.getpid(), "bundle": str(tmp_path)}).encode()


def test_place_hands_state_and_config_on(programs, daemon, made):
    run(programs, daemon.path, made, "place", "any")
    (request,) = daemon.requests
    assert request.target == "/v1/oci/place?grant=any"
    assert json.loads(request.body) == {"state": json.loads(made), "config": {"annotations": {"a": "b"}}}


@pytest.mark.parametrize(
    ("answer", "states"),
    [
        (PLACED, "no mount namespace of its own"),
        ({}, "without the container's root"),
        ({"root": "/"}, "without mounts"),
        ({**PLACED, "mounts": [{"destination": "/a"}]}, "a mount of nothing"),
        ({**PLACED, "mounts": [{"destination": "/a", "source": "/nowhere"}]}, "/nowhere cannot be mounted"),
        ({**PLACED, "mounts": [{"destination": "/a", "source": "/dev/null"}] * 513}, "more than 512 mounts"),
        ([], "not a JSON object"),
    ],
)
def test_place_changes_nothing_of_the_hosts(programs, daemon, made, answer, states):
    daemon.answer = lambda _: (200, answer)
    result = run(programs, daemon.path, made, "place", "any")
    assert result.returncode == 1
    assert states in line(result)
    assert " /a " not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize(
    ("state", "states"),
    [
        ({"pid": 4711}, "no pid or no bundle"),
        ({"bundle": "/"}, "no pid or no bundle"),
        ({"pid": 1, "bundle": "/"}, "no pid or no bundle"),
        ({"pid": "4711", "bundle": "/"}, "no pid or no bundle"),
        ({"pid": 4711, "bundle": "relative"}, "no pid or no bundle"),
        ({"pid": 4711, "bundle": "/nowhere"}, "bundle cannot be opened"),
        ({"pid": 4711, "bundle": "/proc"}, "config.json: No such file"),
    ],
)
def test_place_of_what_is_no_container(programs, daemon, state, states):
    result = run(programs, daemon.path, json.dumps(state).encode(), "place", "any")
    assert result.returncode == 1
    assert states in line(result)
    assert daemon.requests == []


def test_is_static(programs):
    if "GPUSHARE_HOOKS_DIR" in os.environ:
        pytest.skip("a sanitized build is dynamic")
    for name in ("gpushare-hook", "gpushare-runtime"):
        headers = subprocess.run(["readelf", "-l", programs / name], capture_output=True, text=True, check=True).stdout
        assert "INTERP" not in headers


def precreate(programs, socket, config: bytes):
    command = [programs / "gpushare-hook", "precreate", "--socket", socket]
    return subprocess.run(command, input=config, capture_output=True, timeout=30)


ASKS = b'{"annotations": {"gpushare.dev/memory": "1GiB"}}'


def test_precreate_prints_the_edited_config(programs, daemon):
    daemon.answer = lambda _: (200, {"grant": "g1", "config": {"edited": [1, 2]}})
    result = precreate(programs, daemon.path, ASKS)
    assert (result.returncode, json.loads(result.stdout)) == (0, {"edited": [1, 2]})
    assert json.loads(daemon.requests[0].body) == {"bundle": "/", "config": json.loads(ASKS)}


def test_precreate_without_a_request_needs_no_daemon(programs, tmp_path):
    result = precreate(programs, tmp_path / "none", b'{"a": 1}')
    assert (result.returncode, result.stdout) == (0, b'{"a": 1}')


def test_precreate_reports_who_asks_in_another_way(programs, daemon):
    daemon.answer = lambda _: (500, {})
    config = b'{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}'
    result = precreate(programs, daemon.path, config)
    assert (result.returncode, result.stdout, result.stderr) == (0, config, b"")
    until(lambda: daemon.requests, "the daemon was told", 10)
    assert daemon.requests[0].target == "/v1/oci/attempt"
    assert json.loads(daemon.requests[0].body) == {"bundle": "/", "config": json.loads(config)}


@pytest.mark.parametrize("config", [ASKS[:-1], b"", b"[]"])
def test_precreate_of_what_is_no_config(programs, daemon, config):
    result = precreate(programs, daemon.path, config)
    assert (result.returncode, result.stdout) == (1, b"")
    assert line(result)


def test_refused_precreate_reports_it_when_the_container_starts(programs, daemon):
    """Podman shows the output of a createRuntime hook, but not of a precreate hook."""
    daemon.answer = lambda _: (409, {"error": {"code": "refused", "message": 'device "0" is full'}})
    result = precreate(programs, daemon.path, ASKS + b"\n")
    assert result.returncode == 0
    edited = json.loads(result.stdout)
    hook = edited.pop("hooks")["createRuntime"][0]
    assert edited == json.loads(ASKS)
    assert hook["path"] == str(programs / "gpushare-hook")
    refusal = subprocess.run([hook["path"], *hook["args"][1:]], input=b"{}", capture_output=True)
    assert refusal.returncode == 1
    assert line(refusal) == 'gpushare: device "0" is full'


@pytest.mark.parametrize(
    ("runtime", "options", "notified"),
    [
        ("crun", ["--systemd-cgroup", "--log-format=json", "--log", "LOG", "create"], True),
        ("crun", ["--log=LOG", "--log-format", "json", "create"], True),
        ("crun", ["--log-format=text", "--log", "LOG", "create"], False),
        ("crun", ["create", "--log-format=json", "--log", "LOG"], False),
        ("runc", ["--log-format=json", "--log", "LOG", "create"], False),
    ],
)
def test_under_crun_the_reason_is_in_its_log(programs, tmp_path, runtime, options, notified):
    """crun discards a hook's output, and the engine shows what is in crun's log, which then has this one error
    alone."""
    log, parent = tmp_path / "oci-log", tmp_path / runtime
    log.touch()
    shutil.copy("/bin/sh", parent)
    options = [str(log).join(option.split("LOG")) for option in options]
    # The runtime has its log open, and appends to it.
    script = f"exec 3>>{log}\n{programs}/gpushare-hook refuse 'no \"share\" left' </dev/null\necho ended >&3\n"
    done = subprocess.run([parent, "-s", "--", *options], input=script, capture_output=True, text=True, timeout=30)
    assert done.stderr == 'gpushare: no "share" left\n'
    if notified:
        assert json.loads(log.read_text()) == {"level": "error", "msg": 'gpushare: no "share" left'}
    else:
        assert log.read_text() == "ended\n"


@pytest.mark.parametrize("kind", ["link", "second name", "fifo"])
def test_a_log_that_is_no_file_of_its_own_stays(programs, tmp_path, kind):
    """Such as /dev/stderr, which is a symlink."""
    log, other, parent = tmp_path / "log", tmp_path / "other", tmp_path / "crun"
    other.write_text("others'")
    {"link": log.symlink_to, "second name": log.hardlink_to, "fifo": lambda _: os.mkfifo(log)}[kind](other)
    before = log.lstat()
    shutil.copy("/bin/sh", parent)
    script = f"{programs}/gpushare-hook refuse 'no share' </dev/null\n"
    command = [parent, "-s", "--", "--log-format=json", f"--log={log}", "create"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=30)
    assert done.stderr == "gpushare: no share\n"
    assert (log.lstat().st_ino, other.read_text()) == (before.st_ino, "others'")


@pytest.mark.parametrize("mode", [0o666, 0o600])
def test_a_rootless_engine_is_notified(programs, daemon, mode):
    """The daemon is root, which is nobody in a rootless engine's user namespace."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    with tempfile.TemporaryDirectory(prefix="gst-") as directory:
        os.chmod(directory, 0o755)
        served = type(daemon)(Path(directory) / "node.sock")
        served.path.chmod(mode)
        command = ["unshare", "--user", "--map-root-user", programs / "gpushare-hook", "create-runtime", "--grant", "g"]
        rootless = subprocess.run(
            [*command, "--socket", served.path],
            input=STATE, capture_output=True, timeout=30, user=65534, group=65534, extra_groups=[],
        )  # fmt: skip
        served.close()
    assert (rootless.returncode, served.requests) == (1, [])
    assert line(rootless) == "gpushare: a rootless engine can give no share: start this container as root"


def test_precreate_without_a_daemon(programs, tmp_path):
    hook = json.loads(precreate(programs, tmp_path / "none", ASKS).stdout)["hooks"]["createRuntime"][0]
    assert hook["args"][1] == "refuse"
    assert "no daemon answers at" in hook["args"][2]
