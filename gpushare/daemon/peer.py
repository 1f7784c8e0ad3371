"""The process at the other end of a unix socket, and questions about processes that only /proc answers."""

import grp
import os
import pwd
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

    def groups(self) -> set[int]:
        """Numbers of all groups of the user, as the user database has them."""
        try:
            name = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return {self.gid}
        return {self.gid, *os.getgrouplist(name, self.gid)}


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


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process began, None when it is gone. Together with the pid it identifies a
    process for good."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return int(fields[18]) if state not in ("Z", "X") else None


def is_ending(pid: int) -> bool:
    """Whether the process is exiting or gone. An exit closes descriptors one by one before the pidfd reports it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    state, *fields = text.rpartition(")")[2].split()
    return state in ("Z", "X") or bool(int(fields[5]) & _PF_EXITING)


_EXEC_CALLS = {"59", "322"} if os.uname().machine == "x86_64" else {"221", "281"}  # execve, execveat


@dataclass(frozen=True, slots=True)
class Image:
    """What distinguishes the program that a process runs from the one that it runs after an exec."""

    code: str
    stack: str  # random at each exec
    user_ticks: int

    def is_other(self, now: "Image") -> bool:
        """Whether `now`, of the same process, is another program: an exec lies between them."""
        return (self.code, self.stack) != (now.code, now.stack)


def image(pid: int) -> Image | None:
    """None when the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return Image(code=fields[23], stack=fields[25], user_ticks=int(fields[11]))


def has_begun(pid: int, since: Image) -> bool:
    """Whether a process that was in an exec when `since` was taken has run any of the new program.

    Then the exec is over, and all close-on-exec files are closed: the kernel does that before it returns to user space.
    """
    now = image(pid)
    if now is None or now.user_ticks > since.user_ticks or since.is_other(now):
        return True
    try:
        call = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except OSError:
        return False
    return call.isdecimal() and call not in _EXEC_CALLS


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


def maps_file(pid: int, file: os.stat_result) -> bool:
    """Whether the process has that file mapped. A mapping outlives its descriptor and ends at an exec."""
    wanted = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
    try:
        with open(f"/proc/{pid}/maps") as maps:
            return any(line.split(maxsplit=5)[3:5] == [wanted, str(file.st_ino)] for line in maps)
    except OSError:
        return False


def find_uid(name: int | str) -> int | None:
    """Of a user's name or number; None where there is no such user."""
    if isinstance(name, int):
        return name
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def find_gid(name: int | str) -> int | None:
    """Of a group's name or number; None where there is no such group."""
    if isinstance(name, int):
        return name
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None
