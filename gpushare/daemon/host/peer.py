"""The process at the other end of a unix socket, and questions about processes that only /proc answers."""

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

# Linux 6.5; the constant is not in Python's socket module.
_SO_PEERPIDFD = 77
_PF_EXITING = 0x4  # linux/sched.h


@dataclass(frozen=True, slots=True)
class Peer:
    """Credentials of a connection's peer at its connect(). `pid` is 0 for a process in a foreign pid namespace."""

    pid: int
    uid: int
    gid: int

    @property
    def is_root(self) -> bool:
        """Root, or the user that runs the daemon (root, except in tests)."""
        return self.uid in (0, os.geteuid())


def credentials(connection: socket.socket) -> Peer:
    """SO_PEERCRED of a connection."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return Peer(*struct.unpack("iII", raw))


def open_pidfd(connection: socket.socket, pid: int) -> int:
    """A pidfd of the connecting process. Raises OSError when it is gone.

    The kernel's own descriptor of the peer where it has one (SO_PEERPIDFD, Linux 6.5). Otherwise opened by pid, which
    is another process only if the peer has ended and its pid was reused while the connection was still unread.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)


@dataclass(frozen=True, slots=True)
class Image:
    """What distinguishes the program that a process runs from the one that it runs after an exec: where its code and
    its stack begin, both random at each exec. While an exec is under way both are 0."""

    code: str
    stack: str

    @property
    def known(self) -> bool:
        """Whether the kernel reported it: it does not for processes that this user may not examine."""
        return (self.code, self.stack) != ("0", "0")


@dataclass(frozen=True, slots=True)
class Status:
    """A process that is not a zombie.

    `started`: clock ticks since boot, which with the pid identifies it permanently. `ending`: it is exiting, which
    closes descriptors one by one before the pidfd reports it. `user_ticks`: how long it ran outside the kernel.
    """

    started: int
    ending: bool
    user_ticks: int
    image: Image


def status(pid: int) -> Status | None:
    """The status of a process, None when it is gone. Reads only /proc/PID/stat, one of the few files there that a
    process cannot make slow to open or to read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a process can take any name
    except OSError:
        return None
    # proc_pid_stat(5), from the third field on: a name may have spaces and parentheses in it.
    fields = text.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return Status(
        started=int(fields[19]),
        ending=bool(int(fields[6]) & _PF_EXITING),
        user_ticks=int(fields[11]),
        image=Image(fields[23], fields[25]),
    )


def start_time(pid: int) -> int | None:
    """As `Status.started`; None when the process is gone."""
    found = status(pid)
    return found.started if found is not None else None


_EXEC_CALLS = {"59", "322"} if os.uname().machine == "x86_64" else {"221", "281"}  # execve, execveat


def has_begun(pid: int, since: Status, system_call: str) -> bool:
    """Whether a process that was in an exec at `since` has run any of the new program. `system_call`: as
    /proc/PID/syscall has it, empty where it is not known.

    Then the exec has completed, and all close-on-exec files are closed: the kernel does that before it returns to user
    space.
    """
    now = status(pid)
    if now is None or now.user_ticks > since.user_ticks or (since.image.known and now.image != since.image):
        return True
    return system_call.isdecimal() and system_call not in _EXEC_CALLS


def reopen_pidfd(pid: int, started: int) -> int | None:
    """A pidfd of the process with this pid and start time, None when it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    # Checked after opening: from here on the descriptor cannot come to mean another process.
    if start_time(pid) != started:
        os.close(descriptor)
        return None
    return descriptor
