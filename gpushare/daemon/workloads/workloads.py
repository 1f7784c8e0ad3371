"""The workloads of a grant: containers and plain commands. Their end is seen by the first process's pidfd and the
cgroup."""

import asyncio
import contextlib
import itertools
import logging
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Self

from gpushare.daemon.host import peer
from gpushare.daemon.state.live import Live, Workload
from gpushare.daemon.state.records import WorkloadRecord
from gpushare.enforce import cgroup, devices
from gpushare.errors import FailedError, ForbiddenError, GpushareError

log = logging.getLogger(__name__)

_REMOVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Held:
    """The cgroup that a workload has to itself, if any, and why that does not hold it. `link`: as in WorkloadRecord."""

    cgroup: cgroup.Cgroup | None
    why: str
    link: str = ""


class Process:
    """A process held by its pidfd, so that its pid cannot come to mean another one.

    The descriptor is closed at the end of `with`, unless `take` was called. `started`: as in MemberRecord.
    """

    def __init__(self, pid: int, started: int, pidfd: int) -> None:
        self.pid, self.started = pid, started
        self._pidfd: int | None = pidfd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)

    def take(self) -> int:
        """The descriptor, which the caller closes from now on. Once only."""
        assert self._pidfd is not None
        taken, self._pidfd = self._pidfd, None
        return taken


def open_process(pid: int) -> Process:
    """A living process by its pid. Raises FailedError when it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise FailedError(f"process {pid} cannot be watched: {error.strerror}") from None
    return _started(pid, pidfd, f"process {pid} has ended")


def open_peer(connection: socket, who: peer.Peer) -> Process:
    """The process at the other end of a connection. Raises FailedError when it has ended."""
    ended = f"process {who.pid} ended before it was bound"
    try:
        pidfd = peer.open_pidfd(connection, who.pid)
    except OSError:
        raise FailedError(ended) from None
    return _started(who.pid, pidfd, ended)


def user_of(process: Process, asker: peer.Peer) -> tuple[int, int]:
    """The user and group of a process that somebody else names. Raises ForbiddenError unless it is wholly the asker's,
    or root asks, and FailedError where it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text(errors="replace").split("\n")
    except OSError:
        raise FailedError(f"process {process.pid} has ended") from None
    ids = {name: values.split() for name, _, values in (line.partition(":") for line in lines)}
    if peer.start_time(process.pid) != process.started:
        raise FailedError(f"process {process.pid} has ended")
    # Real, effective, saved: a program that has another user's rights is not the asker's to move.
    if not asker.is_root and set(ids["Uid"][:3]) != {str(asker.uid)}:
        raise ForbiddenError(f"process {process.pid} is another user's: only that user or root may bind it")
    return int(ids["Uid"][1]), int(ids["Gid"][1])


def _started(pid: int, pidfd: int, ended: str) -> Process:
    started = peer.start_time(pid)
    if started is None:
        os.close(pidfd)
        raise FailedError(ended)
    return Process(pid, started, pidfd)


def of_process(live: Live, pid: int) -> Workload | None:
    """The workload whose first process has this pid. The start time is compared too: if the first process has ended and
    the workload still runs, the pid may be a stranger's."""
    for workload in live.workloads:
        if workload.record.pid == pid and workload.record.started == peer.start_time(pid):
            return workload
    return None


def watch(live: Live, record: WorkloadRecord, pidfd: int | None, ended: Callable[[], None]) -> Workload:
    """Watches a workload and owns `pidfd` from now on. `ended` is called whenever it may have ended; `alive` tells."""
    loop = asyncio.get_running_loop()
    found = cgroup.Cgroup(Path(record.cgroup[0]), record.cgroup[1]) if record.cgroup is not None else None
    workload = Workload(record, pidfd, found)
    live.workloads.append(workload)

    def process_ended() -> None:
        _close_pidfd(workload)
        ended()

    if pidfd is not None:
        loop.add_reader(pidfd, process_ended)
    if found is not None and record.cgroup_id not in (0, found.identity()):
        return workload  # it ended while no daemon ran, and the cgroup of its path is another's
    with contextlib.suppress(OSError):
        workload.events = found.events() if found is not None else None
    if workload.events is None:
        return workload
    # cgroup.events is always readable; a change is POLLPRI, which only a second epoll can single out.
    workload.poll = select.epoll()
    workload.poll.register(workload.events, select.EPOLLPRI)

    def cgroup_changed() -> None:
        assert workload.poll is not None
        assert workload.events is not None
        workload.poll.poll(0)
        try:
            os.pread(workload.events, 256, 0)
        except OSError:  # the cgroup was removed: from now on the file would be readable without end
            _close_events(workload)
        ended()

    loop.add_reader(workload.poll, cgroup_changed)
    return workload


def alive(workload: Workload) -> bool:
    """Whether the workload runs. After its first process has ended it does as long as other processes are in its cgroup
    and their end can be observed."""
    if workload.pidfd is not None:
        return True
    return workload.events is not None and workload.cgroup is not None and workload.cgroup.populated()


def _close_pidfd(workload: Workload) -> None:
    if workload.pidfd is not None:
        asyncio.get_running_loop().remove_reader(workload.pidfd)
        os.close(workload.pidfd)
        workload.pidfd = None


def close(workload: Workload) -> None:
    """Stops watching the workload, which is left alone."""
    _close_pidfd(workload)
    _close_events(workload)


def _close_events(workload: Workload) -> None:
    if workload.poll is not None:
        asyncio.get_running_loop().remove_reader(workload.poll)
        workload.poll.close()
        workload.poll = None
    if workload.events is not None:
        os.close(workload.events)
        workload.events = None


def forget_starter(live: Live) -> None:
    """Stops watching the runtime that was to start the grant's container: it did, or is gone."""
    if live.starter is not None:
        asyncio.get_running_loop().remove_reader(live.starter)
        os.close(live.starter)
        live.starter = None


def admits(live: Live, pid: int) -> bool:
    """Whether the process may belong to the grant by its cgroup. Without cgroups of their own any process may."""
    groups = [workload.cgroup for workload in live.workloads]
    if not groups or None in groups:
        return True
    try:
        own = cgroup.of_process(pid)
    except GpushareError:
        return False
    return own is not None and any(group is not None and own.path.is_relative_to(group.path) for group in groups)


def kill(live: Live) -> str:
    """Sends SIGKILL to all that runs in the grant. Returns why some of it goes on, empty where none does."""
    why = ""
    for workload in live.workloads:
        if workload.cgroup is not None:
            try:
                workload.cgroup.kill()
            except FailedError as error:
                why = str(error)
        if workload.pidfd is not None:
            why = _kill(workload.record.pid, workload.pidfd) or why
    for member in live.record.members:
        pidfd = peer.reopen_pidfd(member.pid, member.started)
        if pidfd is not None:
            why = _kill(member.pid, pidfd) or why
            os.close(pidfd)
    return why


def _kill(pid: int, pidfd: int) -> str:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except OSError as error:  # one that has become root's, of a daemon that is not
        return f"process {pid} cannot be killed: {error.strerror}"
    return ""


def plain_cgroup(links: Path, grant_id: str, pid: int, uid: int) -> Held:
    """Makes a cgroup for the grant below the process's present one, whose limits thus go on to apply, and moves the
    process into it. Returns it, or why the process stays where it was. Raises FailedError when the process has ended.

    `links`: as Layout.cgroups. The link is made first and removed last, so that no cgroup is ever forgotten.
    """
    if os.geteuid() != 0:
        return Held(None, "the daemon is not root and may make no cgroups")
    name = _free_name(links, grant_id)
    link = links / name
    try:
        group = cgroup.below(pid, name)
        links.mkdir(mode=0o700, parents=True, exist_ok=True)
        link.symlink_to(group.path)
        try:
            group.make()
        except FailedError:
            link.unlink()
            raise
        try:
            group.add(pid)
        except FailedError:
            remove_cgroup(links, name)
            raise
    except (FailedError, OSError) as error:
        if peer.start_time(pid) is None:
            raise FailedError(f"process {pid} ended before it was bound") from None
        log.warning("grant %s: process %d stays in its own cgroup: %s", grant_id, pid, error)
        return Held(None, str(error))
    above = group.leavable(uid)
    why = f"uid {uid} may move its processes out of it, to {above}" if above is not None else ""
    return Held(group, why, name)


def _free_name(links: Path, grant_id: str) -> str:
    """The grant's id for its first cgroup, with a number added for further ones of a kept grant."""
    names = itertools.chain([grant_id], (f"{grant_id}.{number}" for number in itertools.count(2)))
    return next(name for name in names if not (links / name).is_symlink())


def grant_of(name: str) -> str:
    """The grant whose cgroup has this name in Layout.cgroups."""
    return name.partition(".")[0]


def container_cgroup(pid: int) -> Held:
    """The cgroup that the engine has made for the container of this process. Raises FailedError when it has ended."""
    found = cgroup.own_of_process(pid)
    return Held(found, "" if found is not None else "the engine has made no cgroup for the container alone")


def cgroup_names(links: Path, grant_id: str | None = None) -> list[str]:
    """Names of all cgroups that grants have, or had when the daemon was killed; of one grant, where that is given."""
    names = [link.name for link in links.iterdir()] if links.exists() else []
    return [name for name in names if grant_id is None or grant_of(name) == grant_id]


def remove_cgroups(links: Path, name: str) -> None:
    """Removes a workload's cgroups, by the name of the first, as remove_cgroup does."""
    for one in (name, f"{name}{devices.SUFFIX}"):
        remove_cgroup(links, one)


def remove_cgroup(links: Path, name: str, deadline: float | None = None) -> None:
    """Removes a cgroup by its name, if there is one. Killed processes leave it a moment later, so it is retried
    for 10 s; what is left then, the next start removes.

    `deadline`: of the loop's clock, for the retries.
    """
    if remove_cgroup_now(links, name):
        return
    loop = asyncio.get_running_loop()
    deadline = deadline or loop.time() + _REMOVE_SECONDS
    if loop.time() < deadline:
        loop.call_later(0.1, remove_cgroup, links, name, deadline)
    else:
        log.warning("cgroup %s stays: processes in it do not end", (links / name).readlink())


def remove_cgroup_now(links: Path, name: str) -> bool:
    """Tries once to remove a cgroup. Returns whether it is gone."""
    link = links / name
    try:
        group = cgroup.Cgroup(link.readlink(), v2=True)
    except OSError:
        return True
    if not group.remove():
        return False
    link.unlink(missing_ok=True)
    return True
