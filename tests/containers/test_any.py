"""CDI devices that do not represent a grant: `any`, and a GPU's UUID. Tested with the runtime alone, on a node with two
devices; support/cdi_apply.py applies the spec as an engine would."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engines.cdi_engine import ALLOC, SHARE, SPIN, allocated
from engines.installed import make_rootfs
from run.running import Daemon
from run.waiting import until

from gpushare.inject import grantdir
from gpushare.inject.node import Node
from gpushare.paths import CONTAINER_LIB, CONTAINER_NAMES, HOOK, INTERPOSER, RUNTIME_WRAPPER, SIM_LIB_DIR

pytestmark = pytest.mark.xdist_group("machine")


def test_a_share_of_any_device(runtime, pair):
    assert allocated(runtime.run(*ALLOC))["ok"]
    pair.nothing_left()
    # Only annotations decide whether a device has room: this allocation does not fit into its own share.
    assert allocated(runtime.run(SPIN, "--alloc", "1GiB", "--seconds", "0"))["name"] == "CUDA_ERROR_OUT_OF_MEMORY"


@pytest.mark.parametrize("named", [True, False])
def test_a_container_with_users_of_its_own(runtime, pair, short_path, named):
    """The container's root is an unprivileged user on the host; the hook, which is the host's root, can enter the
    container."""
    short_path.chmod(0o755)

    def change(config, root):
        for path in (root, *(path for path in root.iterdir() if not path.is_symlink())):
            os.chown(path, 100_000, 100_000)
        mapping = [{"containerID": 0, "hostID": 100_000, "size": 65536}]
        config["linux"].update(uidMappings=mapping, gidMappings=mapping)
        config["linux"]["namespaces"].append({"type": "user"})

    device = pair.client.create(**SHARE)["id"] if named else "any"
    assert allocated(runtime.run(*ALLOC, devices=[device], change=change))["ok"]


# crun starts nothing where both versions of cgroups are mounted.
CRUN = (
    "unshare",
    "--mount",
    "--propagation",
    "slave",
    "sh",
    "-c",
    'umount -l /sys/fs/cgroup/unified 2>/dev/null; exec crun "$@"',
    "crun",
)


@pytest.fixture
def propagated(pair) -> Iterator[None]:
    """The daemon's mounts are visible in other namespaces, as under systemd."""
    grants = pair.layout.grants
    subprocess.run(["mount", "--bind", grants, grants], check=True)
    subprocess.run(["mount", "--make-shared", grants], check=True)
    yield
    subprocess.run(["umount", "--lazy", grants], check=True)


@pytest.mark.skipif(shutil.which("crun") is None, reason="crun is not installed")
@pytest.mark.parametrize("named", [True, False])
def test_crun(runtime, pair, propagated, named):
    """Not with `any`: without cgroup v2, crun makes no cgroup in which the daemon can restrict devices. Also where the
    engine mounts a tmpfs over the share."""
    for over in ((), ({"destination": "/run", "type": "tmpfs", "source": "tmpfs"},)):
        device = pair.client.create(**SHARE)["id"] if named else pair.client.devices()[1]["id"]
        options = {"runtime": CRUN, "after": lambda config, over=over: config["mounts"].extend(over)}
        assert allocated(runtime.run(*ALLOC, devices=[device], **options))["ok"]


@pytest.mark.parametrize("named", [False, True])
def test_the_engine_makes_mounts_read_only(runtime, pair, named):
    """With --read-only, Docker does so for all bind mounts that do not say `ro` themselves."""

    def narrow(config: dict) -> None:
        config["root"]["readonly"] = True
        for mount in config["mounts"]:
            if mount["type"] == "bind" and "ro" not in mount["options"]:
                mount["options"].append("ro")

    asked = {"devices": [pair.client.create(memory="1GiB", time="30%")["id"]], "annotations": {}} if named else {}
    assert allocated(runtime.run(*ALLOC, **asked, after=narrow))["ok"]
    pair.nothing_left()


def test_each_container_has_a_share_of_its_own(runtime, pair):
    """Two shares of 60 % are on different devices, and each container sees only its own; a third has no room."""
    share = {"memory": "1GiB", "time": "60%"}
    nodes = sorted(node["path"] for node in _nodes(pair))
    assert len(nodes) == 2
    script = f"ls {' '.join(nodes)} 2>/dev/null; exec {SPIN} --alloc 512MiB"
    processes = [runtime.start("/bin/sh", "-c", script, annotations=share) for _ in range(2)]
    try:
        seen = [process.stdout.readline().strip() for process in processes]
        assert sorted(seen) == nodes
        for process in processes:
            assert json.loads(process.stdout.readline())["event"] == "ready"
            assert json.loads(process.stdout.readline())["ok"]
        by_device = {grant["devices"][0]["id"]: grant for grant in pair.client.grants()}
        assert len(by_device) == 2 and all(grant["phase"] == "active" for grant in by_device.values())
        third = runtime.run(*ALLOC, annotations=share)
        assert third.returncode != 0 and "60%" in third.stderr
    finally:
        for process in processes:
            process.stdin.close()
            process.wait(30)
            process.stdout.close()
            process.stderr.close()


def test_the_other_devices_node_is_refused_whatever_its_name(runtime, pair):
    """The engine was given both devices, but the container cannot open the other one, even if it makes its node again;
    under the v1 controller it cannot even make the node."""
    own, other = _nodes(pair)
    first = pair.client.devices()[0]["id"]
    script = f"""
    for node in "{own["path"]} {own["minor"]}" "/dev/again {other["minor"]}"; do
      set -- $node
      [ -e $1 ] || mknod $1 c {other["major"]} $2
      said=$( (: < $1) 2>&1 )
      echo "$1 ${{answer##*: }}"
    done
    """

    def change(config, root):
        sets = ("bounding", "effective", "permitted")
        config["process"]["capabilities"] = {kind: ["CAP_MKNOD"] for kind in sets}
        config["linux"]["resources"]["devices"] = [{"allow": True, "type": "c", "access": "m"}]

    result = runtime.run("/bin/sh", "-c", script, annotations={**SHARE, "device": first}, change=change)
    answer = result.stdout.splitlines()
    assert answer[0] == f"{own['path']} No such device or address", result.stderr
    assert answer[1] in ("/dev/again No such file", "/dev/again Operation not permitted")
    assert len(answer) == 2 and "Operation not permitted" in result.stdout + result.stderr


def _nodes(node: Daemon) -> list[dict]:
    spec = json.loads((node.layout.cdi / "gpushare.dev-gpu_any.json").read_text())
    return [found for device in spec["devices"] if device["name"] == "any"
            for found in device["containerEdits"]["deviceNodes"]]  # fmt: skip


def test_a_device_by_its_uuid(runtime, pair):
    second = pair.client.devices()[1]["id"]
    with runtime.start(SPIN, "--alloc", "512MiB", devices=[second]) as process:
        assert json.loads(process.stdout.readline())["event"] == "ready"
        assert json.loads(process.stdout.readline())["ok"]
        (grant,) = pair.client.grants()
        assert [device["id"] for device in grant["devices"]] == [second]
        process.stdin.close()
        assert process.wait(30) == 0
    other = runtime.run(*ALLOC, devices=[second], annotations={**SHARE, "device": pair.client.devices()[0]["id"]})
    assert other.returncode != 0 and "annotation gpushare.dev/device" in other.stderr


@pytest.mark.parametrize(("device", "variable", "there"), [(1, "0", True), (0, "0", True), (1, "1", False)])
def test_the_images_device_numbers_are_the_shares(runtime, pair, device, variable, there):
    """What an image, a compose file or `--env` sets. The share's device has the number 0."""
    wanted = SHARE | {"device": str(device)}
    result = runtime.run(*ALLOC, annotations=wanted, change=sets(f"CUDA_VISIBLE_DEVICES={variable}"))
    if there:
        assert allocated(result)["ok"]
    else:
        assert "CUDA_VISIBLE_DEVICES=1 names no device of this share: it has 1, numbered from 0" in result.stderr


def sets(variable: str) -> Callable[[dict, Path], None]:
    return lambda config, root: config["process"]["env"].append(variable)


def test_both_names_are_one_share(runtime, pair):
    """A container with both names has one share, with the device in it once."""
    second = pair.client.devices()[1]["id"]
    with runtime.start(SPIN, "--alloc", "512MiB", devices=[second, "any"]) as process:
        assert json.loads(process.stdout.readline())["event"] == "ready"
        assert json.loads(process.stdout.readline())["ok"]
        assert len(pair.client.grants()) == 1
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("annotations", "message"),
    [
        ({}, "give gpushare.dev/memory and gpushare.dev/time"),
        ({"memory": "1GiB"}, "gpushare.dev/time is missing"),
        ({"memory": "100GiB", "time": "10%"}, "100GiB"),
        ({"grant": "g-0123456789ab"}, "g-0123456789ab"),
    ],
)
def test_what_is_refused_does_not_start(runtime, pair, annotations, message):
    result = runtime.run("/bin/echo", "started", annotations=annotations)
    assert result.returncode != 0 and result.stdout == ""
    assert message in result.stderr


def _environment(*variables: str):
    return lambda config, root: config["process"]["env"].extend(variables)


@pytest.mark.parametrize("device", ["any", "uuid"])
def test_a_size_by_the_environment(runtime, pair, device):
    """For clients that know no annotations: whoever names the device asks, and the environment says for how much."""
    name = pair.client.devices()[1]["id"] if device == "uuid" else device
    asked = {"devices": [name], "annotations": {}}
    change = _environment("GPUSHARE_MEMORY=1GiB", "GPUSHARE_TIME=30%", "GPUSHARE_CLASS=interactive")
    with runtime.start(SPIN, "--alloc", "512MiB", **asked, change=change) as process:
        assert json.loads(process.stdout.readline() or "{}").get("event") == "ready", process.stderr.read()
        assert json.loads(process.stdout.readline())["ok"]
        (grant,) = pair.client.grants()
        (share,) = grant["devices"]
        assert (share["memory_limit_bytes"], share["time_milli"], grant["class"]) == (1 << 30, 300, "interactive")
        process.stdin.close()
        assert process.wait(30) == 0


@pytest.mark.promise("image-asks-nothing")
def test_an_image_asks_for_nothing_in_its_users_name(runtime, pair):
    """Without the device nobody has asked; with annotations, those alone count; a tenant is nobody's to name there."""
    image = _environment("GPUSHARE_MEMORY=8GiB", "GPUSHARE_TIME=100%")
    wrapper = [str(RUNTIME_WRAPPER), f"--gpushare-socket={pair.layout.socket}"]
    for under in (["runc"], wrapper):
        none = runtime.run(
            "/bin/sh", "-c", "test ! -e /run/gpushare && echo none",
            devices=[], annotations={}, runtime=under, change=image,
        )  # fmt: skip
        assert none.stdout == "none\n", none.stderr
    beyond = runtime.run(SPIN, "--alloc", "1GiB", "--seconds", "0", change=image)
    assert allocated(beyond)["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    tenant = _environment("GPUSHARE_MEMORY=1GiB", "GPUSHARE_TIME=1%", "GPUSHARE_TENANT=research")
    refused = runtime.run("/bin/echo", "started", annotations={}, change=tenant)
    assert refused.returncode != 0 and refused.stdout == ""
    assert "GPUSHARE_TENANT is not read" in refused.stderr


def test_no_daemon_no_start(runtime, pair):
    pair.away()
    result = runtime.run("/bin/echo", "started")
    assert result.returncode != 0 and result.stdout == ""
    assert "no daemon answers" in result.stderr


def test_a_daemon_that_was_killed_is_waited_for(runtime, pair):
    pair.kill()
    with runtime.start(*ALLOC) as process:
        pair.start()
        out, answer = process.communicate(timeout=60)
    assert process.returncode == 0, answer
    assert '"ok": true' in out


def test_a_container_that_is_restarted_meanwhile_is_another(runtime, pair):
    """As an engine restarts it: in a cgroup of the same path. The device has no room for both."""
    device = pair.client.devices()[0]["id"]
    command = runtime.command("/bin/cat", devices=(device,), annotations={**SHARE, "time": "60%"})
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe):
        [before] = until(lambda: [one for one in pair.client.grants() if one["phase"] == "active"], "it runs")
        pair.kill()
        os.kill(before["pid"], signal.SIGKILL)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        until(lambda: process.poll() is not None or hook_of(process.pid), "its hook waits for the daemon")
        pair.start()
        out, answer = process.communicate("again\n", timeout=60)
    assert (process.returncode, out) == (0, "again\n"), answer


def hook_of(runtime_pid: int) -> bool:
    """Whether the runtime has started our hook."""
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{runtime_pid}/task").glob("*/children"):
            if any(Path(f"/proc/{pid}/comm").read_text() == f"{HOOK.name}\n" for pid in children.read_text().split()):
                return True
    return False


def test_with_the_runtime_wrapper_too(runtime, pair):
    """The wrapper gives the share, which the hook then finds."""
    wrapper = [str(RUNTIME_WRAPPER), f"--gpushare-socket={pair.layout.socket}"]
    with runtime.start(SPIN, "--alloc", "512MiB", runtime=wrapper) as process:
        assert json.loads(process.stdout.readline())["event"] == "ready", process.stderr.read()
        assert json.loads(process.stdout.readline())["ok"]
        assert len(pair.client.grants()) == 1
        process.stdin.close()
        assert process.wait(30) == 0


def test_a_container_keeps_its_share_when_the_daemon_starts_again(runtime, pair):
    with runtime.start(SPIN, "--alloc", "512MiB") as process:
        assert json.loads(process.stdout.readline())["event"] == "ready"
        assert json.loads(process.stdout.readline())["ok"]
        pair.kill()
        pair.start()
        process.stdin.write("alloc 600MiB\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
        (grant,) = pair.client.grants()
        assert grant["phase"] == "active"
        process.stdin.close()
        assert process.wait(30) == 0


def _with_a_driver(config: dict, root: Path) -> None:
    """Puts the driver's library into the image, with a link to it whose target is absolute."""
    for place in ("usr-local-cuda", "opt"):
        (root / place).mkdir()
    shutil.copy(SIM_LIB_DIR / "libcuda.so.1", root / "opt" / "libcuda.so.575.1")
    (root / "opt" / "libcuda.so.1").symlink_to("/opt/libcuda.so.575.1")
    config["process"]["env"].append("LD_LIBRARY_PATH=/opt")


@pytest.mark.parametrize("named", [True, False])
def test_the_images_own_driver_is_the_interposer(runtime, pair, named):
    """Even if it is opened by its path. The loader's cache also names the driver."""
    device = pair.client.create(**SHARE)["id"] if named else "any"
    script = f"cmp /opt/libcuda.so.1 {CONTAINER_LIB}/{INTERPOSER.name} && echo same; /sbin/ldconfig -p"

    def change(config, root):
        _with_a_driver(config, root)
        shutil.copy("/etc/ld.so.cache", root / "etc" / "ld.so.cache")

    result = runtime.run("/bin/sh", "-c", script, devices=[device], change=change)
    assert result.stdout.startswith("same\n"), result.stderr
    assert f"=> {CONTAINER_NAMES}/libcuda.so.1\n" in result.stdout


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("how", ["named", "any", "wrapper", "wrapper and any", "wrapper and named"])
def test_what_the_image_preloads_is_kept(runtime, pair, how, link):
    """Also where a container asks in two ways at once, as under a Docker whose default runtime is ours."""
    devices = [pair.client.create(**SHARE)["id"] if way == "named" else way for way in how.split(" and ")]
    options: dict = {"devices": [device for device in devices if device != "wrapper"]}
    if how == "wrapper and named":
        options["annotations"] = {"grant": devices[1]}
    if "wrapper" in how:
        options["runtime"] = [str(RUNTIME_WRAPPER), f"--gpushare-socket={pair.layout.socket}"]
    library = next(Path("/lib").glob("*-linux-gnu/libm.so.6"))

    def change(config, root):
        own = root / "etc" / ("own.preload" if link else "ld.so.preload")
        own.write_text(f"{library}\n")
        if link:
            (root / "etc" / "ld.so.preload").symlink_to("/etc/own.preload")

    result = runtime.run("/bin/cat", "/etc/ld.so.preload", "/proc/self/maps", change=change, **options)
    lines = result.stdout.splitlines()
    preloaded = lines[: lines.index(next(line for line in lines if "-" in line.split()[0] and " r" in line))]
    assert preloaded == [str(library), *grantdir.preloaded(Node(sim_dir=Path("/")))], result.stderr
    assert INTERPOSER.name in result.stdout.partition("/etc/ld.so")[0] and "libm.so.6" in result.stdout


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory) -> Path:
    return make_rootfs(tmp_path_factory.mktemp("image") / "rootfs.tar")


def _compatible(config: dict, root: Path, rootfs: Path) -> None:
    """Makes an image with its own files and a newer driver that names no older ones."""
    for name in ("usr", "lib", "lib32", "lib64", "libx32", "bin", "sbin"):
        with contextlib.suppress(FileNotFoundError):
            (root / name).rmdir() if not (root / name).is_symlink() else (root / name).unlink()
    config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] in ("/proc", "/dev", "/tmp")]
    with tarfile.open(rootfs) as tar:
        tar.extraction_filter = lambda member, _: member  # Python 3.11.2 has no `filter` argument
        tar.extractall(root)
    compat = root / "usr/local/cuda/compat"
    compat.mkdir(parents=True)
    shutil.copy(SIM_LIB_DIR / "libcuda.so.1", compat / "libcuda.so.590.44.01")
    (compat / "libcuda.so.1").symlink_to("libcuda.so.590.44.01")


OLD_DRIVER = (
    "from gpushare.inject.node import Node",
    "from gpushare.node.simulated import SimulatedBackend as Simulated",
    "Simulated.inject = lambda self: Node(sim_dir=self._directory, driver_version='570.86.15')",
)


@pytest.mark.parametrize("how", ["any", "named", "wrapper"])
def test_a_newer_driver_of_the_images_is_the_real_one(runtime, pair, rootfs, how):
    """The interposer is mounted over it where programs look for it, and loads it instead of the host's."""
    with pair.started_with(*OLD_DRIVER):
        given = {
            "any": lambda: {},
            "named": lambda: {"devices": [pair.client.create(**SHARE)["id"]], "annotations": {}},
            "wrapper": lambda: {
                "devices": [],
                "runtime": [str(RUNTIME_WRAPPER), f"--gpushare-socket={pair.layout.socket}"],
            },
        }
        options = {"change": lambda config, root: _compatible(config, root, rootfs), **given[how]()}
        with runtime.start(SPIN, "--alloc", "512MiB", **options) as process:
            assert json.loads(process.stdout.readline() or "{}").get("event") == "ready", process.stderr.read()
            assert json.loads(process.stdout.readline())["ok"]
            maps = Path(f"/proc/{pair.client.grants()[0]['pid']}/maps").read_text()
            assert "/libcuda.so.590.44.01\n" in maps
            assert f"{SIM_LIB_DIR.name}/libcuda.so" not in maps
            process.stdin.close()
            assert process.wait(30) == 0


NO_WALL = (
    "from gpushare.daemon.guard.walls import Walls",
    "Walls._devices = lambda *_: 'this kernel has none'",
)


def test_where_nothing_keeps_it_to_its_device_any_is_refused(runtime, pair):
    """For `any` the engine was given all devices. For a device's name it is given that device alone, which works."""
    with pair.started_with(*NO_WALL):
        refused = runtime.run(*ALLOC)
        assert refused.returncode != 0
        assert "would open all devices to it (this kernel has none)" in refused.stderr
        assert allocated(runtime.run(*ALLOC, devices=[pair.client.devices()[0]["id"]]))["ok"]


def test_links_of_the_image_lead_to_nowhere_else(runtime, pair, tmp_path):
    """The image has a link towards the host where gpushare mounts: late mounts stay in the container."""
    target = tmp_path / "host"
    target.mkdir()

    def change(config, root):
        (root / "run" / "gpushare").symlink_to(f"../../../../../..{target}")

    result = runtime.run("/bin/ls", "/run/gpushare/self", change=change)
    assert result.returncode != 0 or "limits" in result.stdout
    assert list(target.iterdir()) == []
    assert str(target) not in Path("/proc/self/mountinfo").read_text()


def test_nothing_of_it_stays(runtime, pair):
    """After the container, the host's mounts, the grants' directories and the CDI specs are as before."""

    def state() -> tuple[list[str], list[str], list[str]]:
        layout = pair.layout
        return (
            [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(layout.grants) in line],
            sorted(os.listdir(layout.grants)),
            sorted(os.listdir(layout.cdi)),
        )

    before = state()
    assert allocated(runtime.run(*ALLOC))["ok"]
    until(lambda: not pair.client.grants(), "the grant ends")
    until(lambda: state() == before, "nothing is left")
