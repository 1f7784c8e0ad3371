"""Helpers of the daemon: processes that handle what a tenant or an image can make slow or large. How the daemon starts
one, and which rights it gives up first."""

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Collection
from pathlib import Path

CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2
CAP_SETGID = 6
CAP_SETUID = 7
CAP_SYS_PTRACE = 19
ENVIRONMENT = {"LC_ALL": "C.UTF-8"}

# linux/prctl.h and linux/capability.h
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 8, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAPABILITIES = 64
_MEMORY_BYTES = 1 << 30
_PRIORITIES = (resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE)
NOBODY = 65534

_ROOT = str(Path(__file__).parents[2])
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from gpushare.{0}.__main__ import main; main(*sys.argv[2:])"


def command(room: str, *arguments: str) -> list[str]:
    """The command line that runs `main(parent, *arguments)` of gpushare/ROOM/__main__.py, where `parent` is the pid of
    this process. It is isolated from the environment and the working directory, and imports the package from where this
    process did."""
    return [sys.executable, "-I", "-c", _PROGRAM.format(room), _ROOT, str(os.getpid()), *arguments]


def confine(parent: str, *, keep: Collection[int], descriptors: int | None = None) -> None:
    """Restricts this process to the capabilities `keep`, files that everybody may use, and 1 GiB of address space,
    without core files or programs that gain rights. The kernel kills it when its parent ends.

    `descriptors`: limit of open files. The uid stays: a FUSE file system that root has mounted for itself, as some
    tools do for images, is visible to no other uid. Raises OSError; SystemExit where the parent has already ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the parent decides when to stop
    limit(_MEMORY_BYTES, descriptors)
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        _give_up(libc, keep)
    seal()
    # Last: the kernel clears it when credentials change.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        raise SystemExit


def limit(address_space: int, descriptors: int | None) -> None:
    """Limits this process's memory (bytes) and, where given, its open files; it leaves no core file. Raises OSError."""
    for kind, value in (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, descriptors),
    ):
        if value is not None:
            _, most = resource.getrlimit(kind)  # which root in a container may not raise
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(kind, (value, value))


def seal() -> None:
    """Others of this process's user cannot look into it, and no program that it starts gains rights."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def become(uid: int, gid: int) -> None:
    """Turns this process, which is confined, into one of a user for good, with no capabilities. If it is root's it must
    have kept CAP_SETUID and CAP_SETGID. The kernel does not kill it with its parent any more. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        _hold(libc, ())


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """For a child between fork and exec: it gets this signal when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def become_nobody(keep: Collection[int] = ()) -> None:
    """Turns this process from root into user nobody for good, with no capabilities but `keep`; no program that it
    starts has more. Raises OSError."""
    become_alone(NOBODY, keep)


def become_alone(number: int, keep: Collection[int] = ()) -> None:
    """As become_nobody, with this uid and gid. The kernel does not kill the process with its parent any more."""
    libc = ctypes.CDLL(None, use_errno=True)
    for limit in _PRIORITIES:  # the daemon's unit lets its own threads have one
        resource.setrlimit(limit, (0, 0))
    _drop_bounding_set(libc, keep)
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(number, number, number)
    os.setresuid(number, number, number)
    _hold(libc, keep)
    seal()


def _drop_bounding_set(libc: ctypes.CDLL, keep: Collection[int]) -> None:
    for number in range(_CAPABILITIES):
        if number not in keep:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for those that this kernel does not know


def _give_up(libc: ctypes.CDLL, keep: Collection[int]) -> None:
    with contextlib.suppress(PermissionError):  # root in a container may lack the right: it has few groups
        os.setgroups([])
    libc.setfsgid(NOBODY)
    libc.setfsuid(NOBODY)
    _drop_bounding_set(libc, keep)
    _hold(libc, keep)


def _hold(libc: ctypes.CDLL, keep: Collection[int]) -> None:
    """Reduces the capabilities of this process to those in `keep`."""
    kept = sum(1 << number for number in keep)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    # effective, permitted, inheritable; the lower 32 capabilities first
    header, held = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    if libc.capget(header, held) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    _, low_held, _, _, high_held, _ = struct.unpack("=6I", held.raw)
    low, high = low & low_held, high & high_held  # root in a container may lack some
    if libc.capset(header, struct.pack("=6I", low, low, 0, high, high, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")
