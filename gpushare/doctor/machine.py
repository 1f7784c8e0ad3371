"""The kernel, the driver and the C library of this machine."""

import contextlib
import ctypes
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path

from gpushare import paths
from gpushare.doctor.finding import Check, Finding

KERNEL = Check(
    "kernel", "missing", "{release} without pidfd", "use Linux 5.10 or later", "The daemon tracks processes by pidfd."
)
NO_LIBRARY = Check(
    "NVIDIA driver",
    "missing",
    "kernel module without libnvidia-ml.so.1: nothing can use it",
    "install its libraries of the same version (Debian: nvidia-driver-libs), then `ldconfig`",
    "The daemon finds no device.",
)
NO_DRIVER = Check(
    "NVIDIA driver",
    "note",
    "no libnvidia-ml.so.1",
    "install the NVIDIA driver for real devices; simulated ones: `gpushare daemon --simulate 2x16GiB`, or for the "
    'service simulate = "2x16GiB" in /etc/gpushare/gpushare.toml',
    "There is no real device to share.",
)
NO_MODULE = Check(
    "NVIDIA driver",
    "missing",
    "library without kernel module",
    "load it: modprobe nvidia",
    "No program can open the GPU.",
)
NO_NODE = Check(
    "device {path}",
    "missing",
    "not there: no program can open the GPU",
    "nvidia-modprobe -c0 -u makes it, or start nvidia-persistenced",
    "CUDA opens the GPU through this file.",
)
NOT_A_DEVICE = Check(
    "device {path}",
    "wrong",
    "it is no device",
    "remove it, then nvidia-modprobe: rm {path}",
    "CUDA opens the GPU through this file.",
)
CLOSED_NODE = Check(
    "device {path}",
    "wrong",
    "mode {mode}: users of containers that are not root cannot open it",
    "chmod 0666 {path}, and set NVreg_DeviceFileMode=0666 for the module",
    "Only root can use the GPU.",
)
_WHOLE = "boot with systemd.unified_cgroup_hierarchy=1"
HYBRID = Check(
    "cgroups",
    "note",
    "hybrid: v2 at {unified}, controllers in v1. crun (1.8.1 to 1.28 were tried) starts nothing there",
    f"use runc, or cgroup v2 alone: {_WHOLE}",
    "crun refuses to work with both versions at once.",
)
V1 = Check(
    "cgroups",
    "note",
    "v1 freezer at {freezer}, so no device program holds a workload",
    f"with cgroup v2 the end of a workload is seen sooner, and devices are closed to it: {_WHOLE}",
    "A workload can open the nodes of other devices.",
)
NO_CGROUPS = Check(
    "cgroups",
    "missing",
    "neither v2 nor the v1 freezer",
    "mount cgroup2 on /sys/fs/cgroup",
    "A workload can be neither found nor stopped as a whole.",
)
NO_TMPFS = Check(
    "tmpfs for pages",
    "missing",
    "{where} is on a disk, since neither the daemon's directory nor /dev/shm is tmpfs",
    "mount a tmpfs on /dev/shm, and restart the daemon once no grant is in use",
    "The pages that are shared with tenants must be in memory: programs and calls would wait for a disk.",
)
NOT_GLIBC = Check(
    "C library",
    "missing",
    "this Python does not run on glibc: NVIDIA's driver is made for glibc alone",
    "use a distribution with glibc",
    "The daemon cannot load the driver.",
)

MPS = Check(
    "CUDA MPS",
    "note",
    "process {pid} of uid {uid} is {name}: gpushare does not drive MPS",
    "end it (echo quit | nvidia-cuda-mps-control), or keep it from commands of grants by CUDA_MPS_PIPE_DIRECTORY",
    "What a plain command uses through MPS belongs to MPS's own processes: neither the driver's limits nor the freezer "
    "apply to it, and the audit takes MPS for a process without a grant. Containers of gpushare cannot reach MPS.",
)

_MPS = "nvidia-cuda-mps"  # -control and -server: a process's name has 15 characters
_NODES = ("nvidiactl", "nvidia-uvm", "nvidia0")


def look() -> Iterator[Finding]:
    """Yields all findings about the machine."""
    yield _kernel()
    yield from _driver()
    yield from _mps()
    yield cgroups(Path("/proc/self/mountinfo").read_text(errors="replace"))
    yield from _libc()


def _kernel() -> Finding:
    release = platform.release()
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return KERNEL(release=release)
    return Finding("kernel", "ok", release)


def _driver() -> Iterator[Finding]:
    version = Path("/proc/driver/nvidia/version")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        yield NO_LIBRARY() if version.exists() else NO_DRIVER()
        return
    if not version.exists():
        yield NO_MODULE()
        return
    yield Finding("NVIDIA driver", "ok", version.read_text().splitlines()[0].split(":")[-1].strip())
    yield from _nodes()


def _nodes() -> Iterator[Finding]:
    for name in _NODES:
        path = Path("/dev") / name
        try:
            mode = path.lstat().st_mode
        except OSError:
            yield NO_NODE(path=path)
            continue
        if not stat.S_ISCHR(mode):
            yield NOT_A_DEVICE(path=path)
        elif mode & 0o006 != 0o006:
            yield CLOSED_NODE(path=path, mode=f"{stat.S_IMODE(mode):o}")


def _mps() -> Iterator[Finding]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "comm").read_text(errors="replace").rstrip("\n") == _MPS:
                    yield MPS(pid=entry.name, uid=entry.stat().st_uid, name=f"{_MPS}-...")


def cgroups(mountinfo: str) -> Finding:
    """Returns the finding about the mounted cgroup versions. `mountinfo`: as in /proc/self/mountinfo."""
    unified, freezer, others = "", "", set[str]()
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        if kind == "cgroup2":
            unified = unified or fields.split()[4]
        elif kind == "cgroup":
            controllers = options.split()[-1].split(",")
            others.update(controllers)
            if "freezer" in controllers:
                freezer = freezer or fields.split()[4]
    if unified and not others & {"cpu", "memory", "devices", "freezer"}:
        return Finding("cgroups", "ok", f"v2 at {unified}")
    if unified:
        return HYBRID(unified=unified)
    return V1(freezer=freezer) if freezer else NO_CGROUPS()


def pages(where: Path) -> Finding:
    """Returns the finding about the parent of all grant directories."""
    if not paths.in_memory(where):
        return NO_TMPFS(where=where)
    return Finding("tmpfs for pages", "ok", str(where.parent if where.parent.is_dir() else where))


def _libc() -> Iterator[Finding]:
    if platform.libc_ver()[0] != "glibc":
        yield NOT_GLIBC()
