"""gpushare doctor."""

import argparse
import ctypes
import grp
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gpushare import paths
from gpushare.cli import render
from gpushare.cli.command import add_json, add_socket, client, print_json
from gpushare.errors import GpushareError

Level = Literal["ok", "note", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`note`: works without it. `mend`: what to do, empty when all is well."""

    what: str
    level: Level
    found: str
    mend: str = ""


def _driver() -> Finding:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        mend = "install the NVIDIA driver for real devices; without one `gpushare daemon --simulate 2x16GiB` works"
        return Finding("NVIDIA driver", "note", "no libnvidia-ml.so.1", mend)
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        return Finding("NVIDIA driver", "missing", "library without kernel module", "load it: modprobe nvidia")
    return Finding("NVIDIA driver", "ok", version.read_text().splitlines()[0].split(":")[-1].strip())


def _cgroups() -> Finding:
    kinds: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.partition(" ")
        if kind == "cgroup2" or (kind == "cgroup" and "freezer" in options.split()[-1].split(",")):
            kinds.setdefault(kind, fields.split()[4])
    if "cgroup2" in kinds:
        return Finding("cgroups", "ok", f"v2 at {kinds['cgroup2']}")
    if "cgroup" in kinds:
        mend = "with cgroup v2 the end of a workload is seen sooner"
        return Finding("cgroups", "note", f"v1 freezer at {kinds['cgroup']}", mend)
    return Finding("cgroups", "missing", "neither v2 nor the v1 freezer", "mount cgroup2 on /sys/fs/cgroup")


def _pages() -> Finding:
    layout = paths.Layout.of()
    where = layout.grants
    if str(where).startswith("/dev/shm") and not Path("/dev/shm").is_dir():  # noqa: S108 - only looked at
        return Finding("tmpfs for pages", "missing", "neither /run nor /dev/shm is tmpfs", "mount a tmpfs on /dev/shm")
    return Finding("tmpfs for pages", "ok", str(where.parent if where.parent.is_dir() else where))


def _kernel() -> Finding:
    release = platform.release()
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return Finding("kernel", "missing", f"{release} without pidfd", "use Linux 5.10 or later")
    return Finding("kernel", "ok", release)


def _engines() -> Iterator[Finding]:
    found = [name for name in ("runc", "crun", "podman", "docker", "containerd", "crio") if shutil.which(name)]
    if found:
        yield Finding("container engines", "ok", ", ".join(found))
    else:
        yield Finding("container engines", "note", "none", "install runc or podman to share devices among containers")


def _parts() -> Iterator[Finding]:
    files = (*paths.INTERPOSERS, paths.HOOK, paths.RUNTIME_WRAPPER, paths.SIM_BINARY)
    absent = [file.name for file in files if not file.exists()]
    if absent:
        yield Finding("installed parts", "missing", f"no {', '.join(absent)}", "build the project with `make build`")
    else:
        yield Finding("installed parts", "ok", str(paths.LIB_DIR))


def _group() -> Finding:
    try:
        members = grp.getgrnam("gpushare").gr_mem
    except KeyError:
        return Finding("group gpushare", "note", "none: root alone may ask for grants", "groupadd --system gpushare")
    return Finding("group gpushare", "ok", ", ".join(members) or "no members")


def _ledger(ledger: dict[str, Any]) -> Iterator[Finding]:
    if not ledger["healthy"]:
        found = f"{ledger['reason']}; {ledger['waiting']} rows wait, {ledger['lost']} are lost"
        mend = "make room on that disk or mend it; the node goes on and writes them then"
        yield Finding("ledger", "missing", found, mend)
    elif ledger["damaged"] or ledger["set_aside"] or ledger["lost"]:
        files = ", ".join(ledger["damaged"]) or "no file"
        found = f"{ledger['set_aside']} rows set aside, {ledger['lost']} lost; replaced: {files}"
        mend = "the rest is well; look at the table quarantine and these files, then delete them"
        yield Finding("ledger", "note", found, mend)
    else:
        yield Finding("ledger", "ok", "can be written")


def _daemon(args: argparse.Namespace) -> Iterator[Finding]:
    daemon = client(args)
    try:
        node, devices, tenants = daemon.node(), daemon.devices(), daemon.tenants()
    except GpushareError as error:
        yield Finding("daemon", "note", str(error).partition(": start")[0], "gpushare daemon")
        return
    kind = "simulated" if node["simulated"] else "real"
    yield Finding("daemon", "ok", f"{daemon.path}: {node['devices']} {kind} devices, version {node['version']}")
    yield from _ledger(node["ledger"])
    for device in devices:
        if device["health"] != "healthy":
            mend = "its grants are told and wait; see dmesg, reset the device or release them (`gpushare ps`)"
            found = f"{device['id']} does not work: {device['health_reason']}"
            yield Finding(f"device {device['index']}", "missing", found, mend)
    for tenant in tenants:
        if tenant["degraded"]:
            mend = "mend the devices, or lower guarantees with `gpushare tenants set`"
            yield Finding(f"tenant {tenant['name']}", "missing", f"degraded: {render.degraded(tenant)}", mend)


class DoctorCommand:
    """what is missing on this node and how to mend it"""

    name = "doctor"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_json(parser)
        add_socket(parser)

    def run(self, args: argparse.Namespace) -> int:
        findings = [_kernel(), _driver(), _cgroups(), _pages(), *_engines(), *_parts(), _group(), *_daemon(args)]
        healthy = all(finding.level != "missing" for finding in findings)
        if args.json:
            print_json({"healthy": healthy, "findings": [asdict(finding) for finding in findings]})
            return 0 if healthy else 1
        width = max(len(finding.what) for finding in findings)
        for finding in findings:
            print(f"{finding.level:8} {finding.what:{width}}  {finding.found}")
            if finding.mend:
                print(f"{'':8} {'':{width}}  -> {finding.mend}")
        return 0 if healthy else 1
