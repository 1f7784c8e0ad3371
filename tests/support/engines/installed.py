"""The container engines of this machine, for tests that run them.

These are the installed ones, and those unpacked in the folders that GPUSHARE_ENGINES names (separated by colons, each a
root with usr/bin and usr/sbin).
"""

import contextlib
import functools
import http.client
import json
import os
import socket
import subprocess
import tarfile
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from run.waiting import until

from gpushare.cli.main import main
from gpushare.paths import CONTAINER_LIB, INTERPOSER, LIB_DIR, SIM_LIB_DIR

IMAGE = "gpushare-engines:1"
ROOTS = [Path("/"), *(Path(name) for name in os.environ.get("GPUSHARE_ENGINES", "").split(":") if name)]
SPIN = [f"{CONTAINER_LIB}/gpushare-spin", "--alloc", "512MiB", "--seconds", "0"]
SHARE = {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "30%"}


# An administrator's own settings, for machines without systemd and CAP_SYS_RESOURCE.
PODMAN = """\
[containers]
pids_limit = 0 # none
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
netns = "none"
log_driver = "k8s-file"

[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


def make_rootfs(out: Path, *more: str) -> Path:
    """A tar with the files of an image: a shell, what gpushare-spin and its libraries load, and `more` programs."""
    wanted = {"/bin/sh", "/bin/sleep", *more}
    for path in (*wanted, LIB_DIR / "gpushare-spin", INTERPOSER, SIM_LIB_DIR / "libcuda.so.1"):
        text = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
        wanted |= {word for word in text.split() if word.startswith("/") and "cuda" not in word}
    with tarfile.open(out, "w", dereference=True) as tar:
        for path in sorted(wanted):
            tar.add(path, arcname=path.lstrip("/"))
    return out


@functools.cache
def programs(name: str) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in (root / place / name for root in ROOTS for place in ("usr/bin", "usr/sbin")):
        # An unpacked engine may need newer libraries than the system's.
        if path.is_file() and subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def root_of(program: Path) -> Path:
    """The root that the engine is unpacked in."""
    return program.parents[2]


def each(*names: str) -> pytest.MarkDecorator:
    found: list[object] = []
    for name in names:
        absent = pytest.param(Path(name), marks=pytest.mark.skip(reason=f"{name} is not installed"))
        found += programs(name) or [absent]
    return pytest.mark.parametrize("program", found, ids=str)


def configure(engine: str, config: Path, program: Path, *options: str, verb: str = "configure") -> None:
    given = ["runtime", verb, "--engine", engine, "--config", str(config), "--executable-path", str(program)]
    assert main([*given, *options]) == 0


@contextlib.contextmanager
def running(
    *command: object, ready: Callable[[], bool], log: Path, path: Path | None = None
) -> Iterator[subprocess.Popen]:
    usr = root_of(path) / "usr" if path else Path("/usr")
    environment = {**os.environ, "PATH": f"{usr}/bin:{usr}/sbin:{os.environ['PATH']}"}
    with (
        log.open("wb") as out,
        subprocess.Popen([*map(str, command)], stdout=out, stderr=out, env=environment) as process,
    ):
        try:
            until(lambda: process.poll() is not None or ready(), "the engine is up", 60)
            assert process.poll() is None, log.read_text()
            yield process
        finally:
            process.terminate()
            process.wait(60)


def allocated(output: str) -> bool:
    """Whether gpushare-spin reports that it got the memory that it asked for."""
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return any(event.get("event") == "alloc" and event["ok"] for event in events)


class Docker:
    """The API of a dockerd, without its client."""

    def __init__(self, address: Path) -> None:
        self.address = address

    def __call__(self, method: str, path: str, body: object = None, data: object = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("docker")
        with socket.socket(socket.AF_UNIX) as connection.sock, contextlib.closing(connection):
            connection.sock.settimeout(60)
            connection.sock.connect(str(self.address))
            headers = {"Content-Type": "application/x-tar" if data else "application/json"}
            connection.request(method, path, data or json.dumps(body), headers, encode_chunked=False)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def load(self, rootfs: Path, change: str = "") -> None:
        """Makes IMAGE from a tar; `change`: an instruction of a Dockerfile."""
        name, _, tag = IMAGE.partition(":")
        query = {"fromSrc": "-", "repo": name, "tag": tag, **({"changes": change} if change else {})}
        status, reply = self("POST", f"/images/create?{urllib.parse.urlencode(query)}", data=rootfs.read_bytes())
        assert status == 200, reply

    def run(self, runtime: str, *command: str, env: list[str] | None = None, **host: object) -> tuple[int, str]:
        """Runs a container: the status of its start, and its output or why it did not start. `host`: more of the
        HostConfig."""
        status, name = self.make(runtime, *command, env=env, **host)
        if status != 201:
            return status, name
        try:
            status, reply = self("POST", f"/containers/{name}/start")
            if status == 204:
                self("POST", f"/containers/{name}/wait")
                reply = self("GET", f"/containers/{name}/logs?stdout=1&stderr=1")[1]
            return status, reply.decode()
        finally:
            self.remove(name)

    def make(self, runtime: str, *command: str, env: list[str] | None = None, **host: object) -> tuple[int, str]:
        """Creates a container: the status, and its id (status 201) or why there is none."""
        asked = {
            "Image": IMAGE, "Cmd": command, "Tty": True, "Env": env or [],
            "HostConfig": {"Runtime": runtime, "NetworkMode": "none", **host},
        }  # fmt: skip
        status, reply = self("POST", "/containers/create", asked)
        return status, json.loads(reply)["Id"] if status == 201 else reply.decode()

    def remove(self, name: str) -> None:
        self("DELETE", f"/containers/{name}?force=1")

    def execute(self, name: str, *command: str) -> str:
        """The output of a command in a running container."""
        asked = {"Cmd": command, "Tty": True, "AttachStdout": True, "AttachStderr": True}
        status, reply = self("POST", f"/containers/{name}/exec", asked)
        assert status == 201, reply
        return self("POST", f"/exec/{json.loads(reply)['Id']}/start", {"Tty": True})[1].decode()

    def is_up(self) -> bool:
        with contextlib.suppress(OSError):
            return self("GET", "/_ping")[0] == 200
        return False


def dockers_own(work: Path, **more: object) -> dict[str, object]:
    """An administrator's own daemon.json, for a machine without network and CAP_SYS_RESOURCE."""
    return {
        "data-root": str(work / "data"), "exec-root": str(work / "exec"), "pidfile": str(work / "pid"),
        "hosts": [f"unix://{work}/sock"], "iptables": False, "ip6tables": False, "bridge": "none",
        "storage-driver": "vfs", "userland-proxy": False,
        "default-ulimits": {"nofile": {"Name": "nofile", "Soft": 1024, "Hard": 4096}}, **more,
    }  # fmt: skip
