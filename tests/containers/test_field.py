"""Failures seen in the field, in containers; tests/interposer/field/README.md has the list.

A tenant is root in its container, and an image may contain anything.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run import built

from gpushare.demo.bundle import TENANT_PROGRAM
from gpushare.paths import SIM_LIB_DIR

pytestmark = pytest.mark.xdist_group("machine")

SHARE = {"memory": "1GiB", "time": "30%"}
GIB = 1 << 30
LIVES = Path(__file__).parents[1] / "interposer" / "lives.c"


def notified(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def held(out: str) -> bool:
    """The result of a tenant program that tried to allocate 2 GiB of a 1 GiB share."""
    alloc = next(line for line in notified(out) if line["event"] == "alloc")
    return (alloc["ok"], alloc.get("name")) == (False, "CUDA_ERROR_OUT_OF_MEMORY")


TRY = [TENANT_PROGRAM, "--alloc", "2GiB", "--seconds", "0"]


@pytest.mark.parametrize("uid", [1000, 65534])
def test_01_fail_open_start(runc, node, uid):
    """Elsewhere: a container's user cannot read the library, the loader prints one line, and the program runs without a
    limit. Here: every user of a container can read the preloaded files. The daemon refuses grants if that is not so,
    and a container whose hook did not run does not start."""

    def another_user(config):
        config["process"]["user"] = {"uid": uid, "gid": uid}

    result = runc.run(*TRY, annotations=SHARE, change=another_user)
    assert "cannot be preloaded" not in result.stderr
    assert held(result.stdout), result
    assert node.books()["peak_bytes"] < 2 * GIB


@pytest.mark.promise("environment-decides-nothing")
def test_02_env_carried_limits_start(runc, node, short_path):
    """Elsewhere: limits are in environment variables, so an image that sets them, a shell that clears them or a wrong
    name disables them. Here: no limit comes from the environment. This image contains a forged directory of another
    grant, created by root, with pages that say 15 GiB, and the environment points to it."""
    simulator = Simulator(short_path / "elsewhere")
    try:
        script = f"cp -r --sparse=always /forged /tmp && exec {' '.join(TRY)}"
        command = runc.command(
            "/bin/sh", "-c", script, annotations=SHARE, change=lambda config: config["process"]["env"].extend(FORGED)
        )
        rootfs = short_path / runc.names[-1] / "rootfs"
        forged = Grant(rootfs / "forged", simulator)
        forged.set_limit(15 * GIB)
        uuid = bytes.fromhex(node.client.devices()[0]["id"].removeprefix("GPU-").replace("-", ""))
        forged.limits.device[0].uuid = uuid
        for name in ("driver", "sim", "grant.sock"):
            (rootfs / "forged" / name).unlink()
            (rootfs / "forged" / name).symlink_to(f"/run/gpushare/self/{name}")
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        forged.close()
    finally:
        simulator.stop()
    assert held(result.stdout), result
    assert "GPUSHARE_GRANT_DIR=/tmp/forged is ignored" in result.stderr
    assert node.books()["peak_bytes"] < 2 * GIB


FORGED = [
    "GPUSHARE_GRANT_DIR=/tmp/forged",
    "LD_PRELOAD=",
    "CUDA_DEVICE_MEMORY_LIMIT=15g",
    "NVIDIA_GPU_MEMORY_LIMIT=15000",
    "CUDA_DISABLE_CONTROL=true",
]


def test_02_env_carried_limits_exec(runc, node):
    """A shell, ssh or cron session in the container starts with its own environment, or with none."""
    container = runc.start("/bin/cat", annotations=SHARE)
    with container:
        # The grant becomes active before its program runs; only then can another program be started in it.
        container.stdin.write("up\n")
        container.stdin.flush()
        assert container.stdout.readline() == "up\n"
        name = runc.names[-1]
        for before in ([], ["--env", "GPUSHARE_GRANT_DIR=/tmp"], ["--env", "LD_PRELOAD="]):
            inside = [*runc.wrapper, "exec", *before, name, "/usr/bin/env", "-i", *TRY]
            result = subprocess.run(inside, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
            assert held(result.stdout), result
        container.stdin.close()
        assert container.wait(20) == 0


@pytest.fixture
def lives():
    return built.program("lives")


@pytest.mark.parametrize("setuid", [False, True])
@pytest.mark.parametrize("mode", ["use", "namespace", "deepbind", "cycles"])
def test_07_bypass_by_another_path(runc, node, lives, mode, setuid):
    """Elsewhere: dlmopen, RTLD_DEEPBIND, a full path, or a setuid program bypass a preloaded library. Here: the
    interposer is mounted over every copy of the driver in the image, so these reach it. Not prevented, as stated in
    docs/security/limits.md: raw ioctl, and a tenant that opens the driver in its grant's own directory."""
    copy_at = "/opt/cuda-compat/libcuda.so.1"

    def image(config):
        rootfs = Path(runc.directory) / runc.names[-1] / "rootfs"
        (rootfs / "opt/cuda-compat").mkdir(parents=True)
        shutil.copy(SIM_LIB_DIR / "libcuda.so.1", rootfs / copy_at.lstrip("/"))
        shutil.copy(lives, rootfs / "opt/lives")
        config["process"]["env"] += ["LD_LIBRARY_PATH=/opt/cuda-compat", f"OVER={2 * GIB}"]
        if setuid:
            os.chmod(rootfs / "opt/lives", 0o4755)
            config["process"]["user"] = {"uid": 65534, "gid": 65534}
            config["process"]["noNewPrivileges"] = False

    result = runc.run("/opt/lives", mode, copy_at, annotations=SHARE, change=image)
    assert result.returncode == 0, result
    asked = [line for line in result.stdout.splitlines() if " over " in line]
    assert asked
    assert all(line.split(" over ")[1] == f"2 info 0 total {GIB}" for line in asked), result.stdout
    assert node.books()["peak_bytes"] < 2 * GIB


def test_14_nvidia_smi_in_the_container(runc, node):
    """Elsewhere: NVML in a container shows the whole card, or a neighbour. Here: the library of that name is gpushare's
    in every container, and shows the grant."""
    neighbour = node.spin("2GiB", "20%")
    neighbour.tell("alloc 1500MiB")
    look = """
import ctypes, json
lib = ctypes.CDLL("libnvidia-ml.so.1")
u64 = ctypes.c_ulonglong
assert lib.nvmlInit_v2() == 0
device = ctypes.c_void_p()
assert lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
first, second = (u64 * 3)(), (u64 * 5)(40 | 2 << 24)
codes = [lib.nvmlDeviceGetMemoryInfo(device, first), lib.nvmlDeviceGetMemoryInfo_v2(device, second)]
count = ctypes.c_uint(64)
rows = (u64 * (3 * 64))()
codes.append(lib.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), rows))
print(json.dumps([codes, list(first), list(second)[1:], count.value]))
"""
    try:
        result = runc.run("/usr/bin/python3", "-c", look, annotations=SHARE)
        assert result.returncode == 0, result.stderr
        codes, (total, free, used), second, processes = json.loads(result.stdout)
        assert codes == [0, 0, 0]
        assert (total, free, used) == (GIB, GIB, 0)
        assert (second[0], second[2], second[3]) == (total, free, used)
        assert processes == 0, "the neighbour is not shown"
    finally:
        neighbour.close()


TRESPASS = """
import errno, json, mmap, os, socket
def refused(work):
    try:
        work()
    except OSError as error:
        return errno.errorcode[error.errno]
    except ValueError as error:
        return "ValueError"
own = "/run/gpushare/self/"
page = os.open(own + "limits", os.O_RDONLY)
sockets = [os.path.join(d, f) for d, _, files in os.walk("/run") for f in files
           if os.path.exists(os.path.join(d, f)) and (os.stat(os.path.join(d, f)).st_mode & 0o170000) == 0o140000]
def speak(path, kind, words):
    with socket.socket(socket.AF_UNIX, kind) as talk:
        talk.settimeout(5)
        talk.connect(path)
        talk.send(words)
        return talk.recv(4096)
request = b"POST /v1/grants HTTP/1.1\\r\\nContent-Length: 2\\r\\n\\r\\n{}"
answer = speak(own + "grant.sock", socket.SOCK_SEQPACKET, request)
print(json.dumps({
    "write": refused(lambda: open(own + "limits", "r+b")),
    "chmod": refused(lambda: os.chmod(own + "limits", 0o777)),
    "unlink": refused(lambda: os.unlink(own + "limits")),
    "map": refused(lambda: mmap.mmap(page, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)),
    "through proc": refused(lambda: open(f"/proc/self/fd/{page}", "r+b")),
    "sockets": sockets, "answer": answer[8:12].hex(), "pid": os.getpid(),
}))
"""


def test_24_trust_of_the_local_socket(runc, node):
    """Elsewhere: every user with access to the scheduler's socket can set its policy, the shared region is writable,
    and a pid from another namespace is 0. Here: a container has only its grant's socket, which accepts a single kind of
    request; the limits are read-only, even for root; the kernel reports the identity of a process."""
    result = runc.run("/usr/bin/python3", "-c", TRESPASS, annotations=SHARE)
    assert result.returncode == 0, result
    tried = json.loads(result.stdout)
    assert (tried["write"], tried["unlink"], tried["through proc"]) == ("EROFS", "EROFS", "EROFS")
    assert tried["chmod"] == "EROFS"
    assert tried["map"] in ("EACCES", "EPERM")
    assert tried["sockets"] == ["/run/gpushare/self/grant.sock", "/run/gpushare/self/sim/sim.sock"]
    assert int.from_bytes(bytes.fromhex(tried["answer"]), "little") != 0, "a join error"
    assert tried["pid"] == 1
    process = runc.start(TENANT_PROGRAM, annotations=SHARE)
    with process:
        assert json.loads(process.stdout.readline())["pid"] == 1
        [grant] = node.client.grants()
        [pid] = grant["processes"]
        assert pid == grant["pid"] > 1
        assert (Path(f"/proc/{pid}/status").read_text().split("NSpid:")[1].split()[1]) == "1"
        process.stdin.write("quit\n")
        process.stdin.flush()
        assert process.wait(20) == 0
