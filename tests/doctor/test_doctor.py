"""`gpushare doctor` on machines with each fault that it knows: copies of this machine's root, with the real command,
real files and real daemons."""

import json
import os
import shutil
import sys

import pytest
from machine.ownroot import OwnRoot

from gpushare import paths
from gpushare.paths import HOOK, LIB_DIR

PROGRAM = f"{sys.executable} -m gpushare"


class Report:
    """The doctor's JSON output."""

    def __init__(self, text: str) -> None:
        answer = json.loads(text)
        self.healthy, self.findings = answer["healthy"], answer["findings"]

    def __call__(self, words: str) -> dict:
        """Returns the one finding that contains these words."""
        [found] = [one for one in self.findings if words in one["found"]]
        return found


@pytest.fixture
def doctor(tmp_path):
    root = OwnRoot(tmp_path)

    def ask(script: str, who: str = "") -> Report:
        done = root(f"{script}\n{who} {PROGRAM} doctor --json || test $? = 1")
        assert done.returncode == 0, done.stdout + done.stderr
        return Report(done.stdout)

    return ask


def program(path: str, states: str) -> str:
    return f"rm -f {path}; printf '#!/bin/sh\\necho {states}\\n' >{path}; chmod +x {path}\n"


def test_engines(doctor):
    hooks = "/usr/share/containers/oci/hooks.d"
    answer = doctor(
        program("/usr/bin/dockerd", "Docker version 26.1.5, build 1")
        + program("/usr/bin/containerd", "containerd github.com/containerd/containerd 1.6.20 1")
        + program("/usr/bin/podman", "podman version 4.3.1")
        + f"""
        mkdir -p /etc/docker {hooks} /etc/crio /etc/systemd/system/docker.service.d
        echo '{{"cdi-spec-dirs": ["/opt/cdi"], "default-runtime": "runc"}}' >/etc/docker/daemon.json
        printf '[Service]\nExecStart=/usr/bin/dockerd --default-runtime=runc\n' >/etc/systemd/system/docker.service
        {PROGRAM} runtime configure --engine docker >/dev/null
        touch -d @$(($(date +%s) + 100)) /etc/docker/daemon.json
        echo $$ >/run/docker.pid
        echo '{{"hook": {{"path": "/opt/gone/gpushare-hook"}}, "stages": ["precreate"]}}' >{hooks}/gpushare.json
        echo '{{"hook": {{"path": "/etc/passwd"}}, "stages": ["prestart"]}}' >{hooks}/other.json
        echo '{{' >{hooks}/broken.json
        mkdir -p /etc/containers/containers.conf.d /opt/hooks
        printf '[engine]\\nhooks_dir = ["/opt/hooks"]\\n' >/etc/containers/containers.conf.d/20-own.conf
        echo '{{"hook": {{"path": "/opt/none"}}, "stages": ["prestart"]}}' >/opt/hooks/own.json
        """
    )
    assert (
        answer("reads features.cdi only when it starts")["mend"] == "end dockerd, and start it again as it was started"
    )
    assert answer("reads CDI specs from /opt/cdi, and the daemon writes them into /var/run/cdi")["level"] == "missing"
    assert answer("started with --default-runtime (/etc/systemd/system/docker.service)")["what"] == "docker 26.1.5"
    assert answer("containerd before 1.7 ignores CDI requests")["what"] == "containerd 1.6.20"
    gone = answer("/opt/gone/gpushare-hook, which is not there or cannot be executed: Podman passes over it in silence")
    assert gone["level"] == "missing" and "`gpushare runtime configure --engine podman`" in gone["mend"]
    assert answer("/etc/passwd, which is not there or cannot be executed")["level"] == "missing"
    assert answer("/opt/hooks/own.json names /opt/none")["level"] == "missing"
    assert answer("broken.json cannot be read")["level"] == "wrong"
    assert answer("a stage that CRI-O, which is here, does not know")["level"] == "wrong"
    assert not answer.healthy


def test_hooks_that_podman_does_not_read(doctor):
    script = (
        program("/usr/bin/podman", "podman version 5.4.0")
        + f"""
        {PROGRAM} runtime configure --engine podman >/dev/null
        printf '[engine]\\nhooks_dir = ["/etc/containers/oci/hooks.d"]\\n' >/etc/containers/containers.conf
        """
    )
    found = doctor(script)("it reads hooks from /etc/containers/oci/hooks.d, and gpushare's is not there")
    assert (found["what"], found["level"]) == ("podman 5.4.0", "missing")
    answer = doctor(f"{script}\n{PROGRAM} runtime configure --engine podman >/dev/null")
    assert not any("reads hooks from" in one["found"] for one in answer.findings)
    assert not any(one["what"] == "hook" for one in answer.findings)


def test_an_engine_that_is_too_old_to_ask(doctor):
    answer = doctor(
        program("/usr/bin/dockerd", "Docker version 20.10.24, build 1")
        + f"{PROGRAM} runtime configure --engine docker >/dev/null"
    )
    found = answer("Docker before 24 knows neither annotations nor CDI")
    assert found["level"] == "missing" and "to 25 or later for CDI devices, or start such" in found["found"]


def test_nri(doctor):
    answer = doctor(
        program("/usr/bin/containerd", "containerd github.com/containerd/containerd 2.2.0 1")
        + program("/usr/bin/crio", "crio version 1.37.0")
        + f"""
        {PROGRAM} runtime configure --engine containerd --nri >/dev/null
        {PROGRAM} runtime configure --engine crio --nri=optional >/dev/null
        mkdir -p /run/systemd/system; ln -sf /bin/false /usr/bin/systemctl
        {PROGRAM} uninstall && exit 9 || test $? = 3
        """
    )
    assert answer("containerd requires the NRI plugin")["mend"] == "`sudo systemctl enable --now gpushare-nri`"
    assert answer("our plugin is not required")["what"] == "crio 1.37.0"


def test_parts(doctor):
    mps = "cp /bin/sleep /run/nvidia-cuda-mps-control; /run/nvidia-cuda-mps-control 100 >/dev/null 2>&1 & mps=$!\n"
    interposer, hook, config = LIB_DIR / "libgpushare.so", LIB_DIR / "gpushare-hook", "/etc/gpushare/gpushare.toml"
    answer = doctor(
        f"{mps} trap 'kill $mps' EXIT; echo >>{interposer}; mkdir -p /etc/gpushare; touch {config}; chmod 666 {config}"
    )
    assert "gpushare does not drive MPS" in answer("is nvidia-cuda-mps-")["found"]
    assert "libgpushare.so" in answer("not as version")["found"]
    assert answer(f"{config} (uid 0, mode 666) can be changed by others than root")["level"] == "wrong"
    unit = "/etc/systemd/system/gpushare.service"
    answer = doctor(
        f"rm {interposer} {hook}; {PROGRAM} install >/dev/null; sed -i s,{sys.executable},/opt/gone, {unit}"
    )
    assert answer("no libgpushare.so, gpushare-hook in")["level"] == "missing"
    assert answer("starts /opt/gone, which is not there")["mend"].endswith("gpushare install`")


def test_pages_on_a_disk(doctor):
    answer = doctor("umount -l /run; mkdir -p /srv/disk; mount --bind /srv/disk /dev/shm")
    found = answer("is on a disk, since neither the daemon's directory nor /dev/shm is tmpfs")
    assert (found["what"], found["level"]) == ("tmpfs for pages", "missing")
    assert found["found"].startswith("/dev/shm/gpushare-")


@pytest.mark.slow
def test_driver(doctor):
    library = "/usr/lib/$(uname -m)-linux-gnu/libnvidia-ml.so.1"
    there = f"""
        cp {paths.SIM_LIB_DIR}/libnvidia-ml.so.1 {library}
        mount -t tmpfs none /proc/driver; mkdir /proc/driver/nvidia
        echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  575.57.08' >/proc/driver/nvidia/version
        mount -t tmpfs none /dev; mknod /dev/null c 1 3; mknod /dev/urandom c 1 9
        mknod -m 666 /dev/nvidiactl c 1 3; mknod -m 660 /dev/nvidia0 c 1 3
    """
    answer = doctor(there)
    assert answer("mode 660: users of containers that are not root cannot open it")["what"] == "device /dev/nvidia0"
    assert answer("not there: no program can open the GPU")["what"] == "device /dev/nvidia-uvm"
    assert answer("575.57.08")["level"] == "ok"
    assert doctor(f"{there} rm {library}")("kernel module without libnvidia-ml.so.1")["level"] == "missing"
    assert doctor(f"{there} umount /proc/driver")("library without kernel module")["mend"] == "load it: modprobe nvidia"


def test_cdi(doctor):
    spec = {"cdiVersion": "0.5.0", "kind": "gpushare.dev/gpu"}

    def ours(hook):
        hooks = [{"hookName": "createRuntime", "path": str(hook)}]
        return json.dumps({**spec, "devices": [{"name": "any", "containerEdits": {"hooks": hooks}}]})

    nvidia = {"kind": "nvidia.com/gpu", "containerEdits": {"mounts": [{"hostPath": "/usr/lib/libcuda.so.1.2"}]}}
    answer = doctor(
        f"""
        mkdir -p /etc/cdi /var/run/cdi
        echo '{ours("/opt/old/gpushare-hook")}' >/etc/cdi/gpushare.dev-gpu_any.json
        echo '{ours(HOOK)}' >/var/run/cdi/gpushare.dev-gpu_well.json
        echo '{{' >/var/run/cdi/gpushare.dev-gpu_g-1.json
        echo '{json.dumps(nvidia)}' >/etc/cdi/nvidia.json
        printf '%s\n' '---' 'containerEdits:' '  mounts:' '  - hostPath: /usr/lib/libcuda.so.9.9' '    options:' \
          '    - ro' 'kind: nvidia.com/gpu' >/etc/cdi/nvidia.yaml
        mkfifo /var/run/cdi/pipe.json
        ln -s /dev/zero /var/run/cdi/gpushare.dev-endless.json
        """
    )
    assert "of another version" in answer("/opt/old/gpushare-hook, which is not there")["found"]
    assert answer("gpushare.dev-gpu_g-1.json is no spec")["mend"] == "rm /var/run/cdi/gpushare.dev-gpu_g-1.json"
    assert answer("gpushare.dev-endless.json is no spec")["level"] == "wrong"
    assert answer("/usr/lib/libcuda.so.1.2, not there any more")["mend"].startswith("nvidia-ctk cdi generate")
    assert answer("/usr/lib/libcuda.so.9.9, not there any more")["mend"].endswith("--output=/etc/cdi/nvidia.yaml")
    assert sum(one["what"] == "CDI spec" for one in answer.findings) == 5


START = f"""
{PROGRAM} daemon --simulate 1x1GiB >/run/said 2>&1 & daemon=$!
until grep -qs ready /run/said; do kill -0 $daemon; done
grant=$({PROGRAM} grant create --memory 300MiB --time 10% --json | sed -n 's/^ *"id": "\\(g-.*\\)",/\\1/p' | head -1)
"""


def test_a_daemon_that_was_killed(doctor):
    answer = doctor(f"{START} kill -9 $daemon; wait $daemon || true")
    assert answer("/run/gpushare/node.sock was left by a daemon that was killed")["mend"].endswith("gpushare daemon`")
    assert "of a daemon that was killed; their programs go on without a daemon" in answer("g-")["found"]


def test_a_node_whose_files_are_not_its_daemons(doctor):
    answer = doctor(
        f"""
        getent group gpushare >/dev/null || groupadd --system gpushare
        {START}
        chgrp 0 /run/gpushare/node.sock
        spec=/run/cdi/gpushare.dev-gpu_$grant.json
        sed s/$grant/g-000000000000/ $spec >${{spec/$grant/g-000000000000}}
        mkdir /run/gpushare/grants/g-111111111111
        """
    )
    assert answer("node.sock is not open to it (gid 0")["level"] == "wrong"
    assert "g-000000000000.json: of grants that are gone" in answer("of grants that are gone")["found"]
    assert answer("g-111111111111 in ")["what"] == "leftover grants"


@pytest.mark.slow
def test_one_who_may_not(doctor):
    answer = doctor(START, "setpriv --reuid 65534 --clear-groups")
    assert answer("you may not use /run/gpushare/node.sock")["level"] == "wrong"


BUNDLE = """
mkdir -p /run/bundle/rootfs/bin; cd /run/bundle
cp $(command -v busybox) rootfs/bin/busybox; ln -s busybox rootfs/bin/sleep
mount --bind rootfs rootfs
runc spec
{python} - <<'END'
import json
config = json.load(open("config.json"))
config["process"] |= {{"terminal": False, "args": ["/bin/sleep", "1000"], "rlimits": []}}
config["annotations"] = {{"gpushare.dev/memory": "512MiB", "gpushare.dev/time": "10%"}}
config["linux"]["cgroupsPath"] = "/{cgroup}"
json.dump(config, open("config.json", "w"))
END
"""


@pytest.mark.slow
@pytest.mark.skipif(not all(map(shutil.which, ("runc", "busybox"))), reason="runc or busybox is not installed")
@pytest.mark.xdist_group("machine")
@pytest.mark.parametrize(("runtime", "found"), [("runc", True), (paths.RUNTIME_WRAPPER, False)])
def test_a_container_that_runs_without_its_share(doctor, runtime, found):
    answer = doctor(
        f"""
        {BUNDLE.format(python=sys.executable, cgroup=f"gst-doctor-{os.getpid()}")}
        {START}
        {runtime} run -d it </dev/null >/run/out 2>&1 || {{ cat /run/out; exit 9; }}
        trap 'runc delete -f it' EXIT
        """
    )
    lines = [one["found"] for one in answer.findings if one["what"] == "container it"]
    assert ["asked for a share by annotation and runs without one" in line for line in lines] == [True] * found
