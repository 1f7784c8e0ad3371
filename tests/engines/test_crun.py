"""A share under each installed crun: through our runtime wrapper, and under each Podman through CDI device and hook.

crun starts nothing on a machine with cgroups of both versions, so it runs in a mount namespace that shows one of them.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines.installed import IMAGE, PODMAN, SHARE, SPIN, allocated, configure, each, programs
from machine import cgroups
from run.waiting import until

from gpushare.demo import bundle
from gpushare.engines.podman import HOOK_FILE, hook_text
from gpushare.paths import HOOK, RUNTIME_WRAPPER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machine")]

SHOWN = {
    1: "umount /sys/fs/cgroup/unified",
    2: "umount --recursive --lazy /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup",
}
HYBRID = Path("/sys/fs/cgroup/unified").is_dir()
HOLD = [*SPIN[:-1], "600"]
LESS = [SPIN[0], "--alloc", "256MiB", *SPIN[3:]]
MORE = [SPIN[0], "--alloc", "768MiB", *SPIN[3:]]


def version(program: Path) -> tuple[int, ...]:
    answer = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return tuple(map(int, re.findall(r"\d+", answer)[:2]))


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def inside(request, program, node) -> Iterator[list[str]]:
    """The prefix for a command that is to see cgroups of one version, and the daemon's CDI specs where Podman looks for
    them."""
    if request.param == 1 and not HYBRID:
        pytest.skip("no cgroups of version 1 are here")
    if request.param == 2 and version(program) < (1, 21):
        pytest.skip("crun 1.8.1 asks there for more locked memory than a process without CAP_SYS_RESOURCE may have")
    # A shared mount, as /run is under systemd: later mounts below it appear in other namespaces too.
    grants, specs = node.layout.grants, Path("/var/run/cdi")
    subprocess.run(["mount", "--bind", grants, grants], check=True)
    subprocess.run(["mount", "--make-shared", grants], check=True)
    made_here = not specs.exists()
    specs.mkdir(exist_ok=True)
    script = f'{SHOWN[request.param]} && mount --bind "$0" {specs} && echo up && exec sleep infinity'
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, str(node.layout.cdi)]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == b"up\n"
                yield ["nsenter", "--mount", "--target", str(process.pid)]
            finally:
                process.kill()
    finally:
        subprocess.run(["umount", "--lazy", grants], check=False)
        if made_here:
            with contextlib.suppress(OSError):  # another run on this machine may have removed it, or use it
                specs.rmdir()
        cgroups.remove()


@each("crun")
def test_by_the_wrapper(program, inside, node, short_path):
    """Started, entered, killed."""
    own = [*inside, RUNTIME_WRAPPER, f"--gpushare-runtime={program}", f"--gpushare-socket={node.layout.socket}"]
    name = short_path.name

    def crun(*arguments: object) -> subprocess.CompletedProcess:
        command = [*map(str, [*own, "--root", short_path / "state", *arguments])]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def made(what: str, annotations: dict[str, str], *command: str) -> Path:
        bundle.make(short_path / what, annotations, list(command), f"/{cgroups.NAME}/{name}-{what}")
        return short_path / what

    none = made("none", {}, "/bin/sh", "-c", "test ! -e /run/gpushare && echo none")
    done = crun("run", "--bundle", none, f"{name}-none")
    assert done.stdout == "none\n", done.stderr
    done = crun("run", "--bundle", made("more", {**SHARE, "gpushare.dev/memory": "1TiB"}, *SPIN), f"{name}-more")
    assert done.returncode != 0 and "gpushare: 1TiB of memory does not fit" in done.stderr
    held = f"{name}-held"
    with (short_path / "out").open("wb") as out:
        command = [*map(str, [*own, "--root", short_path / "state"])]
        command += ["run", "--bundle", str(made("held", SHARE, *HOLD)), held]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    with process:
        until(lambda: allocated((short_path / "out").read_text()), "it has its memory", 20)
        (grant,) = node.client.grants()
        assert grant["phase"] == "active" and grant["pid"] != process.pid
        for command, fits in ((LESS, True), (MORE, False)):
            done = crun("exec", held, *command)
            assert done.returncode == 0, done.stderr
            assert allocated(done.stdout) == fits
        assert node.client.grant(grant["id"])["phase"] == "active"
        assert crun("kill", held, "KILL").returncode == 0
        assert process.wait(20) == 128 + signal.SIGKILL
    until(lambda: not node.client.grants(), "the grant ends", 20)
    crun("delete", "--force", held)


@pytest.mark.parametrize("podman", programs("podman"), ids=str)
@each("crun")
def test_under_podman(program, podman, inside, node, wrapper, rootfs, short_path, capfd):
    """The grant's CDI device, a device that represents no grant, our hook, and our runtime, which starts crun."""
    if version(podman) >= (5,) and version(program) < (1, 21):
        pytest.skip("crun 1.8.1 knows no configuration of the version that Podman 5 writes")
    config, hooks = short_path / "containers.conf", short_path / "hooks"
    config.write_text(PODMAN.replace('runtime = "runc"', f'runtime = "{program}"'))
    wrapper.write_text(wrapper.read_text().replace(' "$@"', f' --gpushare-runtime={program} "$@"'))
    configure("podman", config, podman, "--runtime-path", str(wrapper), "--hooks-dir", str(hooks))
    hook = json.loads(hook_text())
    hook["hook"]["path"] = str(HOOK)
    hook["hook"]["args"] += ["--socket", str(node.layout.socket)]
    (hooks / HOOK_FILE).write_text(json.dumps(hook))
    environment = {**os.environ, "CONTAINERS_CONF": str(config), "TMPDIR": str(short_path)}
    base = [*inside, podman, "--root", short_path / "root", "--runroot", short_path / "run"]
    base += ["--tmpdir", short_path / "tmp", "--storage-driver", "vfs"]

    def run(*arguments: object) -> subprocess.CompletedProcess:
        command = [*map(str, [*base, *arguments])]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)

    asked = [part for name, value in SHARE.items() for part in ("--annotation", f"{name}={value}")]
    by_device = ["--device", node.client.create(memory="1GiB", time="30%")["cdi"][0]]
    ways = {
        "device": ([], by_device),
        "any": ([], ["--device", "gpushare.dev/gpu=any", *asked]),
        "hook": (["--hooks-dir", hooks], asked),
        "runtime": (["--runtime", "gpushare"], asked),
    }
    try:
        assert run("import", "--quiet", rootfs, IMAGE).returncode == 0
        for way, (own, options) in ways.items():
            done = run(*own, "run", "--detach", "--name", way, *options, IMAGE, *HOLD)
            assert done.returncode == 0, done.stderr
            until(lambda: [grant["phase"] for grant in node.client.grants()] == ["active"], f"it runs by {way}", 20)
            until(lambda way=way: allocated(run("logs", way).stdout), "it has its memory", 20)
            for command, fits in ((LESS, True), (MORE, False)):
                done = run("exec", way, *command)
                assert done.returncode == 0, done.stderr
                assert allocated(done.stdout) == fits
            assert run("kill", way).returncode == 0
            until(lambda: not node.client.grants(), "the grant ends", 20)
        plain = run("--hooks-dir", hooks, "run", "--rm", IMAGE, "/bin/sh", "-c", "test ! -e /run/gpushare && echo none")
        assert plain.stdout == "none\n", plain.stderr
    finally:
        run("rm", "--all", "--force", "--time", "0")
        run("rmi", "--all", "--force")
