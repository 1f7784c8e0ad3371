"""The daemon: whether it answers, what it reports about its node, and what killed daemons have left."""

import errno
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare import __version__, advice, paths
from gpushare.client import Client
from gpushare.doctor.finding import Check, Finding, shortened
from gpushare.errors import GpushareError

GROUP = "gpushare"
_NOBODY = "containers that ask for a share do not start"
_MEND_WALL = "docs/security/walls.md lists what each wall needs; restart the daemon, which tries them anew"
_STARTS = "START: `sudo systemctl start gpushare` where systemd runs and has the unit, else `gpushare daemon`."
_WHILE_AWAY = "Running programs continue meanwhile, within their memory limits."
CLOSED_TO_YOU = Check(
    "daemon", "note", "{directory} is closed to you", "run it as root", "It is not known whether a daemon answers."
)
NO_DAEMON = Check("daemon", "note", f"no daemon at {{path}}: {_NOBODY}", "{start}", f"No shares are given. {_STARTS}")
NO_SOCKET = Check(
    "daemon", "wrong", "{path} is not a socket", "rm {path}, and start the daemon again", "No client can reach it."
)
KILLED = Check(
    "daemon",
    "wrong",
    f"{{path}} was left by a daemon that was killed: {_NOBODY}",
    "{start}",
    f"{_WHILE_AWAY} {_STARTS}",
)
NOT_ALLOWED = Check(
    "daemon",
    "wrong",
    "you may not use {path}",
    "{mend}",
    "Root and members of the group may use it. MEND: be root, or join the group (`sudo usermod -aG gpushare USER`).",
)
FAILS = Check(
    "daemon",
    "wrong",
    "{error}",
    "see its log, {log}",
    "It is there but does not answer. LOG: `journalctl -u gpushare` where systemd runs, else what it writes to stderr.",
)
OTHER_VERSION = Check(
    "daemon",
    "wrong",
    "{found}, but {version} is installed: its files may not fit the daemon that runs",
    "{restart}: tenants go on meanwhile",
    "An upgrade replaced the files of a running daemon. RESTART: `sudo systemctl restart gpushare` where systemd runs; "
    "else end the daemon, and start `gpushare daemon` again.",
)
DEVICE = Check(
    "device {index}",
    "missing",
    "{id} does not work: {reason}",
    "its grants are told and wait; see dmesg, reset the device or release them (`gpushare ps`)",
    "Guarantees that no longer fit shrink in proportion until the device works again.",
)
NO_PROGRAM = Check(
    "grant {grant}",
    "wrong",
    "no device program holds it: {why}",
    "see docs/security/walls.md for what it can reach then",
    "Its processes can open the nodes of other devices.",
)
WALL_REQUIRED = Check(
    "wall {name}",
    "missing",
    "{reason}: {lost}",
    'no grant is bound (enforce is required): mend it, or set enforce = "best" in gpushare.toml',
    "The configuration says that no share is given if this wall can be broken, and it could when the daemon started.",
)
WALL_DEVICES = Check(
    "wall {name}",
    "wrong",
    "{reason}: {lost}",
    _MEND_WALL,
    "A workload can open every node of the driver that its user or its engine lets it open.",
)
WALL = Check(
    "wall {name}",
    "note",
    "{reason}: {lost}",
    _MEND_WALL,
    "The daemon tried to break this wall when it started, and could. LOST is what a workload that bypasses the "
    "interposer can do then; another wall may protect the same.",
)
LEDGER_FAILS = Check(
    "ledger",
    "missing",
    "{reason}; {waiting} rows wait, {lost} are lost",
    "make room on that disk or mend it; the node goes on and writes them then",
    "What grants use is kept on tmpfs meanwhile; grants do not wait for the ledger.",
)
LEDGER_MENDED = Check(
    "ledger",
    "note",
    "{set_aside} rows set aside, {lost} lost; replaced: {files}",
    "the rest is well; look at the table quarantine and these files, then delete them",
    "The file was damaged when the daemon started; the daemon took out what it could not read.",
)
NO_GROUP = Check(
    f"group {GROUP}",
    "note",
    "none: root alone may ask for grants",
    f"groupadd --system {GROUP}",
    "Members of this group may ask for grants without being root.",
)
NOT_THE_GROUPS = Check(
    f"group {GROUP}",
    "wrong",
    "{path} is not open to it (gid {gid}, mode {mode}): members are refused",
    "restart the daemon, which gives it to the group; the key group of gpushare.toml names another one",
    "The group was created after the daemon had started, or is not the configured one.",
)
ABANDONED = Check(
    "leftover grants",
    "wrong",
    "{grants}: of a daemon that was killed; their programs go on without a daemon",
    "start the daemon: it takes over those whose programs run, and removes the rest",
    _WHILE_AWAY,
)
STRAYS = Check(
    "leftover grants",
    "note",
    "{grants} in {directory}: of grants that the daemon does not know",
    "restart the daemon, which removes them",
    "They are from an earlier run of the daemon, and take up space in a tmpfs.",
)
STRAY_CGROUPS = Check(
    "leftover cgroups",
    "note",
    "{names}: cgroups of grants that have ended, with programs that do not end",
    "look for processes in state D; the next daemon removes them",
    "A process that waits in the kernel, often for the driver, does not end when it is killed.",
)
DEGRADED = Check(
    "tenant {name}",
    "missing",
    "degraded: {how}",
    "mend the devices, or lower guarantees with `gpushare tenants set`",
    "A device has failed, and the remaining ones cannot provide all that is guaranteed.",
)


@dataclass(slots=True)
class Answers:
    """What the daemon answered. `grants`: None if it did not answer."""

    node: Mapping[str, Any] = field(default_factory=dict)
    devices: list[Any] = field(default_factory=list)
    tenants: list[Any] = field(default_factory=list)
    grants: list[Any] | None = None


def query(client: Client) -> tuple[Answers, list[Finding]]:
    """Queries the daemon. Returns its answers, and the findings about the daemon itself."""
    try:
        answers = Answers(client.node(), client.devices(), client.tenants(), client.grants())
    except GpushareError as error:
        return Answers(), [_unreachable(client.path, error)]
    return answers, list(_daemon(client, answers))


def _unreachable(path: Path, error: GpushareError) -> Finding:
    by_hand = f"`{advice.gpushare('daemon')}`"
    start = advice.service("start", "gpushare", by_hand) if advice.unit() else by_hand
    try:
        info = path.lstat()
    except PermissionError:
        return CLOSED_TO_YOU(directory=path.parent)
    except OSError:
        return NO_DAEMON(path=path, start=start)
    if not stat.S_ISSOCK(info.st_mode):
        return NO_SOCKET(path=path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        code = probe.connect_ex(os.fspath(path))
    if code == errno.ECONNREFUSED:
        return KILLED(path=path, start=start)
    if code in (errno.EACCES, errno.EPERM):
        return NOT_ALLOWED(path=path, mend=_admission(info))
    by_hand = "what it writes where it was started"
    return FAILS(error=error, log="`journalctl -u gpushare`" if advice.systemd_runs() else by_hand)


def _admission(info: os.stat_result) -> str:
    if not info.st_mode & stat.S_IWGRP or info.st_gid == 0:
        return f"run as root; for others make the group {GROUP} (`groupadd --system {GROUP}`) and restart the daemon"
    try:
        name = grp.getgrgid(info.st_gid).gr_name
    except KeyError:
        name = str(info.st_gid)
    return f"`sudo usermod -aG {name} USER`, then log in again"


def _daemon(client: Client, answers: Answers) -> Iterator[Finding]:
    node = answers.node
    kind = f"{'simulated' if node['simulated'] else 'real'} device{'' if node['devices'] == 1 else 's'}"
    found = f"{client.path}: {node['devices']} {kind}, version {node['version']}"
    if node["version"] != __version__:
        by_hand = f"end the daemon (process {node['pid']}), and start `{advice.gpushare('daemon')}` as it was started"
        yield OTHER_VERSION(found=found, version=__version__, restart=advice.service("restart", "gpushare", by_hand))
    else:
        yield Finding("daemon", "ok", found)
    yield from _ledger(node["ledger"])
    yield from _walls(node)
    for device in answers.devices:
        if device["health"] != "healthy":
            yield DEVICE(index=device["index"], id=device["id"], reason=device["health_reason"])
    for grant in answers.grants or ():
        for wall in grant["walls"]:
            if wall["name"] == "devices" and not wall["holds"] and not node["simulated"]:
                yield NO_PROGRAM(grant=grant["id"], why=wall["why"])


def _walls(node: Mapping[str, Any]) -> Iterator[Finding]:
    """Yields a finding for each wall of the node that does not hold; if all hold, one for all of them."""
    walls, kept = node["walls"], {wall["keeps"] for wall in node["walls"] if wall["holds"]}
    for wall in walls:
        if wall["holds"]:
            continue
        check = WALL
        if node["enforce"] == "required" and wall["keeps"] not in kept:
            check = WALL_REQUIRED
        elif wall["keeps"] == "devices" and wall["keeps"] not in kept and not node["simulated"]:
            check = WALL_DEVICES
        yield check(name=wall["name"], reason=wall["why"], lost=wall["lost"])
    if walls and not any(not wall["holds"] for wall in walls):
        yield Finding("walls", "ok", ", ".join(wall["name"] for wall in walls))


def _ledger(ledger: dict[str, Any]) -> Iterator[Finding]:
    if not ledger["healthy"]:
        yield LEDGER_FAILS(reason=ledger["reason"], waiting=ledger["waiting"], lost=ledger["lost"])
    elif ledger["damaged"] or ledger["set_aside"] or ledger["lost"]:
        files = ", ".join(ledger["damaged"]) or "no file"
        yield LEDGER_MENDED(set_aside=ledger["set_aside"], lost=ledger["lost"], files=files)
    else:
        yield Finding("ledger", "ok", "can be written")


def group(path: Path) -> Iterator[Finding]:
    """Yields findings about which users may ask for grants. `path`: of the daemon's socket."""
    try:
        entry = grp.getgrnam(GROUP)
    except KeyError:
        yield NO_GROUP()
        return
    yield Finding(f"group {GROUP}", "ok", ", ".join(entry.gr_mem) or "no members")
    try:
        info = path.lstat()
    except OSError:
        return
    if info.st_uid == 0 and (info.st_gid != entry.gr_gid or not info.st_mode & stat.S_IWGRP):
        yield NOT_THE_GROUPS(path=path, gid=info.st_gid, mode=f"{stat.S_IMODE(info.st_mode):o}")


def leftovers(layout: paths.Layout, answers: Answers) -> Iterator[Finding]:
    """Yields findings about what killed daemons have left; the next daemon takes it over or removes it."""
    grants = sorted(one.name for one in _entries(layout.grants) if one.name.startswith("g-"))
    if answers.grants is None:
        if grants and not _is_locked(layout.run / "daemon.lock"):
            yield ABANDONED(grants=shortened(grants))
        return
    known = {grant["id"] for grant in answers.grants}
    if strays := [name for name in grants if name not in known]:
        yield STRAYS(grants=shortened(strays), directory=layout.grants)
    strays = [one.name for one in _entries(layout.cgroups) if one.name.partition(".")[0] not in known]
    if strays:
        yield STRAY_CGROUPS(names=shortened(strays))


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _is_locked(path: Path) -> bool:
    """Whether a daemon holds the lock."""
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
