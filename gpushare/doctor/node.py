"""The daemon: whether it answers, what it says of itself, and what killed ones have left."""

import errno
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare import __version__, paths
from gpushare.client import Client
from gpushare.doctor.finding import Finding, shortened
from gpushare.doctor.installed import unit
from gpushare.errors import GpushareError

GROUP = "gpushare"
_MEND_WALL = "SECURITY.md says what each wall needs; restart the daemon, which tries them anew"


@dataclass(slots=True)
class Said:
    """What the daemon answered. `grants`: None where it did not."""

    node: dict[str, Any] = field(default_factory=dict)
    devices: list[Any] = field(default_factory=list)
    tenants: list[Any] = field(default_factory=list)
    grants: list[Any] | None = None


def ask(client: Client) -> tuple[Said, list[Finding]]:
    """Asks it all that is wanted of it."""
    try:
        said = Said(client.node(), client.devices(), client.tenants(), client.grants())
    except GpushareError as error:
        return Said(), [_unreachable(client.path, error)]
    return said, list(_daemon(client, said))


def _unreachable(path: Path, error: GpushareError) -> Finding:
    start = "sudo systemctl start gpushare; see `journalctl -u gpushare`" if unit() else "gpushare daemon"
    try:
        info = path.lstat()
    except PermissionError:
        return Finding("daemon", "note", f"{path.parent} is closed to you", "run it as root")
    except OSError:
        return Finding("daemon", "note", f"no daemon at {path}: containers that ask for a share do not start", start)
    if not stat.S_ISSOCK(info.st_mode):
        return Finding("daemon", "wrong", f"{path} is not a socket", f"rm {path}, and start the daemon again")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        code = probe.connect_ex(os.fspath(path))
    if code == errno.ECONNREFUSED:
        found = f"{path} was left by a daemon that was killed: containers that ask for a share do not start"
        return Finding("daemon", "wrong", found, start)
    if code in (errno.EACCES, errno.EPERM):
        return Finding("daemon", "wrong", f"you may not use {path}", _admission(info))
    return Finding("daemon", "wrong", str(error), "see its log: `journalctl -u gpushare`")


def _admission(info: os.stat_result) -> str:
    if not info.st_mode & stat.S_IWGRP or info.st_gid == 0:
        return f"run as root; for others make the group {GROUP} (`gpushare install` does) and restart the daemon"
    try:
        name = grp.getgrgid(info.st_gid).gr_name
    except KeyError:
        name = str(info.st_gid)
    return f"sudo adduser USER {name}, then log in again"


def _daemon(client: Client, said: Said) -> Iterator[Finding]:
    node = said.node
    kind = "simulated" if node["simulated"] else "real"
    found = f"{client.path}: {node['devices']} {kind} devices, version {node['version']}"
    if node["version"] != __version__:
        text = f"{found}, but {__version__} is installed: its files may not fit the daemon that runs"
        yield Finding("daemon", "wrong", text, "sudo systemctl restart gpushare: tenants go on meanwhile")
    else:
        yield Finding("daemon", "ok", found)
    yield from _ledger(node["ledger"])
    yield from _walls(node)
    for device in said.devices:
        if device["health"] != "healthy":
            mend = "its grants are told and wait; see dmesg, reset the device or release them (`gpushare ps`)"
            found = f"{device['id']} does not work: {device['health_reason']}"
            yield Finding(f"device {device['index']}", "missing", found, mend)
    for grant in said.grants or ():
        for wall in grant["walls"]:
            if wall["name"] == "devices" and not wall["holds"] and not node["simulated"]:
                found = f"no device program holds it: {wall['why']}"
                yield Finding(f"grant {grant['id']}", "wrong", found, "see SECURITY.md for what it can reach then")


def _walls(node: dict[str, Any]) -> Iterator[Finding]:
    """Those of the node that do not hold. None that holds is a line: grants say which they have."""
    walls, kept = node["walls"], {wall["keeps"] for wall in node["walls"] if wall["holds"]}
    for wall in walls:
        if wall["holds"]:
            continue
        found = f"{wall['why']}: {wall['lost']}"
        if node["enforce"] == "required" and wall["keeps"] not in kept:
            mend = 'no grant is bound (enforce is required): mend it, or set enforce = "best" in gpushare.toml'
            yield Finding(f"wall {wall['name']}", "missing", found, mend)
        elif wall["keeps"] == "devices" and wall["keeps"] not in kept and not node["simulated"]:
            yield Finding(f"wall {wall['name']}", "wrong", found, _MEND_WALL)
        else:
            yield Finding(f"wall {wall['name']}", "note", found, _MEND_WALL)
    if walls and not any(not wall["holds"] for wall in walls):
        yield Finding("walls", "ok", ", ".join(wall["name"] for wall in walls))


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


def group(path: Path) -> Iterator[Finding]:
    """Who may ask for grants. `path`: of the daemon's socket."""
    what = f"group {GROUP}"
    try:
        entry = grp.getgrnam(GROUP)
    except KeyError:
        yield Finding(what, "note", "none: root alone may ask for grants", f"groupadd --system {GROUP}")
        return
    yield Finding(what, "ok", ", ".join(entry.gr_mem) or "no members")
    try:
        info = path.lstat()
    except OSError:
        return
    if info.st_uid == 0 and (info.st_gid != entry.gr_gid or not info.st_mode & stat.S_IWGRP):
        found = (
            f"{path} is not open to it (gid {info.st_gid}, mode {stat.S_IMODE(info.st_mode):o}): members are refused"
        )
        mend = "restart the daemon, which gives it to the group; `group` in gpushare.toml names another one"
        yield Finding(what, "wrong", found, mend)


def leftovers(layout: paths.Layout, said: Said) -> Iterator[Finding]:
    """What killed daemons have left, which the next one would take over or remove."""
    grants = sorted(one.name for one in _entries(layout.grants) if one.name.startswith("g-"))
    again = "start the daemon: it takes over those whose programs run, and removes the rest"
    if said.grants is None:
        if grants and not _locked(layout.run / "daemon.lock"):
            found = f"{shortened(grants)}: of a daemon that was killed; their programs go on without leases"
            yield Finding("leftover grants", "wrong", found, again)
        return
    known = {grant["id"] for grant in said.grants}
    if strays := [name for name in grants if name not in known]:
        found = f"{shortened(strays)} in {layout.grants}: of grants that the daemon does not know"
        yield Finding("leftover grants", "note", found, "restart the daemon, which removes them")
    strays = [one.name for one in _entries(layout.cgroups) if one.name.partition(".")[0] not in known]
    if strays:
        found = f"{shortened(strays)}: cgroups of grants that have ended, with programs that do not end"
        yield Finding("leftover cgroups", "note", found, "look for processes in state D; the next daemon removes them")


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _locked(path: Path) -> bool:
    """Whether a daemon has it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
