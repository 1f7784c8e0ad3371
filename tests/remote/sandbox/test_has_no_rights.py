"""What a carrier's server may do on the node, and sees of it."""

import errno
import os
import re
from pathlib import Path

import pytest
from remote.sandboxes import Server
from run.running import Daemon

from gpushare.paths import SIM_LIB_DIR, SIM_RUNTIMES
from gpushare.sandbox import view

pytestmark = pytest.mark.promise("server-has-no-rights")

_NEWUSER, _NEWNS = "10000000", "20000"
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)


def _status(server: Server, pid: str = "self") -> dict[str, list[str]]:
    lines = (line.partition(":") for line in server.ask("read", f"/proc/{pid}/status").split("|"))
    return {name: value.split() for name, _, value in lines}


def test_its_identity(hostile: Server) -> None:
    for pid in ("self", "1"):
        status = _status(hostile, pid)
        assert status["Uid"] == status["Gid"] == [str(hostile.uid)] * 4
        assert status["Groups"] == []
        assert status["NoNewPrivs"] == ["1"]
        assert {status[name][0] for name in status if name.startswith("Cap")} == {"0" * 16}
    outside = Path(f"/proc/{hostile.pid}/status").read_text()  # the supervisor's
    assert re.search(rf"^Uid:\t{hostile.uid}\t", outside, re.MULTILINE)
    assert not re.search(r"^Cap\w+:\t0*[1-9a-f]", outside, re.MULTILINE)


def test_it_becomes_nobody_else(hostile: Server) -> None:
    assert hostile.error("setuid") == errno.EPERM
    assert hostile.error("open", "/etc/shadow", "r") in _REFUSED


def test_where_it_writes(hostile: Server) -> None:
    places = ["/", "/etc/", "/usr/", "/run/", "/run/gpushare/own/", "/run/gpushare/own/self/", "/home/", "/root/"]
    places += ["/var/", "/dev/", "/sys/", "/sys/fs/cgroup/", "/proc/", "/boot/", f"{SIM_LIB_DIR}/"]
    for place in places:
        assert hostile.error("open", f"{place}hostile", "c") in _REFUSED, place
    for file in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/run/gpushare/own/limits", "/dev/kmsg"):
        assert hostile.error("open", file, "w") in _REFUSED, file
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        name = f"{place}/hostile-{os.getpid()}"
        assert hostile.error("open", name, "c") == 0
        assert not Path(name).exists()
    assert hostile.error("open", "/run/gpushare/own/usage", "w") == 0


def test_what_it_sees(hostile: Server, daemon: Daemon) -> None:
    for directory in ("/root", "/home", "/mnt", "/media", "/srv"):
        assert hostile.ask("list", directory).split() in ([], [str(errno.ENOENT)])
    assert set(hostile.ask("list", "/var").split()) <= {"tmp", "run"}
    assert set(hostile.ask("list", "/run").split()) == {"gpushare"}
    assert not [name for name in hostile.ask("list", "/dev/shm").split() if name.startswith("gpushare")]
    assert hostile.error("open", daemon.layout.grants, "r") == errno.ENOENT
    nodes = {name for name in hostile.ask("list", "/dev").split() if not name.startswith("gpushare-sim-")}
    assert nodes == {Path(path).name for path in view.DEVICES} | {"fd", "stdin", "stdout", "stderr", "shm"}


def test_processes_of_others(hostile: Server) -> None:
    seen = [int(name) for name in hostile.ask("list", "/proc").split() if name.isdecimal()]
    assert seen == [1, 2]
    assert hostile.error("kill", os.getpid(), 9) == errno.ESRCH
    assert hostile.error("kill", hostile.pid, 9) == errno.ESRCH
    for name in ("environ", "maps", "mem", "root", "cwd", "exe", "fd"):
        assert hostile.error("open", f"/proc/1/{name}", "r") == errno.EACCES, name
    for pid in (1, hostile.pid):
        assert hostile.error("ptrace", pid) == errno.EPERM
    for number in (9, 19):  # has no effect on the first process of a namespace
        assert hostile.error("kill", 1, number) == 0
    assert _status(hostile, "1")["State"][0] in ("S", "R")


def test_mounts_and_namespaces(hostile: Server) -> None:
    for words in (("mount", "/tmp"), ("umount", "/run"), ("umount", "/run/gpushare/own"), ("remount", "/")):
        assert hostile.error(*words) == errno.EPERM, words
    assert hostile.error("chroot", "/tmp") == errno.EPERM
    for flags in (_NEWUSER, _NEWNS, "40000000"):
        assert hostile.error("unshare", flags) == errno.EPERM
        assert hostile.error("clone", flags) == errno.EPERM
    assert hostile.error("mknod", "/tmp/null", 1, 3) == errno.EPERM
    mounts = [line.split() for line in hostile.ask("read", "/proc/self/mountinfo").split("|") if line]
    assert mounts
    writable = {fields[4] for fields in mounts if "ro" not in fields[5].split(",")}
    assert writable <= {"/proc", "/tmp", "/dev/shm", "/run/gpushare/own/usage"}, writable


def test_devices(hostile: Server) -> None:
    for block in Path("/sys/block").iterdir():
        assert hostile.error("open", f"/dev/{block.name}", "r") == errno.ENOENT
    for name in ("mem", "kmsg", "fuse", "net/tun", "vsock", "tty", "ptmx", "console", "kvm"):
        assert hostile.error("open", f"/dev/{name}", "r") == errno.ENOENT


def test_descriptors(hostile: Server) -> None:
    # 0 to 2, the listener, the connection, the directory that is read; 1 and 2 are the same pipe.
    assert len(hostile.ask("list", "/proc/self/fd").split()) == 6
    ours = [link.readlink() for link in Path(f"/proc/{hostile.pid}/fd").iterdir()]
    kinds = sorted(str(link).partition(":")[0] for link in ours)
    # The connector, the pipe of the server's output, a pidfd.
    assert kinds == ["/dev/null"] * 3 + ["anon_inode", "pipe", "socket"]


@pytest.mark.parametrize("environment", ["env", "bare"])
def test_it_has_its_share_whatever_its_environment(hostile: Server, environment: str) -> None:
    libraries = SIM_LIB_DIR
    assert SIM_RUNTIMES
    assert hostile.ask("device", environment, libraries, 512) == "0"
    assert hostile.ask("device", environment, libraries, 1536) == "2"  # CUDA_ERROR_OUT_OF_MEMORY
