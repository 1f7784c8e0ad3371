"""Real engines read what `gpushare runtime configure` writes, and a container needs nothing else to get its share. One
run for each installed engine (tests/support/engines.py)."""

import contextlib
import json
import os
import re
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest
from engines import IMAGE, PODMAN, SHARE, SPIN, Docker, allocated, configure, dockers_own, each, running
from waiting import until

from gpushare.engines.edit import ANNOTATIONS
from gpushare.paths import HOOK, RUNTIME_WRAPPER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machine")]


@each("containerd")
def test_containerd_reads_it(program, tmp_path, capsys):
    """With ours in it, containerd's default configuration differs only by what we add; without, it is as before."""
    tmp_path.chmod(0o755)
    config = tmp_path / "config.toml"
    before = subprocess.run([program, "config", "default"], capture_output=True, check=True).stdout
    config.write_bytes(before)

    def read() -> dict:
        dump = subprocess.run(
            [program, "--config", config, "config", "dump"], capture_output=True, text=True, check=True
        )
        assert "unknown" not in dump.stderr
        return tomllib.loads(dump.stdout)

    def cri(value: dict) -> dict:
        return next(
            value["plugins"][name] for name in value["plugins"] if re.search(r"grpc.v1.cri|cri.v1.runtime", name)
        )

    plain = read()
    configure("containerd", config, program, "--set-as-default")
    ours = read()
    handlers = cri(ours)["containerd"]["runtimes"]
    handler = handlers.pop("gpushare")
    assert cri(ours)["containerd"].pop("default_runtime_name") == "gpushare"
    assert handler["pod_annotations"] == handler["container_annotations"] == list(ANNOTATIONS)
    usual = dict(cri(plain)["containerd"]["runtimes"]["runc"])
    assert handler.pop("options") == {**usual.pop("options"), "BinaryName": str(RUNTIME_WRAPPER)}
    assert {**handler, "pod_annotations": [], "container_annotations": []} == {
        **usual,
        "pod_annotations": [],
        "container_annotations": [],
    }
    cri(plain)["containerd"].pop("default_runtime_name")
    if "enable_cdi" in cri(ours):
        assert cri(ours).pop("enable_cdi") is True
        cri(plain).pop("enable_cdi")
    assert ours == plain
    configure("containerd", config, program, verb="unconfigure")
    assert config.read_bytes() == before
    config.unlink()
    configure("containerd", config, program)
    assert {"runc", "gpushare"} <= set(cri(read())["containerd"]["runtimes"])


@each("podman")
def test_podman_gives_a_share(program, node, wrapper, rootfs, short_path, capfd):
    config = short_path / "containers.conf"
    config.write_text(PODMAN)
    hooks = ["--hooks-dir", str(short_path / "hooks")]
    configure("podman", config, program, "--runtime-path", str(wrapper), *hooks)
    (short_path / "hooks" / "gpushare.json").unlink()  # it names the default socket; other tests cover it
    environment = {**os.environ, "CONTAINERS_CONF": str(config), "TMPDIR": str(short_path)}
    base = [program, "--root", short_path / "root", "--runroot", short_path / "run", "--tmpdir", short_path / "tmp"]

    def podman(*arguments: object) -> subprocess.CompletedProcess:
        command = [*map(str, [*base, "--storage-driver", "vfs", *arguments])]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)

    try:
        assert podman("import", "--quiet", rootfs, IMAGE).returncode == 0
        asked = [part for name, value in SHARE.items() for part in ("--annotation", f"{name}={value}")]
        done = podman("--runtime", "gpushare", "run", "--rm", *asked, IMAGE, *SPIN)
        assert allocated(done.stdout), done.stderr
        # Without a request, or under the engine's own runtime: nothing of ours.
        for options in (["--runtime", "gpushare", "run"], ["run"]):
            plain = podman(*options, "--rm", IMAGE, "/bin/sh", "-c", "test ! -e /run/gpushare && echo none")
            assert plain.stdout == "none\n", plain.stderr
    finally:
        podman("rm", "--all", "--force")
        podman("rmi", "--all", "--force")
    configure("podman", config, program, *hooks, verb="unconfigure")
    assert config.read_text() == PODMAN


@each("dockerd")
def test_docker_gives_a_share_after_a_reload(program, node, wrapper, rootfs, short_path, capfd):
    """dockerd is already running when it is configured."""
    config, work = short_path / "daemon.json", short_path / "docker"
    before = json.dumps(dockers_own(work), indent=3)
    config.write_text(before)
    work.mkdir()
    docker = Docker(work / "sock")
    with running(program, "--config-file", config, ready=docker.is_up, log=short_path / "log", path=program) as process:
        configure("docker", config, program, "--runtime-path", str(wrapper))
        process.send_signal(signal.SIGHUP)
        until(lambda: "gpushare" in json.loads(docker("GET", "/info")[1])["Runtimes"], "the reload", 30)
        version = json.loads(docker("GET", "/version")[1])
        if int(version["Version"].split(".")[0]) < 24:
            pytest.skip(f"Docker {version['Version']} cannot pass annotations on")
        docker.load(rootfs)

        def run(runtime: str, annotations: dict, *command: str) -> str:
            status, said = docker.run(runtime, *command, Annotations=annotations)
            assert status == 204, said
            return said

        assert allocated(run("gpushare", SHARE, *SPIN))
        for runtime in ("gpushare", "runc"):
            assert "none" in run(runtime, {}, "/bin/sh", "-c", "test ! -e /run/gpushare && echo none")
        configure("docker", config, program, verb="unconfigure")
        assert config.read_text() == before


@each("dockerd")
def test_docker_gives_a_grant_by_its_name(program, node, rootfs, short_path, capfd):
    """As a CDI device, under Docker's own runtime: it reads `features.cdi` when it starts."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[2]
    if int(version.split(".")[0]) < 25:
        pytest.skip(f"Docker {version} knows no CDI")
    config, work = short_path / "daemon.json", short_path / "docker"
    config.write_text(json.dumps(dockers_own(work, **{"cdi-spec-dirs": [str(node.layout.cdi)]})))
    work.mkdir()
    configure("docker", config, program)
    docker = Docker(work / "sock")
    with running(program, "--config-file", config, ready=docker.is_up, log=short_path / "log", path=program):
        docker.load(rootfs)
        # With --read-only, Docker makes each mount read-only that does not state its own mode.
        for read_only in (False, True):
            grant = node.client.create(memory="1GiB", time="30%")
            named = {"Driver": "cdi", "DeviceIDs": grant["cdi"]}
            status, said = docker.run("runc", *SPIN, DeviceRequests=[named], ReadonlyRootfs=read_only)
            assert status == 204 and allocated(said), said
            until(lambda name=grant["id"]: node.client.grant(name)["phase"] == "released", "the grant ends")
            named["DeviceIDs"] = ["gpushare.dev/gpu=any"]
            status, said = docker.run(
                "runc", *SPIN, Annotations=SHARE, DeviceRequests=[named], ReadonlyRootfs=read_only
            )
            assert status == 204 and allocated(said), said


@each("dockerd")
def test_docker_restarts_a_container_while_the_daemon_is_away(program, node, rootfs, short_path, capfd):
    """It tries once: what ends while the daemon is away would be gone for ever."""
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[2]
    if int(version.split(".")[0]) < 25:
        pytest.skip(f"Docker {version} knows no CDI")
    config, work = short_path / "daemon.json", short_path / "docker"
    config.write_text(json.dumps(dockers_own(work, **{"cdi-spec-dirs": [str(node.layout.cdi)]})))
    work.mkdir()
    configure("docker", config, program)
    docker = Docker(work / "sock")
    with running(program, "--config-file", config, ready=docker.is_up, log=short_path / "log", path=program):
        docker.load(rootfs)
        always = {
            "RestartPolicy": {"Name": "always"},
            "DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["gpushare.dev/gpu=any"]}],
        }
        status, name = docker.make("runc", "/bin/sleep", "1000", Annotations=SHARE, **always)
        assert status == 201, name

        def state() -> dict:
            return json.loads(docker("GET", f"/containers/{name}/json")[1])["State"]

        try:
            assert docker("POST", f"/containers/{name}/start")[0] == 204
            before = state()["Pid"]
            node.kill()
            os.kill(before, signal.SIGKILL)
            until(lambda: started(HOOK.name, str(node.layout.socket)), "the hook of the container's next start", 30)
            node.start()
            until(lambda: state()["Running"] and state()["Pid"] not in (0, before), f"it runs again: {state()}", 30)
            assert state()["Error"] == ""
            until(lambda: [grant["phase"] for grant in node.client.grants()] == ["active"], "the old grant's end")
        finally:
            docker.remove(name)
        until(lambda: node.client.grants() == [], "the grant ends")


def started(*words: str) -> bool:
    """Whether a process has these words in its command line."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if set(words) <= set(entry.read_text(errors="replace").split("\0")):
                return True
    return False
