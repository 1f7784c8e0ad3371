"""The same grant through each Podman that is here: by CDI device, and by annotations through its hooks directory.

Podman 4.3 reads CDI specs from /etc/cdi and /var/run/cdi only, so it runs in a mount namespace in which the daemon's
CDI directory is mounted there. Image, storage and settings are created here, without network or registry.
"""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.installed import programs
from run import built
from run.waiting import until

from gpushare.engines.podman import HOOK_FILE, hook_text
from gpushare.inject import grantdir
from gpushare.paths import (
    CONTAINER_DRIVER,
    CONTAINER_LIB,
    CONTAINER_NAMES,
    HOOK,
    INTERPOSER,
    INTERPOSER_ML,
    LIB_DIR,
    RUNTIME_WRAPPER,
    SIM_LIB_DIR,
    SIM_RUNTIMES,
)

pytestmark = pytest.mark.xdist_group("machine")

IMAGE = "localhost/gpushare-test:1"
SPIN = f"{CONTAINER_LIB}/gpushare-spin"
PROGRAMS = ("/bin/sh", "/bin/cat", "/bin/ls", "/bin/sleep", "/sbin/ldconfig")

# For machines without CAP_SYS_RESOURCE (ulimits) and systemd (cgroups, events).
SETTINGS = """\
[containers]
pids_limit = 0
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
netns = "none"
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""


def libraries(path: Path | str) -> set[str]:
    """All host files that the program or library loads, including the loader."""
    text = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return {word for line in text.splitlines() for word in line.split() if word.startswith("/") and "cuda" not in word}


@pytest.fixture(scope="session")
def image(tmp_path_factory) -> Path:
    """A root file system of host files, as a tar."""
    wanted = set(PROGRAMS)
    for path in (*PROGRAMS, LIB_DIR / "gpushare-spin", INTERPOSER, INTERPOSER_ML, SIM_LIB_DIR / "libcuda.so.1"):
        wanted |= libraries(path)
    out = tmp_path_factory.mktemp("image") / "rootfs.tar"
    with tarfile.open(out, "w", dereference=True) as tar:
        for path in sorted(wanted):
            tar.add(path, arcname=path.lstrip("/"))
    return out


class Podman:
    def __init__(self, program: Path, directory: Path, cdi: Path, grants: Path) -> None:
        # Shared, as /run is under systemd: later mounts are visible in other namespaces.
        self._shared = grants
        subprocess.run(["mount", "--bind", grants, grants], check=True)
        subprocess.run(["mount", "--make-shared", grants], check=True)
        settings = directory / "containers.conf"
        settings.write_text(SETTINGS)
        self._environment = {**os.environ, "CONTAINERS_CONF": str(settings), "TMPDIR": str(directory)}
        self._command = [str(program), "--root", str(directory / "root"), "--runroot", str(directory / "run")]
        self._command += ["--tmpdir", str(directory / "tmp"), "--storage-driver", "vfs"]

        # One namespace for all commands, because they must share runc's state.
        script = 'mount --bind "$0" /var/run/cdi && echo up && exec sleep infinity'
        self._namespace = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, str(cdi)], stdout=subprocess.PIPE
        )
        assert self._namespace.stdout is not None and self._namespace.stdout.readline() == b"up\n"

    def end(self) -> None:
        self("rm", "--all", "--force", "--time", "0")
        self("rmi", "--all", "--force")
        with self._namespace:
            self._namespace.kill()
        subprocess.run(["umount", "--lazy", self._shared], check=False)

    def line(self, *arguments: object) -> list[str]:
        return ["nsenter", "--mount", "--target", str(self._namespace.pid), *self._command, *map(str, arguments)]

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.line(*arguments),
            capture_output=True,
            text=True,
            timeout=100,
            env=self._environment,
            stdin=subprocess.DEVNULL,
        )

    def program(self, path: Path) -> dict[str, str]:
        """Makes a `podman` command in a directory; returns the environment in which a script finds it."""
        (path / "podman").write_text(f'#!/bin/sh\nexec {shlex.join(self.line())} "$@"\n')
        (path / "podman").chmod(0o755)
        return {**self._environment, "PATH": f"{path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def start(self, *arguments: object) -> subprocess.Popen:
        return subprocess.Popen(
            self.line(*arguments), env=self._environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


def answer(process: subprocess.Popen) -> dict:
    """The next line of a program in a container; fails with what Podman said if there is none."""
    line = process.stdout.readline()
    assert line, f"podman ended with {process.wait()}: {process.stderr.read()}"
    return json.loads(line)


@pytest.fixture(scope="module", params=programs("podman") or [None], ids=str)
def podman(request, shared_node, image) -> Iterator[Podman]:
    if request.param is None:
        pytest.skip("podman is not installed")
    mount_point = Path("/var/run/cdi")
    made_here = not mount_point.exists()
    mount_point.mkdir(exist_ok=True)
    # Not tmp_path: Podman limits the path to 50 characters.
    directory = Path(tempfile.mkdtemp(prefix="gst-"))
    engine = Podman(request.param, directory, shared_node.layout.cdi, shared_node.layout.grants)
    try:
        made = engine("import", "--quiet", image, IMAGE)
        assert made.returncode == 0, made.stderr
        yield engine
    finally:
        engine.end()
        shutil.rmtree(directory)
        if made_here:
            with contextlib.suppress(OSError):  # another run on this machine may have removed it, or use it
                mount_point.rmdir()


def test_container_gets_its_grant(podman, node):
    grant = node.client.create(memory="1GiB", time="30%")
    result = podman(
        "run", "--rm", "--device", grant["cdi"][0], IMAGE, "/bin/sh", "-c",
        f"cat /etc/ld.so.preload; ls /run/gpushare/self; ls $TRITON_LIBCUDA_PATH/libcuda.so.1;"
        f" {SPIN} --alloc 512MiB --kernel-ns 200000 --seconds 0.3",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    *files, ready, alloc, idle = result.stdout.splitlines()
    preloaded = [*grantdir.INTERPOSERS, *(f"{CONTAINER_DRIVER}/{name}" for name in SIM_RUNTIMES)]
    assert files == [
        *preloaded,
        "compat",
        "driver",
        "grant.sock",
        "limits",
        "sim",
        "usage",
        f"{CONTAINER_NAMES}/libcuda.so.1",
    ]
    assert [json.loads(text)["event"] for text in (ready, alloc, idle)] == ["ready", "alloc", "idle"]
    assert json.loads(alloc)["ok"] and json.loads(idle)["kernels"] > 0
    node.nothing_left()
    assert node.client.grant(grant["id"])["phase"] == "released"


def test_the_example(podman, node, tmp_path):
    """examples/podman.sh as it is: 4 GiB can be had and no more, and the grant ends with the container."""
    script = Path(__file__).parents[2] / "examples" / "podman.sh"
    environment = {**podman.program(tmp_path), "GPUSHARE_SOCKET": str(node.layout.socket)}
    sizes = {"3GiB": True, "4GiB": False}
    for size, fits in sizes.items():
        command = [script, IMAGE, SPIN, "--alloc", size, "--seconds", "0"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[1])["ok"] == fits
    node.nothing_left()


def test_a_program_that_brings_a_cuda_runtime(podman, node, hooks_dir):
    """It links a shared libcudart, which only gpushare provides in the container; by CDI and by annotations."""
    bound = f"--volume={built.program('cudart')}:/program:ro"
    grant = node.client.create(memory="1GiB", time="30%")
    *by_annotation, _ = annotated(hooks_dir, "1GiB")
    for asked in (["run", "--rm", "--device", grant["cdi"][0]], by_annotation):
        result = podman(*asked, bound, IMAGE, "/program")
        assert (result.returncode, result.stdout) == (0, "1\n"), result.stderr


def annotations(memory: str, prefix: str = "gpushare.dev/") -> list[str]:
    wanted = {"memory": memory, "time": "30%"}
    return [part for name, value in wanted.items() for part in ("--annotation", f"{prefix}{name}={value}")]


def test_a_share_of_any_device(podman, node):
    """By the CDI device `any` and annotations, or variables, without a grant made before and without configuration of
    Podman."""
    device = ("--device", "gpushare.dev/gpu=any")
    for size, result in (("512MiB", "CUDA_SUCCESS"), ("1GiB", "CUDA_ERROR_OUT_OF_MEMORY")):
        answer = podman("run", "--rm", *device, *annotations("1GiB"), IMAGE, SPIN, "--alloc", size, "--seconds", "0")
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout.splitlines()[1])["name"] == result
        node.nothing_left()
    size = ("--env", "GPUSHARE_MEMORY=1GiB", "--env", "GPUSHARE_TIME=30%")
    answer = podman("run", "--rm", *device, *size, IMAGE, SPIN, "--alloc", "1GiB", "--seconds", "0")
    assert json.loads(answer.stdout.splitlines()[1])["name"] == "CUDA_ERROR_OUT_OF_MEMORY", answer.stderr
    refused = podman("run", "--rm", *device, IMAGE, "/bin/cat")
    assert refused.returncode != 0 and "give gpushare.dev/memory and gpushare.dev/time" in refused.stderr


def test_a_container_that_is_started_again_has_a_share_again(podman, node):
    device = ("--device", "gpushare.dev/gpu=any")
    made = podman("create", *device, *annotations("1GiB"), IMAGE, SPIN, "--alloc", "512MiB", "--seconds", "0")
    name = made.stdout.strip()
    for _ in range(2):
        answer = podman("start", "--attach", name)
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout.splitlines()[1])["ok"]
        node.nothing_left()
    podman("rm", name)


def test_memory_limit(podman, node):
    """It also applies to a second container with the same device, as in a pod that restarts a container."""
    grant = node.client.create(memory="1GiB", time="30%", keep=True)
    for _ in range(2):
        result = podman("run", "--rm", "--device", grant["cdi"][0], IMAGE, SPIN, "--alloc", "1GiB", "--seconds", "0")
        assert json.loads(result.stdout.splitlines()[1])["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    node.client.release(grant["id"])
    result = podman("run", "--rm", "--device", grant["cdi"][0], IMAGE, SPIN, "--seconds", "0")
    assert result.returncode != 0


def test_nvidia_smi_shows_the_share(podman, node):
    """Every image has it, as those on a node with a real driver."""
    ask = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    grant = node.client.create(memory="1GiB", time="30%")
    result = podman("run", "--rm", "--device", grant["cdi"][0], IMAGE, *ask)
    assert (result.stdout, result.returncode) == ("gpushare simulated GPU, 1024 MiB\n", 0), result.stderr


def test_exec_gets_it_too(podman, node):
    """An exec gets no environment from CDI, but the preload file applies there too."""
    grant = node.client.create(memory="1GiB", time="30%")
    process = podman.start(
        "run", "--rm", "--interactive", "--name", "gst-exec", "--device", grant["cdi"][0], IMAGE, "/bin/cat"
    )
    with process:
        process.stdin.write("up\n")
        process.stdin.flush()
        assert process.stdout.readline() == "up\n"
        result = podman("exec", "gst-exec", SPIN, "--alloc", "600MiB", "--seconds", "0")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout.splitlines()[1])["ok"]
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize("ways", ["grant", "any", "hook"])
def test_read_only_root_and_what_is_mounted_on_run(podman, node, hooks_dir, tmp_path, ways):
    options = ["--hooks-dir", str(hooks_dir)] if ways == "hook" else []
    for more in (["--read-only"], ["--read-only", "--tmpfs", "/run"], [f"--volume={tmp_path}:/run"]):
        asked = annotations("1GiB") if ways != "grant" else []
        if ways != "hook":
            name = node.client.create(memory="1GiB", time="30%")["id"] if ways == "grant" else ways
            asked += ["--device", f"gpushare.dev/gpu={name}"]
        result = podman(*options, "run", "--rm", *more, *asked, IMAGE, SPIN, "--alloc", "1GiB", "--seconds", "0")
        assert result.returncode == 0, (more, result.stderr)
        assert json.loads(result.stdout.splitlines()[1])["name"] == "CUDA_ERROR_OUT_OF_MEMORY", more


def test_grant_that_has_ended(podman, node):
    grant = node.client.create(memory="1GiB", time="30%")
    node.client.release(grant["id"])
    result = podman("run", "--rm", "--device", grant["cdi"][0], IMAGE, "/bin/cat")
    assert result.returncode != 0
    assert "unresolvable CDI devices" in result.stderr


def test_two_containers_in_one_grant(podman, node):
    """They share its limit, and the grant lives until the last of them has ended."""
    grant = node.client.create(memory="1GiB", time="30%")
    options = ("run", "--rm", "--interactive", "--device", grant["cdi"][0], IMAGE, SPIN)
    process = podman.start(*options, "--alloc", "600MiB")
    with process:
        assert answer(process)["event"] == "ready"
        assert answer(process)["ok"]
        second = podman(*options, "--alloc", "600MiB", "--seconds", "0")
        assert second.returncode == 0, second.stderr
        assert json.loads(second.stdout.splitlines()[1])["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert node.client.grant(grant["id"])["phase"] == "active"
        process.stdin.close()
        assert process.wait(30) == 0
    node.nothing_left()


@pytest.mark.promise("no-request-no-gpu")
def test_no_request_sees_no_gpu_and_needs_no_daemon(podman, node):
    node.kill()
    result = podman("run", "--rm", IMAGE, "/bin/ls", "/run", "/etc", "/dev")
    assert result.returncode == 0, result.stderr
    assert "gpushare" not in result.stdout and "preload" not in result.stdout and "nvidia" not in result.stdout


def test_killed_container(podman, node):
    grant = node.client.create(memory="1GiB", time="30%")
    process = podman.start(
        "run", "--rm", "--interactive", "--device", grant["cdi"][0], IMAGE, SPIN, "--alloc", "256MiB"
    )
    with process:
        assert answer(process)["event"] == "ready"
        os.kill(node.client.grant(grant["id"])["pid"], 9)
        assert process.wait(30) == 137
    until(lambda: not node.client.grants(), "the grant ends")


@pytest.fixture
def hooks_dir(tmp_path, node) -> Path:
    """The hooks directory as an administrator installs it, with the hook of this build and the socket of this
    daemon."""
    text = json.loads(hook_text())
    text["hook"]["path"] = str(HOOK)
    text["hook"]["args"] += ["--socket", str(node.layout.socket)]
    (tmp_path / "hooks.d").mkdir()
    (tmp_path / "hooks.d" / HOOK_FILE).write_text(json.dumps(text))
    return tmp_path / "hooks.d"


def annotated(hooks_dir: Path, memory: str, prefix: str = "gpushare.dev/") -> list[str]:
    return ["--hooks-dir", str(hooks_dir), "run", "--rm", *annotations(memory, prefix), IMAGE]


def test_by_annotation(podman, node, hooks_dir):
    result = podman(*annotated(hooks_dir, "1GiB"), SPIN, "--alloc", "512MiB", "--seconds", "0")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[1])["ok"]


@pytest.mark.parametrize("ways", ["hook", "device", "hook and device", "hook and runtime"])
def test_what_the_image_preloads_is_kept(podman, node, hooks_dir, tmp_path, ways):
    """Once, before ours, and ours once, also where a container asks in two ways at once."""
    script = "printf '/lib/own.so\n/lib/own-too.so\n' > /etc/ld.so.preload"
    made = podman("run", "--name", "gst-own", IMAGE, "/bin/sh", "-c", f"{script} 2>/dev/null")
    assert made.returncode == 0, made.stderr
    assert podman("commit", "--quiet", "gst-own", "localhost/gst-own:1").returncode == 0
    podman("rm", "gst-own")
    options = ["--hooks-dir", str(hooks_dir)] if "hook" in ways else []
    if "runtime" in ways:
        wrapper = tmp_path / "gpushare-runtime"
        wrapper.write_text(f'#!/bin/sh\nexec {RUNTIME_WRAPPER} --gpushare-socket={node.layout.socket} "$@"\n')
        wrapper.chmod(0o755)
        options += ["--runtime", str(wrapper)]
    device = ["--device", "gpushare.dev/gpu=any"] if "device" in ways else []
    result = podman(*options, "run", "--rm", *device, *annotations("1GiB"), "localhost/gst-own:1", "/bin/cat",
                    "/etc/ld.so.preload")  # fmt: skip
    preloaded = [*grantdir.INTERPOSERS, *(f"{CONTAINER_DRIVER}/{name}" for name in SIM_RUNTIMES)]
    assert result.stdout.splitlines() == ["/lib/own.so", "/lib/own-too.so", *preloaded], result.stderr


def test_the_loaders_cache_lists_the_interposer_as_the_driver(podman, node, hooks_dir):
    """It lists the interposer as the driver where the root is read-only, and elsewhere once ldconfig has run."""
    *options, image = annotated(hooks_dir, "1GiB")
    result = podman(*options, "--read-only", image, "/sbin/ldconfig", "-p")
    assert f"=> {CONTAINER_NAMES}/libcuda.so.1\n" in result.stdout, result.stderr
    script = "echo include /etc/ld.so.conf.d/*.conf > /etc/ld.so.conf; /sbin/ldconfig && /sbin/ldconfig -p"
    grant = node.client.create(memory="1GiB", time="30%")
    for asked in (options, ["run", "--rm", "--device", grant["cdi"][0]]):
        result = podman(*asked, image, "/bin/sh", "-c", script)
        assert result.returncode == 0 and "libc.so.6" in result.stdout, result.stderr
        assert f"=> {CONTAINER_NAMES}/libcuda.so.1\n" in result.stdout


@pytest.mark.parametrize(
    ("memory", "prefix", "message"), [("17GiB", "gpushare.dev/", "17GiB"), ("1GiB", "GPUSHARE.dev/", "small")]
)
def test_refused_annotation(podman, node, hooks_dir, memory, prefix, message):
    result = podman(*annotated(hooks_dir, memory, prefix), "/bin/cat")
    assert result.returncode != 0
    assert result.stdout == ""
    assert message in result.stderr
