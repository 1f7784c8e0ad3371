"""Pods under containerd's own runtime get their shares through NRI, after `gpushare runtime configure --nri` alone."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from engines.cri import Cri, configuration, empty_dir, image_archive
from engines.gpunodes import OWN, PROBE, usable
from engines.installed import SHARE, SPIN, Docker, allocated, configure, dockers_own, each, running
from engines.nri import Plugin
from machine import cgroups
from run.running import Daemon
from run.waiting import until

from gpushare.engines.configuration import ENGINES
from gpushare.engines.edit import Options, Version, installed
from gpushare.engines.nri import TOLERATION

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machine")]

NONE = ["/bin/sh", "-c", "test ! -e /run/gpushare && test ! -e /etc/ld.so.preload && echo none"]
LEFT_ALONE = ["/bin/sh", "-c", f"test ! -e /run/gpushare && test ! -e /etc/ld.so.preload && echo none\n{PROBE}"]
HOLD = [*SPIN[:-1], "600"]


class Containerd:
    def __init__(self, program: Path, version: Version, directory: Path, rootfs: Path) -> None:
        self.program, self.version = program, version
        self.directory, self.work, self.config = directory, directory / "work", directory / "config.toml"
        self.before = configuration(self.work, version >= (2,), nri=True)
        self.config.write_text(self.before)
        self.work.mkdir()
        image_archive(rootfs, directory / "image.tar")

    @contextlib.contextmanager
    def running(self) -> Iterator[Cri]:
        """Runs the engine during the context; its containers may outlive it."""
        ctr = [self.program.parent / "ctr", "--address", self.work / "sock", "--namespace", "k8s.io"]

        def ready() -> bool:
            return subprocess.run([*ctr, "version"], capture_output=True).returncode == 0

        log = self.directory / "log"
        with running(self.program, "--config", self.config, ready=ready, log=log, path=self.program):
            if (archive := self.directory / "image.tar").exists():
                how = ["--local"] if self.version >= (2,) else []
                given = [*ctr, "images", "import", *how, "--snapshotter", "native", archive]
                done = subprocess.run(given, capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                archive.unlink()
            with grpc.insecure_channel(f"unix://{self.work}/sock") as channel:
                yield Cri(channel, self.work / "pods")


@pytest.fixture
def plugin(node, short_path) -> Iterator[Plugin]:
    plugin = Plugin(short_path / "work" / "nri.sock", node.layout.socket, short_path / "plugin.log")
    try:
        yield plugin
    finally:
        plugin.kill()


@pytest.fixture
def engine(program, short_path, rootfs) -> Containerd:
    version = installed(ENGINES["containerd"], Options(executable=program))
    if version < (1, 7):
        pytest.skip(f"containerd {version} has no NRI")
    return Containerd(program, version, short_path, rootfs)


@each("containerd")
def test_pods_by_nri(program, engine, node, wrapper, plugin, request, capfd):
    configure("containerd", engine.config, program, "--nri", "--runtime-path", str(wrapper))
    plugin.start()
    with engine.running() as cri:
        plugin.logs("registered")
        shares(cri, node)
        with cri.pod("", SHARE) as pod:
            assert allocated(cri.run(pod, *SPIN, **empty_dir("/run", engine.directory)))
        held = cri.start_pod("", SHARE)
        container = cri.start(held, *HOLD)
        grant = active(node)
        request.addfinalizer(lambda: node.client.release(grant))  # kills what is left where this test has failed
        without_the_plugin(cri, plugin, requires=engine.version >= (2, 2))
        plugin.start()
        plugin.logs("registered", 2)
        assert share_of(cri, SHARE)
    # The engine is started again: its containers have kept running, with their share.
    with engine.running() as cri:
        plugin.logs("registered", 3)
        assert share_of(cri, SHARE)
        node.kill()
        with cri.pod("", SHARE) as pod, pytest.raises(grpc.RpcError, match="no daemon"):
            cri.start(pod, *SPIN)
        with cri.pod("", {}) as pod:
            assert cri.run(pod, *NONE) == "none"
        node.start()
        assert share_of(cri, SHARE)
        assert node.client.grant(grant)["phase"] == "active"
        # A command in the container has the same share, half of which is in use.
        for size, fits in (("256MiB", True), ("512MiB", False)):
            assert allocated(cri.execute(container, SPIN[0], "--alloc", size, "--seconds", "0")) == fits
        cri.end_pod(held)
        until(lambda: node.client.grant(grant)["phase"] == "released", "the grant ends")
    configure("containerd", engine.config, program, verb="unconfigure")
    assert engine.config.read_text() == engine.before
    cgroups.remove()


@each("containerd")
def test_nodes_of_the_granted_devices_and_no_others(program, engine, node, plugin, capfd):
    """There are so many nodes that the answer is longer than containerd reads at once."""
    node.terminate()
    node.patch(
        "import dataclasses",
        "from gpushare.inject import edits",
        "from gpushare.inject.node import DeviceNode",
        "made = edits.container",
        "real = [DeviceNode(f'/dev/nvidia{minor}', 195, minor) for minor in range(200)]",
        "edits.container = lambda *given, **more: dataclasses.replace(made(*given, **more), devices=real)",
    ).start()
    configure("containerd", engine.config, program, "--nri")
    plugin.start()
    with engine.running() as cri:
        plugin.logs("registered")
        with cri.pod("", SHARE) as pod:
            assert usable(cri.run(pod, "/bin/sh", "-c", PROBE)) == {"/dev/nvidia0", OWN}
        with cri.pod("", {}) as pod:
            assert usable(cri.run(pod, "/bin/sh", "-c", PROBE)) == set()
    cgroups.remove()


def share_of(cri: Cri, annotations: dict[str, str]) -> bool:
    with cri.pod("", annotations) as pod:
        return allocated(cri.run(pod, *SPIN))


def active(node: Daemon) -> str:
    def found() -> list[dict]:
        return [grant for grant in node.client.grants() if grant["phase"] == "active" and grant["processes"]]

    (grant,) = until(found, "the program joins its grant")
    return grant["id"]


def shares(cri: Cri, node: Daemon) -> None:
    """Checks pods with and without a request, under the engine's own runtime and under ours, which finds the share made
    already."""
    for count, handler in enumerate(("", "gpushare"), 1):
        with cri.pod(handler, SHARE) as pod:
            assert allocated(cri.run(pod, *SPIN))
            # Of the pod's containers and its sandbox, only this one had a share.
            assert len(node.client.grants(ended=True)) == count
    with cri.pod("", {}) as pod:
        assert cri.run(pod, *NONE) == "none"
    refusal = pytest.raises(grpc.RpcError, match="gpushare: 1TiB of memory does not fit")
    with cri.pod("", {**SHARE, "gpushare.dev/memory": "1TiB"}) as pod, refusal:
        cri.start(pod, *SPIN)
    assert node.client.grants() == []


def without_the_plugin(cri: Cri, plugin: Plugin, *, requires: bool) -> None:
    """The plugin is stopped, then killed. Unless the engine requires it and knows that it is gone, the container is
    started with neither share nor device."""
    for annotations, signaled in ((SHARE, signal.SIGSTOP), (SHARE, signal.SIGKILL), ({}, signal.SIGKILL)):
        plugin.process.send_signal(signaled)
        with cri.pod("", annotations) as pod:
            if requires and signaled == signal.SIGKILL:
                with pytest.raises(grpc.RpcError, match='required plugin "gpushare" not present'):
                    cri.start(pod, *SPIN)
            else:
                found = cri.run(pod, *LEFT_ALONE)
                assert found.startswith("none\n")
                assert usable(found) == set()
    plugin.kill()
    if requires:
        with cri.pod("", {TOLERATION: "true"}) as pod:
            assert cri.run(pod, *NONE) == "none"


@each("dockerd")
def test_docker_is_not_served(program, node, wrapper, plugin, rootfs, short_path, capfd):
    """Docker's NRI, since 29, takes neither hooks nor devices from a plugin, nor the options of our mounts. Our plugin
    says so and does not register, and containers are started as without it."""
    if installed(ENGINES["docker"], Options(executable=program)) < (29,):
        pytest.skip("this Docker has no NRI")
    config, work = short_path / "daemon.json", short_path / "work"
    nri = {"enable": True, "socket-path": f"{work}/nri.sock", "plugin-path": str(work), "plugin-config-path": str(work)}
    config.write_text(json.dumps(dockers_own(work, **{"nri-opts": nri})))
    work.mkdir()
    configure("docker", config, program, "--runtime-path", str(wrapper))
    docker = Docker(work / "sock")
    with running(program, "--config-file", config, ready=docker.is_up, log=short_path / "log", path=program):
        docker.load(rootfs)
        plugin.start()
        plugin.logs("Docker's NRI takes neither hooks nor devices")
        status, answer = docker.run("gpushare", *SPIN, Annotations=SHARE)
        assert status == 204 and allocated(answer), answer
        status, answer = docker.run("runc", *LEFT_ALONE, Annotations=SHARE)
        assert status == 204 and answer.startswith("none"), answer
        assert len(node.client.grants(ended=True)) == 1
    assert "registered with" not in plugin.log.read_text()
