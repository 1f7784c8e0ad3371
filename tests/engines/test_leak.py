"""What a container without a grant can do with the machine's GPU nodes, whatever it requests.

docs/reference/compatibility.md lists the results. An engine whose user tells it to hand out devices does so: these
cases are here too, and show that the probe sees an open node.
"""

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator

import grpc
import pytest
from engines import cri
from engines.cri import configuration, image_archive
from engines.gpunodes import NODES, OWN, PROBE, shown, usable
from engines.installed import IMAGE, PODMAN, Docker, configure, dockers_own, each, running
from machine import cgroups

from gpushare.demo import bundle
from gpushare.engines.configuration import ENGINES
from gpushare.engines.edit import Options, installed
from gpushare.engines.podman import HOOK_FILE, hook_text
from gpushare.paths import HOOK, RUNTIME_WRAPPER

pytestmark = pytest.mark.xdist_group("machine")


GPUS = ("all", "0", "void", "none")
NVIDIAS_WORDS = {"nvidia.com/container.main.gpu-memory.request": "1Gi", "nvidia.com/gpu": "all", "cdi.k8s.io/x": "x"}


@pytest.fixture
def nodes() -> Iterator[list[str]]:
    with shown() as before:
        yield before
    cgroups.remove()


def env(value: str):
    return lambda config: config["process"]["env"].append(f"NVIDIA_VISIBLE_DEVICES={value}")


def annotated(annotations: dict[str, str]):
    return lambda config: config["annotations"].update(annotations)


def bound(config: dict) -> None:
    for node in NODES:
        config["mounts"].append({"destination": node, "type": "bind", "source": node, "options": ["bind", "rw"]})


def device(config: dict) -> None:
    """Changes the config as an engine does for `--device /dev/nvidia0`."""
    node = {"type": "c", "major": 195, "minor": 0}
    config["linux"]["devices"] = [{"path": "/dev/nvidia0", **node, "fileMode": 0o666}]
    config["linux"]["resources"]["devices"].append({"allow": True, **node, "access": "rw"})


def privileged(config: dict) -> None:
    config["linux"]["devices"] = [
        {"path": path, "type": "c", "major": major, "minor": minor, "fileMode": 0o666}
        for path, (major, minor) in NODES.items()
    ]
    config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]


@each("runc", "crun")
def test_a_runtime_started_by_the_wrapper(program, nodes, short_path):
    """No daemon runs, as nothing needs one."""

    def run(name: str, change) -> subprocess.CompletedProcess:
        where, name = short_path / name, f"{short_path.name}-{name}"
        bundle.make(where, {}, ["/bin/sh", "-c", PROBE], f"/{cgroups.NAME}/{name}")
        config = json.loads((where / "config.json").read_text())
        config["process"]["capabilities"] = {kind: ["CAP_MKNOD"] for kind in ("bounding", "effective", "permitted")}
        change(config)
        (where / "config.json").write_text(json.dumps(config))
        own = [RUNTIME_WRAPPER, f"--gpushare-runtime={program}", f"--gpushare-socket={short_path}/none"]
        command = [*nodes, *own, "--root", short_path / "state", "run", "--bundle", where, name]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def seen(name: str, change) -> set[str]:
        done = run(name, change)
        assert done.returncode == 0, done.stderr
        return usable(done.stdout)

    for value in GPUS:
        assert seen(value, env(value)) == set()
    assert seen("annotated", annotated(NVIDIAS_WORDS)) == set()
    assert seen("bound", bound) == set()
    for number, wrong in enumerate(({"gpushare.dev/gpu": "all"}, {"GPUSHARE.DEV/memory": "1GiB"})):
        done = run(f"wrong{number}", annotated(wrong))
        assert (done.returncode, done.stdout) == (1, "") and "gpushare:" in done.stderr
    # What the engine's user hands out.
    assert seen("device", device) == {"/dev/nvidia0", OWN}
    assert seen("privileged", privileged) == {*NODES, OWN}


@pytest.mark.promise("no-request-no-gpu")
@pytest.mark.slow
@each("podman")
def test_podman(program, nodes, alone, rootfs, short_path):
    config = short_path / "containers.conf"
    config.write_text(f'{PODMAN}\n[engine.runtimes]\ngpushare = ["{alone}"]\n')
    hooks = short_path / "hooks"
    hooks.mkdir()
    hook = json.loads(hook_text())
    hook["hook"]["path"] = str(HOOK)
    hook["hook"]["args"] += ["--socket", f"{short_path}/none"]
    (hooks / HOOK_FILE).write_text(json.dumps(hook))
    environment = {**os.environ, "CONTAINERS_CONF": str(config), "TMPDIR": str(short_path)}
    base = [program, "--root", short_path / "root", "--runroot", short_path / "run", "--tmpdir", short_path / "tmp"]

    def podman(*arguments: object) -> subprocess.CompletedProcess:
        command = [*nodes, *base, "--storage-driver", "vfs", "--hooks-dir", hooks, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)

    def run(path: list[str], *options: str) -> subprocess.CompletedProcess:
        # Podman 5 does not let a container make nodes unless it is told to.
        return podman(*path, "run", "--rm", "--cap-add=MKNOD", *options, IMAGE, "/bin/sh", "-c", PROBE)

    def seen(path: list[str], *options: str) -> set[str]:
        done = run(path, *options)
        assert done.returncode == 0, done.stderr
        return usable(done.stdout)

    try:
        made = podman("import", "--quiet", "--change", "ENV NVIDIA_VISIBLE_DEVICES=all", rootfs, IMAGE)
        assert made.returncode == 0, made.stderr
        words = [part for name, value in NVIDIAS_WORDS.items() for part in ("--annotation", f"{name}={value}")]
        for path in (["--runtime", "gpushare"], []):  # through our runtime, through our hook
            for value in GPUS:
                assert seen(path, "--env", f"NVIDIA_VISIBLE_DEVICES={value}") == set()
            assert seen(path) == seen(path, *words) == set()
            assert seen(path, *[f"--volume={node}:{node}" for node in NODES]) == set()
            gpus, named = run(path, "--gpus=all"), run(path, "--device=nvidia.com/gpu=all")
            assert named.returncode != 0 and "unresolvable CDI devices" in named.stderr
            if installed(ENGINES["podman"], Options(executable=program)) >= (5,):  # the same device
                assert gpus.returncode != 0 and "unresolvable CDI devices nvidia.com/gpu=all" in gpus.stderr
            else:
                assert usable(gpus.stdout) == set()
            wrong = run(path, "--annotation", "gpushare.dev/gpu=all")
            assert wrong.returncode != 0 and wrong.stdout == "" and "gpushare: " in wrong.stderr
            # What the engine's user hands out.
            assert seen(path, "--device=/dev/nvidia0") == {"/dev/nvidia0", OWN}
            assert seen(path, "--privileged") == {*NODES, OWN}
    finally:
        podman("rm", "--all", "--force")
        podman("rmi", "--all", "--force")


@pytest.mark.promise("no-request-no-gpu")
@pytest.mark.slow
@each("dockerd")
def test_docker(program, nodes, alone, rootfs, short_path, capfd):
    config, work = short_path / "daemon.json", short_path / "docker"
    config.write_text(json.dumps(dockers_own(work)))
    work.mkdir()
    configure("docker", config, program, "--runtime-path", str(alone))
    docker = Docker(work / "sock")
    command = [*nodes, program, "--config-file", config]
    with running(*command, ready=docker.is_up, log=short_path / "log", path=program):
        docker.load(rootfs, "ENV NVIDIA_VISIBLE_DEVICES=all")

        def run(**options) -> tuple[int, str]:
            return docker.run("gpushare", "/bin/sh", "-c", PROBE, **options)

        def seen(**options) -> set[str]:
            status, answer = run(**options)
            assert status == 204, answer
            return usable(answer)

        assert seen() == seen(Annotations=NVIDIAS_WORDS) == set()
        for value in GPUS:
            assert seen(env=[f"NVIDIA_VISIBLE_DEVICES={value}"]) == set()
        assert seen(Binds=[f"{node}:{node}" for node in NODES]) == set()
        gpus = {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}  # --gpus all
        none = "could not select device driver|failed to discover GPU vendor from CDI"  # since Docker 29
        for driver in ("", "nvidia"):
            status, answer = run(DeviceRequests=[{**gpus, "Driver": driver}])
            assert status == 500 and re.search(none, answer)
        status, answer = run(DeviceRequests=[{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}])
        assert status == 500 and ("unresolvable CDI devices" in answer or "could not select device driver" in answer)
        version = json.loads(docker("GET", "/version")[1])["Version"]
        status, answer = run(Annotations={"gpushare.dev/gpu": "all"})
        if int(version.split(".")[0]) < 24:  # it passes no annotations on
            assert usable(answer) == set()
        else:
            assert status == 400 and "gpushare:" in answer
        # What the engine's user hands out.
        node = {"PathOnHost": "/dev/nvidia0", "PathInContainer": "/dev/nvidia0", "CgroupPermissions": "rw"}
        assert seen(Devices=[node]) == {"/dev/nvidia0", OWN}
        status, answer = run(Privileged=True)
        if "unable to apply caps" not in answer:  # Docker 20.10 asks for all capabilities, which this machine may lack
            assert usable(answer) == {*NODES, OWN}


@pytest.mark.promise("no-request-no-gpu")
@pytest.mark.slow
@each("containerd")
def test_containerd(program, nodes, alone, rootfs, short_path, capfd):
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[2]
    config, work = short_path / "config.toml", short_path / "work"
    since_2 = version.lstrip("v").startswith("2")
    config.write_text(configuration(work, since_2))
    work.mkdir()
    image_archive(rootfs, short_path / "image.tar", ["NVIDIA_VISIBLE_DEVICES=all"])
    configure("containerd", config, program, "--runtime-path", str(alone))
    ctr = [*nodes, program.parent / "ctr", "--address", work / "sock", "--namespace", "k8s.io"]

    def ready() -> bool:
        return subprocess.run([*ctr, "version"], capture_output=True).returncode == 0

    with running(*nodes, program, "--config", config, ready=ready, log=short_path / "log", path=program):
        given = [*ctr, "images", "import", *(["--local"] if since_2 else []), "--snapshotter", "native"]
        done = subprocess.run([*given, short_path / "image.tar"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        names = itertools.count()

        def run(*options: str) -> subprocess.CompletedProcess:
            own = ["--rm", "--snapshotter", "native", "--runc-binary", alone]
            tail = [cri.IMAGE, f"gst-{next(names)}", "/bin/sh", "-c", PROBE]
            return subprocess.run([*ctr, "run", *own, *options, *tail], capture_output=True, text=True, timeout=60)

        def seen(*options: str) -> set[str]:
            for _ in range(3):  # ctr may end before it has copied the output of a short container
                done = run(*options)
                assert done.returncode == 0, done.stderr
                if done.stdout:
                    break
            return usable(done.stdout)

        assert seen() == set()
        for value in GPUS:
            assert seen("--env", f"NVIDIA_VISIBLE_DEVICES={value}") == set()
        assert seen(*[f"--annotation={name}={value}" for name, value in NVIDIAS_WORDS.items()]) == set()
        assert seen(*[f"--mount=type=bind,src={node},dst={node},options=bind:rw" for node in NODES]) == set()
        # Before 2.2 through NVIDIA's program, later through CDI: neither is installed here.
        gpus = run("--gpus=0")
        assert gpus.returncode != 0 and ("nvidia-container-cli" in gpus.stderr or "no known GPU vendor" in gpus.stderr)
        assert run("--annotation=gpushare.dev/gpu=all").returncode == 1
        # What the engine's user hands out.
        assert seen("--device=/dev/nvidia0") == {"/dev/nvidia0", OWN}
        assert seen("--privileged") == {*NODES, OWN}
        with grpc.insecure_channel(f"unix://{work}/sock") as channel:
            pods_of(cri.Cri(channel, work / "pods"), knows_cdi=not version.lstrip("v").startswith("1.6"))


def pods_of(client: cri.Cri, knows_cdi: bool) -> None:
    def seen(annotations: dict[str, str] | None = None, privileged: bool = False, **fields) -> set[str]:
        with client.pod("gpushare", annotations or {}, privileged) as pod:
            return usable(client.run(pod, "/bin/sh", "-c", PROBE, privileged=privileged, **fields))

    for value in GPUS:
        assert seen(_6={"NVIDIA_VISIBLE_DEVICES": value}) == set()
    assert seen(NVIDIAS_WORDS) == set()
    assert seen(_7=[cri.message(_1=node, _2=node) for node in NODES]) == set()
    named = [cri.message(_1="nvidia.com/gpu=all")]
    if knows_cdi:
        with pytest.raises(grpc.RpcError, match="unresolvable CDI devices"):
            seen(_17=named)
    else:
        assert seen(_17=named) == set()
    with pytest.raises(grpc.RpcError, match="gpushare: no daemon answers at"):
        seen({"gpushare.dev/gpu": "all"})
    # What the engine's user hands out.
    assert seen(_8=[cri.message(_1="/dev/nvidia0", _2="/dev/nvidia0", _3="rw")]) == {"/dev/nvidia0", OWN}
    assert seen(privileged=True) == {*NODES, OWN}
