"""NVIDIA's container toolkit on a node with our shares: its runtime, its CDI device and `--gpus`, alongside our shares
and in one container with them. The toolkit is run where it is unpacked under GPUSHARE_ENGINES. There are no driver and
devices, so it takes what it hands out from a CDI spec, with nodes of NVIDIA's major
(tests/support/engines/gpunodes.py).
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from engines.cri import Cri, configuration, image_archive, message
from engines.gpunodes import NODES, OWN, PROBE, shown, usable
from engines.installed import (
    IMAGE,
    PODMAN,
    SHARE,
    SPIN,
    Docker,
    allocated,
    configure,
    dockers_own,
    each,
    programs,
    running,
)
from engines.nri import Plugin
from machine import cgroups
from run.waiting import until

from gpushare.demo import bundle
from gpushare.engines.configuration import ENGINES
from gpushare.engines.edit import ANNOTATIONS, Options, installed
from gpushare.engines.podman import HOOK_FILE, hook_text
from gpushare.paths import HOOK, RUNTIME_WRAPPER

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machine")]

SPECS = Path("/var/run/cdi")
TOOLKIT = programs("nvidia-ctk")
ALL = "NVIDIA_VISIBLE_DEVICES=all"
GPUS = {"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}  # --gpus all
NAMED = {"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}
BOTH = ["/bin/sh", "-c", f"{' '.join(SPIN)}\n{PROBE}"]
EVERY = {*NODES, OWN}
# Of the nodes handed out, the engine and NVIDIA's runtime let a container open all, ours only those of its grant.
KEPT = {"/dev/nvidiactl"}
# The node's devices are those of NODES; a grant has none of them but nvidiactl.
OTHERS_DEVICE = (
    "from gpushare.daemon.grants.resources import Resources",
    "Resources.numbers = lambda self, record: ({195: {0, 255}}, {(195, 255)})",
)


@pytest.fixture(params=TOOLKIT or [pytest.param(None, marks=pytest.mark.skip(reason="nvidia-ctk is not installed"))])
def toolkit(request, monkeypatch, short_path) -> Path:
    """The directory of the toolkit's programs. Its runtime takes devices from a spec in `nvidia`, below the test's
    directory."""
    where, settings = request.param.parent, short_path / "nvidia-container-runtime"
    monkeypatch.setenv("PATH", f"{where}:{os.environ['PATH']}")
    settings.mkdir()
    (short_path / "nvidia").mkdir()
    (settings / "config.toml").write_text(
        '[nvidia-container-runtime]\nmode = "cdi"\n'
        f'[nvidia-container-runtime.modes.cdi]\nspec-dirs = ["{short_path}/nvidia"]\ndefault-kind = "nvidia.com/gpu"\n'
    )
    return where


@pytest.fixture
def theirs(toolkit, short_path) -> Path:
    """NVIDIA's runtime with its configuration, whatever environment an engine starts it with."""
    path = short_path / "nvidia-runtime"
    path.write_text(f'#!/bin/sh\nXDG_CONFIG_HOME={short_path} exec {toolkit}/nvidia-container-runtime "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def spec(toolkit, short_path) -> Path:
    """A CDI spec as `nvidia-ctk cdi generate` writes it, with its hooks."""
    library = short_path / "libcuda.so.570.1"
    library.write_bytes(b"\x7fELF")
    place = "/usr/lib/x86_64-linux-gnu"
    hook = {"hookName": "createContainer", "path": str(toolkit / "nvidia-cdi-hook")}
    links = ["create-symlinks", "--link", f"libcuda.so.570.1::{place}/libcuda.so.1"]
    edits = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "hooks": [
            {**hook, "args": ["nvidia-cdi-hook", *links]},
            {**hook, "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", place]},
        ],
        "mounts": [
            {
                "hostPath": str(library), "containerPath": f"{place}/libcuda.so.570.1",
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }
        ],
    }  # fmt: skip
    device = {"containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
    path = short_path / "nvidia" / "nvidia.json"
    devices = [{"name": name, **device} for name in ("0", "all")]
    path.write_text(
        json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": edits})
    )
    return path


@pytest.fixture
def nodes(node) -> Iterator[list[str]]:
    """The prefix for a command that is to see the nodes and the daemon's mounts."""
    node.terminate()
    node.patch(*OTHERS_DEVICE).start()
    grants = node.layout.grants
    subprocess.run(["mount", "--bind", grants, grants], check=True)
    subprocess.run(["mount", "--make-shared", grants], check=True)
    try:
        with shown("both") as words:
            yield words
    finally:
        subprocess.run(["umount", "--lazy", grants], check=False)
        cgroups.remove()


def shown_by(output: str) -> tuple[bool, set[str]]:
    """Returns whether BOTH has seen a share, and which nodes it could open."""
    return allocated(output), usable(output)


@each("dockerd")
def test_docker(program, toolkit, theirs, spec, nodes, node, wrapper, rootfs, short_path, capfd):
    version = installed(ENGINES["docker"], Options(executable=program))
    if version < (25,):
        pytest.skip("this Docker knows no CDI")
    config, work = short_path / "daemon.json", short_path / "docker"
    specs = [str(node.layout.cdi), str(spec.parent)]
    config.write_text(json.dumps(dockers_own(work, **{"cdi-spec-dirs": specs})))
    work.mkdir()
    added = [toolkit / "nvidia-ctk", "--quiet", "runtime", "configure", "--runtime=docker", f"--config={config}"]
    subprocess.run([*added, f"--nvidia-runtime-path={theirs}"], check=True)
    configure("docker", config, program, "--runtime-path", str(wrapper))
    docker = Docker(work / "sock")
    with running(*nodes, program, "--config-file", config, ready=docker.is_up, log=short_path / "log", path=program):
        docker.load(rootfs, f"ENV {ALL}")

        def seen(runtime: str, **host) -> tuple[bool, set[str]]:
            status, answer = docker.run(runtime, *BOTH, **host)
            assert status == 204, answer
            return shown_by(answer)

        def by_name() -> dict[str, object]:
            return {"Driver": "cdi", "DeviceIDs": node.client.create(memory="1GiB", time="30%")["cdi"]}

        # Each runtime serves its own containers only.
        assert seen("nvidia") == seen("nvidia", Annotations=SHARE) == (False, EVERY)
        assert seen("gpushare") == (False, set())
        assert seen("gpushare", Annotations=SHARE) == (True, set())
        # A share gives no device of NVIDIA's, in spite of the image's variable, even under NVIDIA's runtime.
        for runtime in ("nvidia", "runc", "gpushare"):
            assert seen(runtime, DeviceRequests=[by_name()]) == (True, set())
        # NVIDIA's own devices work under our runtime too; with a share, only those of the share.
        asks = [NAMED, {**GPUS, "Driver": "nvidia"}, GPUS] if version >= (29,) else [NAMED]
        for asked in asks:
            for runtime in ("nvidia", "runc", "gpushare"):
                assert seen(runtime, DeviceRequests=[asked]) == (False, EVERY)
            for read_only in (False, True):
                more = {"DeviceRequests": [asked], "ReadonlyRootfs": read_only}
                assert seen("gpushare", Annotations=SHARE, **more) == (True, KEPT)
                more["DeviceRequests"].append(by_name())
                assert seen("runc", **more) == (True, KEPT)
        if version < (29,):
            # NVIDIA's hook starts a program that is not installed here; with a share, the hook is told to give nothing.
            for runtime in ("runc", "gpushare"):
                status, answer = docker.run(runtime, *BOTH, DeviceRequests=[GPUS])
                assert status in (400, 500) and "nvidia-container-cli" in answer
            assert seen("gpushare", Annotations=SHARE, DeviceRequests=[GPUS]) == (True, set())
    assert {row["reason"] for row in node.client.grants(ended=True)} == {"its processes have ended"}


@pytest.mark.parametrize("podman", programs("podman"), ids=str)
@pytest.mark.parametrize("program", [None])
def test_podman(program, podman, theirs, spec, nodes, node, wrapper, rootfs, short_path, capfd):
    """Podman's --gpus is that CDI device since version 5, and does nothing before."""
    config, hooks = short_path / "containers.conf", short_path / "hooks"
    config.write_text(f'{PODMAN}\n[engine.runtimes]\nnvidia = ["{theirs}"]\n')
    configure("podman", config, podman, "--runtime-path", str(wrapper), "--hooks-dir", str(hooks))
    hook = json.loads(hook_text())
    hook["hook"]["path"] = str(HOOK)
    hook["hook"]["args"] += ["--socket", str(node.layout.socket)]
    (hooks / HOOK_FILE).write_text(json.dumps(hook))
    (node.layout.cdi / "nvidia.json").write_text(spec.read_text())
    environment = {**os.environ, "CONTAINERS_CONF": str(config), "TMPDIR": str(short_path)}
    made_here = not SPECS.exists()
    SPECS.mkdir(exist_ok=True)
    subprocess.run([*nodes, "mount", "--bind", node.layout.cdi, SPECS], check=True)
    base = [*nodes, podman, "--root", short_path / "root", "--runroot", short_path / "run"]
    base += ["--tmpdir", short_path / "tmp", "--storage-driver", "vfs", "--hooks-dir", hooks]

    def run(*arguments: object) -> subprocess.CompletedProcess:
        command = [*map(str, [*base, *arguments])]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)

    def seen(runtime: str, *options: str) -> tuple[bool, set[str]]:
        done = run("--runtime", runtime, "run", "--rm", "--cap-add=MKNOD", *options, IMAGE, *BOTH)
        assert done.returncode == 0, done.stderr
        return shown_by(done.stdout)

    def by_name() -> str:
        return f"--device={node.client.create(memory='1GiB', time='30%')['cdi'][0]}"

    asked = [f"--annotation={name}={value}" for name, value in SHARE.items()]
    try:
        made = run("import", "--quiet", "--change", f"ENV {ALL}", rootfs, IMAGE)
        assert made.returncode == 0, made.stderr
        assert seen("nvidia") == (False, EVERY)
        assert seen("gpushare") == seen("runc") == (False, set())
        for runtime in ("nvidia", "runc", "gpushare"):
            assert seen(runtime, *asked) == seen(runtime, by_name()) == (True, set())
            for gpus in ("--device=nvidia.com/gpu=all", "--gpus=all"):
                if gpus == "--gpus=all" and installed(ENGINES["podman"], Options(executable=podman)) < (5,):
                    continue
                assert seen(runtime, gpus) == (False, EVERY)
                for more in ([], ["--read-only"]):
                    assert seen(runtime, gpus, *more, *asked) == seen(runtime, gpus, *more, by_name()) == (True, KEPT)
    finally:
        run("rm", "--all", "--force", "--time", "0")
        run("rmi", "--all", "--force")
        (node.layout.cdi / "nvidia.json").unlink()
        if made_here:
            with contextlib.suppress(OSError):  # another run on this machine may have removed it, or use it
                SPECS.rmdir()


@each("containerd")
def test_pods(program, toolkit, theirs, spec, nodes, node, wrapper, rootfs, short_path, capfd):
    """Through runtime handlers, and through NRI under NVIDIA's handler."""
    version = installed(ENGINES["containerd"], Options(executable=program))
    config, work = short_path / "config.toml", short_path / "work"
    has_nri = version >= (1, 7)
    cdi = f'cdi_spec_dirs = ["{node.layout.cdi}", "{spec.parent}"]' if has_nri else ""
    table = "cri.v1.runtime" if version >= (2,) else "grpc.v1.cri"
    # Before 2.0 nvidia-ctk would leave the default runtime without a name that containerd finds.
    runc = f'[plugins."io.containerd.{table}".containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
    config.write_text(configuration(work, version >= (2,), cdi, nri=has_nri) + runc)
    work.mkdir()
    added = [toolkit / "nvidia-ctk", "--quiet", "runtime", "configure", "--runtime=containerd", f"--config={config}"]
    added += [f"--drop-in-config={short_path}/conf.d/99-nvidia.toml", f"--executable-path={program}"]
    subprocess.run([*map(str, added), f"--nvidia-runtime-path={theirs}"], check=True)
    configure("containerd", config, program, "--runtime-path", str(wrapper), *(["--nri=optional"] if has_nri else []))
    ctr = [program.parent / "ctr", "--address", work / "sock", "--namespace", "k8s.io"]
    plugin = Plugin(work / "nri.sock", node.layout.socket, short_path / "plugin.log")

    def ready() -> bool:
        return subprocess.run([*ctr, "version"], capture_output=True).returncode == 0

    with (
        contextlib.ExitStack() as ends,
        running(*nodes, program, "--config", config, ready=ready, log=short_path / "log", path=program),
    ):
        ends.callback(plugin.kill)
        image_archive(rootfs, short_path / "image.tar", [ALL])
        given = [*ctr, "images", "import", *(["--local"] if version >= (2,) else []), "--snapshotter", "native"]
        subprocess.run([*given, short_path / "image.tar"], capture_output=True, check=True)
        with grpc.insecure_channel(f"unix://{work}/sock") as channel:
            cri = Cri(channel, work / "pods")

            def seen(handler: str, annotations: dict[str, str] | None = None, **fields) -> tuple[bool, set[str]]:
                with cri.pod(handler, annotations or {}) as pod:
                    return shown_by(cri.run(pod, *BOTH, **fields))

            assert seen("nvidia") == (False, EVERY)
            assert seen("gpushare") == seen("") == (False, set())
            assert seen("gpushare", SHARE) == (True, set())
            if has_nri:
                named = [message(_1="nvidia.com/gpu=all")]
                assert seen("gpushare", _17=named) == (False, EVERY)
                assert seen("gpushare", SHARE, _17=named) == (True, KEPT)
                grant = [message(_1=node.client.create(memory="1GiB", time="30%")["cdi"][0])]
                assert seen("nvidia", _17=grant) == (True, set())
                assert seen("nvidia", SHARE) == (False, EVERY)
                plugin.start()
                plugin.logs("registered")
                assert seen("nvidia", SHARE) == seen("gpushare", SHARE) == seen("", SHARE) == (True, set())
                assert seen("nvidia") == (False, EVERY)
                assert seen("", SHARE, _17=named) == (True, KEPT)


@each("containerd")
@pytest.mark.parametrize("theirs_more", [[], ["--set-as-default"], ["--cdi.enabled"]], ids=str)
@pytest.mark.parametrize("ours_more", [[], ["--set-as-default", "--nri"]], ids=str)
def test_containerds_files(program, toolkit, theirs_more, ours_more, tmp_path, capsys):
    """Once our configuration is removed, what nvidia-ctk writes is unchanged to the byte, whichever came first."""
    tmp_path.chmod(0o755)
    version = installed(ENGINES["containerd"], Options(executable=program))
    if version < (2,) and "--cdi.enabled" in theirs_more:
        pytest.skip("both set it to the same, and it goes with ours")
    if version < (1, 7):
        ours_more = [option for option in ours_more if option != "--nri"]
    config, part = tmp_path / "config.toml", tmp_path / "conf.d" / "99-nvidia.toml"
    added = [toolkit / "nvidia-ctk", "--quiet", "runtime", "configure", "--runtime=containerd", f"--config={config}"]
    added += [f"--drop-in-config={part}", f"--executable-path={program}", *theirs_more]

    def fresh() -> None:
        part.unlink(missing_ok=True)
        config.write_bytes(subprocess.run([program, "config", "default"], capture_output=True, check=True).stdout)

    def nvidia_ctk() -> None:
        subprocess.run([*map(str, added)], check=True)

    def tree() -> dict[str, str]:
        # Its handler is a copy of the default one, which may have been ours: then it passes annotations on.
        texts = {str(path): path.read_text() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
        return {name: text.replace(json.dumps(ANNOTATIONS), "[]") for name, text in texts.items()}

    fresh()
    nvidia_ctk()
    alone = tree()
    configure("containerd", config, program, *ours_more)
    assert tree() != alone
    configure("containerd", config, program, verb="unconfigure")
    assert tree() == alone
    fresh()
    configure("containerd", config, program, *ours_more)
    nvidia_ctk()
    dump = subprocess.run([program, "--config", config, "config", "dump"], capture_output=True, text=True, check=True)
    assert {"nvidia", "gpushare"} <= set(re.findall(r"runtimes\.(\w+)\]", dump.stdout))
    configure("containerd", config, program, verb="unconfigure")
    assert tree() == alone


@pytest.mark.parametrize("mode", ["cdi", "auto", "legacy"])
@pytest.mark.skipif(not programs("runc"), reason="runc is not installed")
def test_ours_starts_theirs(mode, theirs, spec, nodes, node, rootfs, short_path):
    """When /etc/gpushare/runtime.conf names NVIDIA's runtime, it serves only containers without a share. Without a
    driver it can do so only in the CDI mode; the other modes would end with an error."""
    settings = short_path / "nvidia-container-runtime" / "config.toml"
    settings.write_text(settings.read_text().replace('mode = "cdi"', f'mode = "{mode}"'))
    own = [RUNTIME_WRAPPER, f"--gpushare-runtime={theirs}", f"--gpushare-socket={node.layout.socket}"]
    own += ["--root", short_path / "state"]
    cases = [("none", {}, (False, EVERY)), ("share", SHARE, (True, set()))]
    for what, annotations, expected in cases if mode == "cdi" else cases[1:]:
        name, where = f"{short_path.name}-{what}", short_path / what
        bundle.make(where, annotations, BOTH, f"/{cgroups.NAME}/{name}")
        config = json.loads((where / "config.json").read_text())
        config["process"]["env"].append(ALL)
        config["process"]["capabilities"] = {kind: ["CAP_MKNOD"] for kind in ("bounding", "effective", "permitted")}
        # Its hooks write into the image, so here that must not contain directories of the host.
        config["mounts"] = [one for one in config["mounts"] if one["type"] != "bind"]
        shutil.rmtree(where / "rootfs")
        for directory in ("proc", "dev", "etc", "run", "tmp"):
            (where / "rootfs" / directory).mkdir(parents=True)
        with tarfile.open(rootfs) as tar:
            tar.extraction_filter = lambda member, _: member  # Python 3.11.2 takes no `filter`
            tar.extractall(where / "rootfs")
        (where / "config.json").write_text(json.dumps(config))
        with (where / "out").open("w+") as out:
            for verb in (["create", "--bundle", where], ["start"]):  # NVIDIA's runtime passes `run` on unchanged
                command = [*map(str, [*nodes, *own, *verb, name])]
                done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=60)
                assert done.returncode == 0, (where / "out").read_text()
        until(lambda where=where: (where / "out").read_text().count("node ") == len(EVERY), "it has ended", 20)
        assert shown_by((where / "out").read_text()) == expected
        subprocess.run([*map(str, [*nodes, *own, "delete", "--force", name])], check=True)
