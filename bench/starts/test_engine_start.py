"""What gpushare adds to the start of a container, for each installed engine: with its own runtime, with gpushare's and
no request, and with gpushare's and a share, in turns. Measured from the command to the end of `/bin/true` in it."""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines import cri
from engines.installed import IMAGE, PODMAN, SHARE, Docker, configure, dockers_own, programs, running
from run.running import Daemon
from test_runc import bundle

from gpushare.paths import RUNTIME_WRAPPER

ROUNDS = 30
WARM = 3
TRUE = "/bin/true"
Start = Callable[[], None]
KINDS = ("own", "none", "share")


@pytest.fixture
def short() -> Iterator[Path]:
    """A replacement for tmp_path, which is too long for a socket's address."""
    with tempfile.TemporaryDirectory(prefix="gst-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def wrapper(short: Path, node: Daemon) -> Path:
    """gpushare's runtime, in a script that gives it this daemon's socket."""
    return script(short / "gpushare-runtime", f"{RUNTIME_WRAPPER} --gpushare-socket={node.layout.socket}")


@pytest.fixture
def plain(short: Path) -> Path:
    """The engine's own runtime, also in a script."""
    return script(short / "plain-runtime", str(shutil.which("runc")))


def script(path: Path, command: str) -> Path:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path


def measured(starts: dict[str, Start]) -> dict[str, list[float]]:
    """Milliseconds of each kind of start, in turns; each kind is first equally often."""
    found: dict[str, list[float]] = {kind: [] for kind in starts}
    kinds = list(starts)
    for number in range(WARM + ROUNDS):
        kinds = kinds[1:] + kinds[:1]
        for kind in kinds:
            at = time.perf_counter()
            starts[kind]()
            if number >= WARM:
                found[kind].append(1000 * (time.perf_counter() - at))
    return found


def reported(report: Callable[..., None], name: str, times: dict[str, list[float]], most: float | None) -> None:
    """Reports an engine. `most`: milliseconds that a share may add, where no request may add 1; None: both bounds are
    the spread of the engine's own starts."""
    own = statistics.median(times["own"])
    noise = statistics.quantiles(times["own"], n=10)
    spread = noise[-1] - noise[0]
    base = f"{name} alone: {own:.1f} ms, 8 of 10 within {spread:.1f} ms"
    for kind, what, target in (("none", "without a request", most and 1.0), ("share", "with a share", most)):
        more = statistics.median(b - a for a, b in zip(times["own"], times[kind], strict=True))
        limit = spread if target is None else target
        words = "within the noise" if target is None else f"<= {target:g} ms"
        report(f"{name}, {what}", f"{more:+.1f} ms (median of {ROUNDS})", base, words, more <= limit)


def run(*command: object, env: dict[str, str] | None = None) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_a_runtime(runtime: str, node: Daemon, report: Callable[..., None], short: Path, tmp_path: Path) -> None:
    if shutil.which(runtime) is None:
        pytest.skip(f"{runtime} is not installed")
    ours = [RUNTIME_WRAPPER, f"--gpushare-socket={node.layout.socket}"]
    if runtime != "runc":
        ours.append(f"--gpushare-runtime={shutil.which(runtime)}")
    plain, asking = bundle(tmp_path / "plain"), bundle(tmp_path / "asking")
    config = json.loads((asking / "config.json").read_text())
    config["annotations"] = SHARE

    def share() -> None:
        (asking / "config.json").write_text(json.dumps(config))
        run(*ours, "run", "--bundle", asking, f"bench-{os.getpid()}")

    starts = {
        "own": lambda: run(runtime, "run", "--bundle", plain, f"bench-{os.getpid()}"),
        "none": lambda: run(*ours, "run", "--bundle", plain, f"bench-{os.getpid()}"),
        "share": share,
    }
    try:
        starts["own"]()
    except AssertionError as error:
        pytest.skip(f"{runtime} starts nothing on this machine: {error}")
    reported(report, runtime, measured(starts), 5.0)


def installed(name: str) -> Path:
    found = programs(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found[0]


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with nothing but busybox."""
    directory = tmp_path_factory.mktemp("image")
    (directory / "bin").mkdir()
    for name in ("true", "sh"):
        shutil.copy("/bin/busybox", directory / "bin" / name)
    run("tar", "--create", "--file", directory / "rootfs.tar", "--directory", directory, "bin")
    return directory / "rootfs.tar"


def test_podman(
    node: Daemon, report: Callable[..., None], wrapper: Path, plain: Path, rootfs: Path, short: Path
) -> None:
    program = installed("podman")
    config = short / "containers.conf"
    config.write_text(PODMAN)
    hooks = ["--hooks-dir", str(short / "hooks")]
    configure("podman", config, program, "--runtime-path", str(wrapper), *hooks)
    (short / "hooks" / "gpushare.json").unlink()  # it names the default socket
    environment = {**os.environ, "CONTAINERS_CONF": str(config), "TMPDIR": str(short)}
    base = [program, "--root", short / "root", "--runroot", short / "run", "--tmpdir", short / "tmp"]

    def podman(*arguments: object) -> None:
        run(*base, "--storage-driver", "vfs", *arguments, env=environment)

    asked = [part for name, value in SHARE.items() for part in ("--annotation", f"{name}={value}")]
    try:
        podman("import", "--quiet", rootfs, IMAGE)
        starts = {
            "own": lambda: podman("--runtime", plain, "run", "--rm", IMAGE, TRUE),
            "none": lambda: podman("--runtime", "gpushare", "run", "--rm", IMAGE, TRUE),
            "share": lambda: podman("--runtime", "gpushare", "run", "--rm", *asked, IMAGE, TRUE),
        }
        reported(report, "podman", measured(starts), None)
    finally:
        with contextlib.suppress(AssertionError):
            podman("rm", "--all", "--force")
            podman("rmi", "--all", "--force")


def test_docker(
    node: Daemon, report: Callable[..., None], wrapper: Path, plain: Path, rootfs: Path, short: Path
) -> None:
    program = installed("dockerd")
    config, work = short / "daemon.json", short / "docker"
    config.write_text(json.dumps(dockers_own(work, runtimes={"plain": {"path": str(plain)}})))
    work.mkdir()
    configure("docker", config, program, "--runtime-path", str(wrapper))
    docker = Docker(work / "sock")
    with running(program, "--config-file", config, ready=docker.is_up, log=short / "log", path=program):
        if int(json.loads(docker("GET", "/version")[1])["Version"].split(".")[0]) < 24:
            pytest.skip("this Docker cannot pass annotations on")
        docker.load(rootfs)

        def start(runtime: str, annotations: dict[str, str]) -> None:
            status, answer = docker.run(runtime, TRUE, Annotations=annotations)
            assert status == 204, answer

        starts = {
            "own": lambda: start("plain", {}),
            "none": lambda: start("gpushare", {}),
            "share": lambda: start("gpushare", SHARE),
        }
        reported(report, "docker", measured(starts), None)


def test_containerd(
    node: Daemon, report: Callable[..., None], wrapper: Path, plain: Path, rootfs: Path, short: Path
) -> None:
    program, ctr = installed("containerd"), installed("ctr")
    config, work = short / "config.toml", short / "containerd"
    work.mkdir()
    config.write_text(
        f'version = 2\nroot = "{work}/root"\nstate = "{work}/state"\n'
        'disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\n  address = "{work}/sock"\n[ttrpc]\n  address = "{work}/ttrpc"\n'
    )
    base = [ctr, "--address", work / "sock"]

    def is_up() -> bool:
        return subprocess.run([*map(str, base), "version"], capture_output=True).returncode == 0

    with running(program, "--config", config, ready=is_up, log=short / "log", path=program):
        image = work / "image.tar"
        cri.image_archive(rootfs, image)
        run(*base, "image", "import", "--snapshotter", "native", image)
        asked = [part for name, value in SHARE.items() for part in ("--annotation", f"{name}={value}")]

        def start(*options: object) -> None:
            run(*base, "run", "--rm", "--snapshotter", "native", *options, cri.IMAGE, "bench", TRUE)

        starts = {
            "own": lambda: start("--runc-binary", plain),
            "none": lambda: start("--runc-binary", wrapper),
            "share": lambda: start("--runc-binary", wrapper, *asked),
        }
        reported(report, "containerd (ctr)", measured(starts), None)
