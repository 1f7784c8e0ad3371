"""examples/docker.sh and examples/containerd.sh, unchanged, with real engines (Podman's: tests/containers)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from engines import cri
from engines.installed import IMAGE, Docker, allocated, configure, dockers_own, each, running

from gpushare.engines.configuration import ENGINES
from gpushare.engines.edit import Options, installed
from gpushare.paths import CONTAINER_LIB

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machine")]

EXAMPLES = Path(__file__).parents[2] / "examples"


def spin(size: str) -> list[str]:
    return [f"{CONTAINER_LIB}/gpushare-spin", "--alloc", size, "--seconds", "0"]


def run(*command: object, **environment: object) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, **{name: str(value) for name, value in environment.items()}}
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


@each("containerd")
def test_containerd(program, node, wrapper, rootfs, short_path):
    config, work = short_path / "config.toml", short_path / "work"
    work.mkdir()
    config.write_text(
        f'version = 2\nroot = "{work}/root"\nstate = "{work}/state"\n'
        'disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\n  address = "{work}/sock"\n[ttrpc]\n  address = "{work}/ttrpc"\n'
    )
    answer = {"CONTAINERD_ADDRESS": work / "sock", "CONTAINERD_SNAPSHOTTER": "native", "GPUSHARE_RUNTIME": wrapper}
    answer["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    ctr, archive = program.parent / "ctr", work / "image.tar"

    def ready() -> bool:
        return subprocess.run([ctr, "--address", work / "sock", "version"], capture_output=True).returncode == 0

    with running(program, "--config", config, ready=ready, log=short_path / "log", path=program):
        cri.image_archive(rootfs, archive)
        local = ["--local"] if installed(ENGINES["containerd"], Options(executable=program)) >= (2,) else []
        run(ctr, "images", "import", *local, "--snapshotter", "native", archive, **answer)
        for number, (size, fits) in enumerate({"3GiB": True, "4GiB": False}.items()):
            name = f"gst-example-{number}"
            assert allocated(run(EXAMPLES / "containerd.sh", cri.IMAGE, name, *spin(size), **answer)) == fits


@each("dockerd")
def test_docker(program, node, wrapper, rootfs, short_path, capfd):
    client = program.parents[1] / "bin" / "docker"
    version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split()[2]
    if int(version.split(".")[0]) < 24:
        pytest.skip(f"Docker {version} cannot pass annotations on")
    if not client.exists():
        pytest.skip("the client `docker` is not installed")
    config, work = short_path / "daemon.json", short_path / "docker"
    config.write_text(json.dumps(dockers_own(work)))
    work.mkdir()
    configure("docker", config, program, "--runtime-path", str(wrapper))
    docker = Docker(work / "sock")
    with running(program, "--config-file", config, ready=docker.is_up, log=short_path / "log", path=program):
        docker.load(rootfs)
        answer = {"DOCKER_HOST": f"unix://{work}/sock", "PATH": f"{client.parent}:{os.environ['PATH']}"}
        for size, fits in {"3GiB": True, "4GiB": False}.items():
            out = run(EXAMPLES / "docker.sh", "--network", "none", IMAGE, *spin(size), **answer)
            assert allocated(out) == fits
