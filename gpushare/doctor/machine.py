"""The kernel, the driver and the C library of this machine."""

import ctypes
import os
import platform
import stat
from collections.abc import Iterator
from pathlib import Path

from gpushare import paths
from gpushare.doctor.finding import Finding

_NODES = ("nvidiactl", "nvidia-uvm", "nvidia0")


def look() -> Iterator[Finding]:
    """All of it."""
    yield _kernel()
    yield from _driver()
    yield cgroups(Path("/proc/self/mountinfo").read_text(errors="replace"))
    yield _pages()
    yield from _libc()


def _kernel() -> Finding:
    release = platform.release()
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return Finding("kernel", "missing", f"{release} without pidfd", "use Linux 5.10 or later")
    return Finding("kernel", "ok", release)


def _driver() -> Iterator[Finding]:
    what = "NVIDIA driver"
    version = Path("/proc/driver/nvidia/version")
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        if version.exists():
            mend = "install its libraries of the same version (Debian: nvidia-driver-libs), then `ldconfig`"
            yield Finding(what, "missing", "kernel module without libnvidia-ml.so.1: nothing can use it", mend)
        else:
            mend = "install the NVIDIA driver for real devices; without one `gpushare daemon --simulate 2x16GiB` works"
            yield Finding(what, "note", "no libnvidia-ml.so.1", mend)
        return
    if not version.exists():
        yield Finding(what, "missing", "library without kernel module", "load it: modprobe nvidia")
        return
    yield Finding(what, "ok", version.read_text().splitlines()[0].split(":")[-1].strip())
    yield from _nodes()


def _nodes() -> Iterator[Finding]:
    for name in _NODES:
        path = Path("/dev") / name
        try:
            mode = path.lstat().st_mode
        except OSError:
            mend = "nvidia-modprobe -c0 -u makes it, or start nvidia-persistenced"
            yield Finding(f"device {path}", "missing", "not there: no program can open the GPU", mend)
            continue
        if not stat.S_ISCHR(mode):
            yield Finding(f"device {path}", "wrong", "it is no device", f"remove it, then nvidia-modprobe: rm {path}")
        elif mode & 0o006 != 0o006:
            found = f"mode {stat.S_IMODE(mode):o}: users of containers that are not root cannot open it"
            mend = f"chmod 0666 {path}, and set NVreg_DeviceFileMode=0666 for the module"
            yield Finding(f"device {path}", "wrong", found, mend)


def cgroups(mountinfo: str) -> Finding:
    """Which versions are mounted."""
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
    whole = "boot with systemd.unified_cgroup_hierarchy=1"
    if unified:
        found = f"hybrid: v2 at {unified}, controllers in v1. crun (1.8.1 to 1.28 were tried) starts nothing there"
        return Finding("cgroups", "note", found, f"use runc, or cgroup v2 alone: {whole}")
    if freezer:
        mend = f"with cgroup v2 the end of a workload is seen sooner, and devices are closed to it: {whole}"
        return Finding("cgroups", "note", f"v1 freezer at {freezer}, so no device program holds a workload", mend)
    return Finding("cgroups", "missing", "neither v2 nor the v1 freezer", "mount cgroup2 on /sys/fs/cgroup")


def _pages() -> Finding:
    where = paths.Layout.of().grants
    if str(where).startswith("/dev/shm") and not Path("/dev/shm").is_dir():  # noqa: S108 - only looked at
        return Finding("tmpfs for pages", "missing", "neither /run nor /dev/shm is tmpfs", "mount a tmpfs on /dev/shm")
    return Finding("tmpfs for pages", "ok", str(where.parent if where.parent.is_dir() else where))


def _libc() -> Iterator[Finding]:
    if platform.libc_ver()[0] != "glibc":
        found = "this Python does not run on glibc: NVIDIA's driver is made for glibc alone"
        yield Finding("C library", "missing", found, "use a distribution with glibc")
