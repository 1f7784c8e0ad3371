"""gpushare-runtime: calls that it passes through, configs that it edits, and containers that it refuses to start."""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import statistics
import subprocess
import time
from pathlib import Path

import pytest
from run.waiting import until

# A runtime that only prints its arguments.
RUNTIME = """#!/bin/sh
printf '%s\\n' "$0" "$@"
[ -f config.json ] || cd "$BUNDLE" 2>/dev/null
"""

ASKS = {"ociVersion": "1.0.2", "annotations": {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "25%"}}
EDITED = {"ociVersion": "1.0.2", "edited": True}


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    path = tmp_path / "runtime"
    path.write_text(RUNTIME)
    path.chmod(0o755)
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(ASKS))
    return path


class Wrapper:
    def __init__(self, program: Path, runtime: Path, socket: Path) -> None:
        self.options = [
            f"--gpushare-runtime={runtime}",
            f"--gpushare-socket={socket}",
            "--gpushare-config=/nonexistent",
        ]
        self.program = program
        self.runtime = runtime

    def __call__(self, *arguments, **options):
        return subprocess.run(
            [self.program, *self.options, *map(str, arguments)], capture_output=True, text=True, timeout=30, **options
        )


@pytest.fixture
def wrapper(programs, runtime, daemon) -> Wrapper:
    daemon.answer = lambda _: (200, {"config": EDITED, "grant": "g1"})
    return Wrapper(programs / "gpushare-runtime", runtime, daemon.path)


def started(result, *arguments) -> bool:
    """Whether the runtime ran, with exactly these arguments."""
    return result.returncode == 0 and result.stdout.split("\n")[1:-1] == [str(a) for a in arguments]


def line(result) -> str:
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("gpushare: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--bundle", "B", "c1"),
        ("create", "--bundle=B", "c1"),
        ("create", "-b", "B", "c1"),
        ("create", "-bundle", "B", "c1"),
        ("--root", "create", "--log", "/x", "--systemd-cgroup", "create", "--bundle", "B", "--pid-file", "/p", "c1"),
        ("--root=/r", "--debug", "run", "--keep", "-b", "B", "c1"),
        ("run", "--bundle", "/none", "--bundle", "B", "c1"),
        ("-root", "/r", "-log", "run", "create", "-b", "B", "c1"),
    ],
)
def test_finds_the_bundle(wrapper, daemon, bundle, arguments):
    arguments = tuple(a.replace("B", str(bundle)) for a in arguments)
    assert started(wrapper(*arguments), *arguments)
    assert json.loads((bundle / "config.json").read_text()) == EDITED
    assert daemon.requests[0].target == "/v1/oci/edit"
    assert json.loads(daemon.requests[0].body) == {"bundle": str(bundle), "config": ASKS, "starts": True}


def test_bundle_is_the_working_directory_by_default(wrapper, daemon, bundle):
    assert started(wrapper("run", "c1", cwd=bundle), "run", "c1")
    assert json.loads(daemon.requests[0].body)["bundle"] == str(bundle)


def test_bundle_with_odd_characters(wrapper, daemon, tmp_path):
    odd = tmp_path / 'a "b"\\ \n\x01é'
    odd.mkdir()
    (odd / "config.json").write_text(json.dumps(ASKS))
    assert wrapper("create", "-b", odd, "c1").returncode == 0
    assert json.loads(daemon.requests[0].body)["bundle"] == str(odd)


@pytest.mark.parametrize(
    "arguments",
    [("state", "c1"), ("delete", "create"), ("exec", "c1", "create", "--bundle", "B"), ("--version",), (),
     ("kill", "run", "-b", "B"), ("create", "--", "--bundle", "B"), ("create", "--bundle")],
)  # fmt: skip
def test_other_commands_pass_untouched(wrapper, daemon, bundle, tmp_path, arguments):
    arguments = tuple(a.replace("B", str(bundle)) for a in arguments)
    assert started(wrapper(*arguments, cwd=tmp_path), *arguments)
    assert daemon.requests == []
    assert json.loads((bundle / "config.json").read_text()) == ASKS


def test_no_request_needs_no_daemon(programs, runtime, bundle, tmp_path):
    text = json.dumps({"annotations": {"example.dev/memory": "1GiB"}})
    (bundle / "config.json").write_text(text)
    wrapper = Wrapper(programs / "gpushare-runtime", runtime, tmp_path / "none.sock")
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")
    assert (bundle / "config.json").read_text() == text


LIMIT = "nvidia.com/container.%s.gpu-memory.limit"


@pytest.mark.parametrize("where", ["io.kubernetes.cri.container-name", "io.kubernetes.container.name"])
def test_nvidias_words_for_this_container_of_a_pod(wrapper, daemon, bundle, where):
    (bundle / "config.json").write_text(json.dumps({"annotations": {LIMIT % "a-1": "1Gi", where: "a-1"}}))
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")
    assert [request.target for request in daemon.requests] == ["/v1/oci/edit"]


@pytest.mark.parametrize(
    "annotations",
    [
        {LIMIT % "main": "1Gi"},
        {LIMIT % "main": "1Gi", "io.kubernetes.container.name": "side"},
        {LIMIT % "main": "1Gi", "io.kubernetes.container.name": ""},
        {LIMIT % "main": "1Gi", "io.kubernetes.container.name": 7},
        {"nvidia.com/container.main.gpus.devices": "0", "io.kubernetes.container.name": "main"},
    ],
)
def test_other_words_of_nvidias_need_no_daemon(programs, runtime, bundle, tmp_path, annotations):
    (bundle / "config.json").write_text(json.dumps({"annotations": annotations}))
    wrapper = Wrapper(programs / "gpushare-runtime", runtime, tmp_path / "none.sock")
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")


@pytest.mark.parametrize("options", [("--log", "L", "--log-format", "json"), ("--log=L", "--log-format=json")])
def test_a_refusal_is_where_the_engine_reads_it(wrapper, daemon, bundle, tmp_path, options):
    daemon.answer = lambda _: (409, {"error": {"code": "refused", "message": 'no "share" left'}})
    log = tmp_path / "log.json"
    log.write_text('{"level":"info","msg":"before"}\n')
    options = [option.replace("L", str(log)) for option in options]
    reply = line(wrapper("--root", "/r", *options, "create", "-b", bundle, "c1"))
    *_, last = map(json.loads, log.read_text().splitlines())
    assert last == {"level": "error", "msg": reply.strip()}
    assert 'no "share" left' in reply


def test_no_log_in_another_format_and_none_through_a_link(wrapper, daemon, bundle, tmp_path):
    daemon.answer = lambda _: (409, {"error": {"code": "refused", "message": "no"}})
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for options in (("--log", tmp_path / "text"), ("--log", tmp_path / "link", "--log-format", "json")):
        line(wrapper(*options, "create", "-b", bundle, "c1"))
    assert not (tmp_path / "text").exists() and not (tmp_path / "target").exists()


NOTICED = [
    {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}},
    {"annotations": {"nvidia.com/gpu": "all"}},
    {"linux": {"devices": [{"path": "/dev/x", "type": "c", "major": 195, "minor": 0}]}},
]


@pytest.mark.promise("other-requests-are-reported")
@pytest.mark.parametrize("config", NOTICED)
def test_who_may_ask_in_another_way_is_notified_of_and_started(wrapper, daemon, bundle, config):
    text = json.dumps(config, separators=(",", ":"))
    (bundle / "config.json").write_text(text)
    daemon.answer = lambda _: (500, {})
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")
    until(lambda: daemon.requests, "the daemon was told", 10)
    assert [request.target for request in daemon.requests] == ["/v1/oci/attempt"]
    assert json.loads(daemon.requests[0].body) == {"bundle": str(bundle), "config": config, "starts": True}
    assert (bundle / "config.json").read_text() == text


@pytest.mark.parametrize("size", [100, 4 << 20])
def test_a_daemon_that_hangs_delays_no_start(programs, runtime, bundle, tmp_path, size):
    """Neither one that accepts and does not read, nor one whose accept queue is full."""
    config = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all", f"X={'x' * size}"]}}
    (bundle / "config.json").write_text(json.dumps(config))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "node.sock"))
        server.listen(0)
        wrapper = Wrapper(programs / "gpushare-runtime", runtime, tmp_path / "node.sock")
        took = []
        for _ in range(5):
            began = time.monotonic()
            assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")
            took.append(time.monotonic() - began)
        assert statistics.median(took[1:]) < 1, took


def test_request_without_daemon_starts_nothing(programs, runtime, bundle, tmp_path):
    wrapper = Wrapper(programs / "gpushare-runtime", runtime, tmp_path / "none.sock")
    assert "no daemon answers at" in line(wrapper("create", "-b", bundle, "c1"))
    assert json.loads((bundle / "config.json").read_text()) == ASKS


def test_request_with_an_escaped_slash(programs, runtime, bundle, tmp_path):
    (bundle / "config.json").write_text(json.dumps(ASKS).replace("/", "\\/"))
    wrapper = Wrapper(programs / "gpushare-runtime", runtime, tmp_path / "none.sock")
    assert "no daemon answers at" in line(wrapper("create", "-b", bundle, "c1"))


@pytest.mark.parametrize("spelt", ["\\u0067pushare.dev/", "gpushare\\u002edev\\u002F", "gpushare.de\\u0076\\/"])
def test_request_in_another_spelling(wrapper, daemon, bundle, spelt):
    """runc reads the request the same way."""
    (bundle / "config.json").write_text(json.dumps(ASKS).replace("gpushare.dev/", spelt))
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")
    assert json.loads(daemon.requests[0].body)["config"] == ASKS
    assert json.loads((bundle / "config.json").read_text()) == EDITED


NEXT, OWN = ".config.json.gpushare", ".config.json.before-gpushare"


def test_what_a_killed_wrapper_left_goes_with_the_next_start(wrapper, bundle):
    (bundle / NEXT).write_text('{"cut": ')
    os.link(bundle / "config.json", bundle / OWN)
    assert wrapper("create", "-b", bundle, "c1").returncode == 0
    assert sorted(os.listdir(bundle)) == [OWN, "config.json"]
    assert json.loads((bundle / OWN).read_text()) == ASKS


def test_a_bundle_that_no_hook_put_back_is_put_back_by_its_next_start(wrapper, daemon, bundle):
    """The runtime here calls no hook. What somebody has written since is taken instead, and never overwritten."""
    inode = (bundle / "config.json").stat().st_ino
    for _ in range(2):
        assert wrapper("create", "-b", bundle, "c1").returncode == 0
        assert json.loads((bundle / "config.json").read_text()) == EDITED
    assert [json.loads(request.body)["config"] for request in daemon.requests] == [ASKS, ASKS]
    assert (bundle / OWN).stat().st_ino == inode
    (bundle / "config.json").write_text(json.dumps({**ASKS, "mine": 1}))
    assert wrapper("create", "-b", bundle, "c1").returncode == 0
    assert json.loads(daemon.requests[-1].body)["config"] == {**ASKS, "mine": 1}
    (bundle / "config.json").write_text("{}")
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")
    assert os.listdir(bundle) == ["config.json"] and len(daemon.requests) == 3


def test_a_refused_start_leaves_the_bundle_alone(wrapper, daemon, bundle):
    before = (bundle / "config.json").stat()
    daemon.answer = lambda _: (409, {"error": {"code": "refused", "message": "no"}})
    line(wrapper("create", "-b", bundle, "c1"))
    wrapper.options[0] = "--gpushare-runtime=/proc/self/environ"
    assert "environ is not an executable" in line(wrapper("create", "-b", bundle, "c1"))
    assert os.listdir(bundle) == ["config.json"] and (bundle / "config.json").stat() == before


def test_a_start_waits_for_the_one_before_it(wrapper, daemon, bundle, runtime):
    """Until the hook, or until the runtime has ended: otherwise one might get the other's config, or one without its
    share."""
    runtime.write_text("#!/bin/sh\nread line\n")
    with subprocess.Popen(
        [wrapper.program, *wrapper.options, "run", "-b", bundle, "a"], stdin=subprocess.PIPE
    ) as first:
        until(lambda: (bundle / OWN).exists(), "the first has its config")
        with subprocess.Popen(
            [wrapper.program, *wrapper.options, "run", "-b", bundle, "b"], stdin=subprocess.PIPE
        ) as second:
            until(lambda: "nanosleep" in wchan(second.pid), "the second waits")
            assert len(daemon.requests) == 1
            first.communicate(b"\n")
            until(lambda: len(daemon.requests) == 2, "its turn has come")
            second.communicate(b"\n")
    assert [json.loads(request.body)["config"] for request in daemon.requests] == [ASKS, ASKS]


def test_a_bundle_that_somebody_locks_for_good_is_refused(wrapper, daemon, bundle):
    """Whoever may read the directory may lock it."""
    with open_directory(bundle) as fd:
        fcntl.flock(fd, fcntl.LOCK_SH)
        assert "locked" in line(wrapper("create", "-b", bundle, "c1"))
    assert not daemon.requests and os.listdir(bundle) == ["config.json"]


def test_what_the_runtime_inherits_is_not_writable(wrapper, bundle, runtime):
    runtime.write_text("#!/bin/sh\nreadlink /proc/self/fd/100; grep flags /proc/self/fdinfo/100\n")
    name, flags = wrapper("create", "-b", bundle, "c1").stdout.splitlines()
    assert name == str(bundle / "config.json")
    assert int(flags.split()[1], 8) & os.O_ACCMODE == os.O_RDONLY


@contextlib.contextmanager
def open_directory(path: Path):
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def wchan(pid: int) -> str:
    return Path(f"/proc/{pid}/wchan").read_text()


def test_refusal(wrapper, daemon, bundle):
    daemon.answer = lambda _: (409, {"error": {"code": "refused", "message": "device 0 has 2GiB left, asked 4GiB"}})
    assert line(wrapper("create", "-b", bundle, "c1")) == "gpushare: device 0 has 2GiB left, asked 4GiB\n"
    assert json.loads((bundle / "config.json").read_text()) == ASKS


@pytest.mark.parametrize("answer", [{}, {"config": None}, {"config": []}, {"config": "x"}, [], None])
def test_answer_without_a_config(wrapper, daemon, bundle, answer):
    daemon.answer = lambda _: (200, answer)
    assert "without an edited config" in line(wrapper("create", "-b", bundle, "c1"))
    assert json.loads((bundle / "config.json").read_text()) == ASKS


def test_cut_answer(wrapper, daemon, bundle):
    daemon.answer = lambda _: b'HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{"config": {"a": 1'
    assert "without an edited config" in line(wrapper("create", "-b", bundle, "c1"))
    assert json.loads((bundle / "config.json").read_text()) == ASKS


def test_daemon_that_ends_meanwhile(wrapper, daemon, bundle):
    daemon.answer = lambda _: b""
    assert "did not answer: it ended meanwhile" in line(wrapper("create", "-b", bundle, "c1"))
    assert json.loads((bundle / "config.json").read_text()) == ASKS


@pytest.mark.promise("hook-reads-no-bundle-trust")
def test_wrong_peer(programs, runtime, bundle, foreign_socket):
    wrapper = Wrapper(programs / "gpushare-runtime", runtime, foreign_socket)
    assert "not by root" in line(wrapper("create", "-b", bundle, "c1"))


@pytest.mark.promise("hook-reads-no-bundle-trust")
def test_symlinked_config_is_not_rewritten(wrapper, daemon, bundle, tmp_path):
    target = tmp_path / "elsewhere.json"
    (bundle / "config.json").rename(target)
    (bundle / "config.json").symlink_to(target)
    assert "symlink" in line(wrapper("create", "-b", bundle, "c1"))
    assert daemon.requests == []
    assert json.loads(target.read_text()) == ASKS


def test_symlinked_config_without_a_request(wrapper, bundle, tmp_path):
    (tmp_path / "elsewhere.json").write_text("{}")
    (bundle / "config.json").unlink()
    (bundle / "config.json").symlink_to(tmp_path / "elsewhere.json")
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")


@pytest.mark.parametrize("text", ['{"annotations": {"gpushare.dev/memory": ', '["gpushare.dev/time"]', "gpushare.dev/"])
def test_malformed_config_with_a_request(wrapper, daemon, bundle, text):
    (bundle / "config.json").write_text(text)
    assert "not a JSON object" in line(wrapper("create", "-b", bundle, "c1"))
    assert daemon.requests == []


def test_config_that_is_no_file(wrapper, bundle):
    (bundle / "config.json").unlink()
    os.mkfifo(bundle / "config.json")
    assert "not a regular file" in line(wrapper("create", "-b", bundle, "c1"))


@pytest.mark.promise("hook-reads-no-bundle-trust")
def test_oversized_config(wrapper, bundle):
    with open(bundle / "config.json", "r+b") as file:
        file.truncate((8 << 20) + 1)
    assert "more than 8388608 bytes" in line(wrapper("create", "-b", bundle, "c1"))


def test_large_config(wrapper, daemon, bundle):
    large = {**ASKS, "process": {"env": [f"V{i}=" + "x" * 1000 for i in range(2000)]}}
    (bundle / "config.json").write_text(json.dumps(large))
    daemon.answer = lambda request: (200, {"grant": "g1", "config": json.loads(request.body)["config"]})
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")
    assert json.loads((bundle / "config.json").read_text()) == large


def test_missing_config_is_the_runtimes_business(wrapper, daemon, bundle):
    (bundle / "config.json").unlink()
    assert started(wrapper("create", "-b", bundle, "c1"), "create", "-b", bundle, "c1")
    assert daemon.requests == []


def test_keeps_mode(wrapper, bundle):
    (bundle / "config.json").chmod(0o640)
    assert wrapper("create", "-b", bundle, "c1").returncode == 0
    assert (bundle / "config.json").stat().st_mode & 0o7777 == 0o640


def settings(programs, tmp_path: Path, text: str, mode: int = 0o644, uid: int = 0):
    path = tmp_path / "runtime.conf"
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, uid, 0)
    return subprocess.run(
        [programs / "gpushare-runtime", f"--gpushare-config={path}", "state", "c"], capture_output=True, text=True
    )


def test_settings_file(programs, runtime, tmp_path):
    result = settings(programs, tmp_path, f"# ours\n\nruntime = {runtime}\nsocket=/s\n")
    assert result.stdout == f"{runtime}\nstate\nc\n"


@pytest.mark.parametrize(
    ("mode", "uid", "text", "message"),
    [
        (0o666, 0, "runtime = {}", "only root can write"),
        (0o664, 0, "runtime = {}", "only root can write"),
        (0o644, 65534, "runtime = {}", "only root can write"),
        (0o644, 0, "runtime = runc", "absolute path"),
        (0o644, 0, "runtime = /none/runc", "absolute path"),
        (0o644, 0, "runtime", "cannot read"),
        (0o644, 0, "sockets = /s", "unknown setting"),
        (0o644, 0, "#" * 5000, "more than 4096 bytes"),
    ],
)
def test_bad_settings_start_nothing(programs, runtime, tmp_path, mode, uid, text, message):
    result = settings(programs, tmp_path, text.format(runtime), mode, uid)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stdout == ""


def test_refuses_to_run_itself(programs, tmp_path):
    result = settings(programs, tmp_path, f"runtime = {programs / 'gpushare-runtime'}\n")
    assert "is this wrapper itself" in result.stderr


def test_finds_runc_by_itself(programs):
    result = subprocess.run(
        [programs / "gpushare-runtime", "--gpushare-config=/nonexistent", "--version"],
        capture_output=True, text=True, env={},
    )  # fmt: skip
    assert result.stdout.startswith("runc version")


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("crun"), reason="needs root and crun")
def test_takes_crun_where_there_is_no_runc(programs):
    """As on machines where Podman is the only engine."""
    places = [Path(place) / "runc" for place in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")]
    found = [str(path.resolve()) for path in places if path.exists()]
    hide = 'for file in $0; do mount --bind /dev/null "$file"; done; exec "$@" --gpushare-config=/nonexistent --version'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, " ".join(found)]
    result = subprocess.run([*command, programs / "gpushare-runtime"], capture_output=True, text=True)
    assert result.stdout.startswith("crun version"), result.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("place", ["/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/rke2/bin"])
def test_takes_the_runc_that_k3s_brings_along(programs, place):
    """It is preferred to another node's crun, and in no PATH."""
    places = [Path(place) / "runc" for place in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")]
    found = [str(path.resolve()) for path in places if path.exists()]
    made = (
        f"mount -t tmpfs none /var/lib && mkdir -p {place} && printf '#!/bin/sh\\necho brought\\n' >{place}/runc && "
        f'chmod +x {place}/runc && for file in $0; do mount --bind /dev/null "$file"; done && '
        'exec "$@" --gpushare-config=/nonexistent --version'
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", made, " ".join(found)]
    result = subprocess.run([*command, programs / "gpushare-runtime"], capture_output=True, text=True)
    assert result.stdout == "brought\n", result.stderr
