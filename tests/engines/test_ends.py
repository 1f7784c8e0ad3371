"""The end of a container, whatever causes it: killed engines, shims and monitors, starts that fail after our edit. Its
grant, directory and CDI spec go within a second, and a container that outlives its engine keeps its share.

Prints how long the slowest took; `LONGEST` allows for a busy machine.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from engines.cri import Cri, configuration, image_archive
from engines.installed import IMAGE, PODMAN, SHARE, SPIN, Docker, allocated, configure, dockers_own, each, running
from machine import cgroups
from run.running import Daemon, alive
from run.waiting import until

from gpushare.engines.configuration import ENGINES
from gpushare.engines.edit import Options, installed

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machine")]

HOLD = [*SPIN[:-1], "600"]
LESS = [SPIN[0], "--alloc", "256MiB", *SPIN[3:]]
LONGEST = 5.0  # seconds


class Ends:
    """Watches containers end, and measures how long their grants, directories and CDI specs take to go."""

    def __init__(self, node: Daemon) -> None:
        self.node, self.took = node, {}

    def active(self) -> int:
        until(
            lambda: [grant["phase"] for grant in self.node.client.grants()] == ["active"], "it runs with its share", 20
        )
        return self.node.client.grants()[0]["pid"]

    @contextlib.contextmanager
    def ending(self, how: str) -> Iterator[int]:
        """Gives the pidfd of the running container, which the body must bring to its end."""
        process = os.pidfd_open(self.active())
        try:
            with ThreadPoolExecutor(1) as pool:
                measured = pool.submit(self._measure, how, process)
                yield process
                measured.result()
        finally:
            os.close(process)

    def _measure(self, how: str, process: int) -> None:
        assert select.select([process], [], [], 60)[0], f"it ends by {how}"
        self.goes(how)

    def goes(self, how: str) -> None:
        """Waits until all of it is gone, and records the time from now."""
        began = time.monotonic()
        until(
            lambda: not (self.node.grant_dirs() or self.node.specs() or self.node.client.grants()),
            f"all of it goes: {how}",
            20,
        )
        self.took[how] = time.monotonic() - began

    def check(self, engine: str) -> None:
        longest = max(self.took, key=lambda how: self.took[how])
        print(f"{engine}: the longest took {self.took[longest] * 1e3:.0f} ms: {longest}; {len(self.took)} ends")
        assert self.took[longest] < LONGEST, self.took


def processes(*words: str) -> list[int]:
    """Returns the pids of processes whose command line has all of these words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(word in line for word in words):
                found.append(int(entry.name))
    return found


def kill(*words: str) -> None:
    found = processes(*words)
    assert found, words
    for pid in found:
        os.kill(pid, signal.SIGKILL)


@each("containerd")
def test_containerd(program, node, wrapper, rootfs, short_path, capfd):
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[2]
    since_2 = version.lstrip("v").startswith("2")
    config, work = short_path / "config.toml", short_path / "work"
    config.write_text(configuration(work, since_2))
    work.mkdir()
    image_archive(rootfs, short_path / "image.tar")
    configure("containerd", config, program, "--runtime-path", str(wrapper))
    ctr = [program.parent / "ctr", "--address", work / "sock", "--namespace", "k8s.io"]
    ends = Ends(node)

    @contextlib.contextmanager
    def engine() -> Iterator[tuple[Cri, subprocess.Popen]]:
        def ready() -> bool:
            return subprocess.run([*ctr, "version"], capture_output=True).returncode == 0

        with running(program, "--config", config, ready=ready, log=short_path / "log", path=program) as process:
            if not (work / "pods").exists():
                given = [*ctr, "images", "import", *(["--local"] if since_2 else []), "--snapshotter", "native"]
                assert subprocess.run([*given, short_path / "image.tar"], capture_output=True).returncode == 0
            with grpc.insecure_channel(f"unix://{work}/sock") as channel:
                yield Cri(channel, work / "pods"), process

    try:
        with engine() as (cri, process):
            with cri.pod("gpushare", SHARE) as pod:
                container = cri.start(pod, *HOLD)
                with ends.ending("StopContainer without grace"):
                    cri.call("StopContainer", _1=container)
            with cri.pod("gpushare", SHARE) as pod, pytest.raises(grpc.RpcError):
                cri.start(pod, "/no/such/program")
            ends.goes("a program that is not there")
            pod = cri.start_pod("gpushare", SHARE)
            cri.start(pod, *HOLD)
            with ends.ending("kill -9 of its shim") as container:
                kill("containerd-shim", str(work))
                with contextlib.suppress(grpc.RpcError):
                    cri.end_pod(pod)
                # containerd 2.1 leaves the container running.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(container, signal.SIGKILL)
            held = cri.start_pod("gpushare", SHARE)
            container = cri.start(held, *HOLD)
            pid = ends.active()
            process.kill()
            process.wait()
        with engine() as (cri, process):
            # It has outlived its engine, and has its share under the next one too.
            assert alive(pid) and ends.active() == pid
            assert allocated(cri.execute(container, *LESS))
            with ends.ending("RemovePodSandbox after a restart"):
                cri.end_pod(held)
    finally:
        for grant in node.client.grants():
            node.client.release(grant["id"])  # kills what is left where this test has failed
        for left in processes("containerd-shim", str(work)):
            os.kill(left, signal.SIGKILL)
        cgroups.remove()
    with capfd.disabled():
        ends.check(f"containerd {version}")


@each("dockerd")
def test_docker(program, node, wrapper, rootfs, short_path, capfd):
    """With `live-restore`; shares requested by annotations and as a CDI device."""
    version = installed(ENGINES["docker"], Options(executable=program))
    if version < (25,):
        pytest.skip("this Docker knows neither annotations nor CDI")
    config, work = short_path / "daemon.json", short_path / "docker"
    own = dockers_own(work, **{"live-restore": True, "cdi-spec-dirs": [str(node.layout.cdi)]})
    config.write_text(json.dumps(own))
    work.mkdir()
    configure("docker", config, program, "--runtime-path", str(wrapper))
    docker, ends = Docker(work / "sock"), Ends(node)

    def engine() -> contextlib.AbstractContextManager[subprocess.Popen]:
        return running(program, "--config-file", config, ready=docker.is_up, log=short_path / "log", path=program)

    def start(way: str, *command: str) -> tuple[str, int]:
        host = {"Annotations": SHARE}
        if way == "runc":
            named = node.client.create(memory="1GiB", time="30%")["cdi"]
            host = {"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": named}]}
        status, name = docker.make(way, *command, **host)
        assert status == 201, name
        return name, docker("POST", f"/containers/{name}/start")[0]

    try:
        with engine() as process:
            docker.load(rootfs)
            for way in ("gpushare", "runc"):
                name, status = start(way, *HOLD)
                assert status == 204
                with ends.ending(f"kill, {way}"):
                    docker("POST", f"/containers/{name}/kill")
                docker.remove(name)
            name, status = start("gpushare", "/no/such/program")
            assert status != 204
            ends.goes("a program that is not there")
            docker.remove(name)
        for way in ("gpushare", "runc"):
            with engine() as process:
                name, status = start(way, *HOLD)
                assert status == 204
                pid = ends.active()
                process.kill()
                process.wait()
            with engine() as process:
                # It has outlived its engine, and has its share under the next one too.
                assert alive(pid) and ends.active() == pid
                assert allocated(docker.execute(name, *LESS))
            assert alive(pid) and ends.active() == pid
            with engine() as process, ends.ending(f"rm --force after two restarts, {way}"):
                docker.remove(name)
    finally:
        for grant in node.client.grants():
            node.client.release(grant["id"])  # kills what is left where this test has failed
        for left in processes("containerd", str(work)):
            os.kill(left, signal.SIGKILL)
    with capfd.disabled():
        ends.check(f"Docker {'.'.join(map(str, version))}")


@each("podman")
def test_podman(program, node, wrapper, rootfs, short_path, capfd):
    config = short_path / "containers.conf"
    config.write_text(PODMAN)
    configure("podman", config, program, "--runtime-path", str(wrapper), "--hooks-dir", str(short_path / "hooks"))
    environment = {**os.environ, "CONTAINERS_CONF": str(config), "TMPDIR": str(short_path)}
    base = [program, "--root", short_path / "root", "--runroot", short_path / "run", "--tmpdir", short_path / "tmp"]
    ends = Ends(node)

    def podman(*arguments: object) -> subprocess.CompletedProcess:
        command = [*map(str, [*base, "--storage-driver", "vfs", *arguments])]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)

    def run(*program: str) -> subprocess.CompletedProcess:
        asked = [part for name, value in SHARE.items() for part in ("--annotation", f"{name}={value}")]
        return podman("--runtime", "gpushare", "run", "--detach", "--name", "held", *asked, IMAGE, *program)

    try:
        assert podman("import", "--quiet", rootfs, IMAGE).returncode == 0
        assert run(*HOLD).returncode == 0
        with ends.ending("rm --force"):
            assert podman("rm", "--force", "--time", "0", "held").returncode == 0
        assert run("/no/such/program").returncode != 0
        ends.goes("a program that is not there")
        podman("rm", "--force", "held")
        assert run(*HOLD).returncode == 0
        pid = ends.active()
        kill("conmon", str(short_path))
        assert alive(pid) and ends.active() == pid, "it outlives its monitor, with its share"
        with ends.ending("kill -9, its monitor gone") as container:
            signal.pidfd_send_signal(container, signal.SIGKILL)
    finally:
        podman("rm", "--all", "--force")
        podman("rmi", "--all", "--force")
    with capfd.disabled():
        ends.check("podman")
