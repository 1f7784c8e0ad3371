"""Attacks by the tenant's processes: storms, crowds, mappings, threads, stops, kills, work on the device."""

import contextlib
import ctypes
import mmap
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hostile import joins as hostilejoin
from hostile.program import Hostile, dies_with_parent

from gpushare import paths

libc = ctypes.CDLL(None, use_errno=True)


def storm(hostile: Hostile) -> None:
    """Children that join and die at once."""
    for _ in range(hostile.count(5, 30)):
        hostile.fork(lambda: os._exit(hostilejoin.join(hostile).fileno() < 0))


def crowd(hostile: Hostile) -> None:
    """Children that join and stay for a while."""

    def stay() -> None:
        kept = hostilejoin.join(hostile)
        time.sleep(hostile.random.random() * 3)
        kept.close()

    for _ in range(hostile.count(2, 20)):
        hostile.fork(stay)


def execs(hostile: Hostile) -> None:
    """Children that join and exec another program; some keep the connection open across the exec."""

    def become() -> None:
        kept = hostilejoin.join(hostile)
        os.set_inheritable(kept.fileno(), hostile.random.random() < 0.5)
        os.execv("/bin/sleep", ["sleep", str(hostile.random.random())])

    for _ in range(hostile.count(2, 10)):
        hostile.fork(become)


def mappings(hostile: Hostile) -> None:
    """A process with many mappings joins many times, then all its connections end at once."""

    def swell() -> None:
        pages = hostile.count(2000, 10_000)
        room = mmap.mmap(-1, min(60_000, pages) * 4096)
        at = ctypes.addressof(ctypes.c_char.from_buffer(room))
        for page in range(0, min(60_000, pages), 2):
            libc.mprotect(ctypes.c_void_p(at + page * 4096), 4096, 0)
        kept = [hostilejoin.join(hostile) for _ in range(20)]
        time.sleep(0.2)
        del kept

    hostile.fork(swell)


def threads(hostile: Hostile) -> None:
    def many() -> None:
        stop = threading.Event()
        for _ in range(min(500, hostile.count(20, 100))):
            threading.Thread(target=stop.wait, daemon=True).start()
        kept = hostilejoin.join(hostile)
        time.sleep(0.2)
        kept.close()

    hostile.fork(many)


def long_name(hostile: Hostile) -> None:
    """A process whose name has the separators of /proc/PID/stat, and whose arguments are very long."""

    def named() -> None:
        libc.prctl(15, b") R 1 (\n\xff")  # PR_SET_NAME
        kept = hostilejoin.join(hostile)
        os.execv("/bin/sleep", ["sleep", "0.2", *["0" * 10_000] * 10])
        kept.close()

    hostile.fork(named)


def cgroups(hostile: Hostile) -> None:
    """Makes cgroups below its own, if it may."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        own = Path("/sys/fs/cgroup", line.split(":")[2].lstrip("/"))
        for number in range(hostile.count(5, 20)):
            made = own / f"hostile-{number}"
            made.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):
                (made / "cgroup.procs").write_text(str(os.getpid()))


def kills(hostile: Hostile) -> None:
    for pid in hostile.random.sample(hostile.children, len(hostile.children) // 2):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stops(hostile: Hostile) -> None:
    """Stops some of its children, maybe with a lease, or continues them."""
    for pid in hostile.children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, hostile.random.choice((signal.SIGSTOP, signal.SIGCONT)))


def work(hostile: Hostile) -> None:
    """Starts a real program in the grant, for the other attacks to tamper with."""
    if not os.access(paths.LIB_DIR / "gpushare-spin", os.X_OK):
        raise ValueError("the program may not be run by another user here")
    child = subprocess.Popen(
        [paths.LIB_DIR / "gpushare-spin", "--seconds", "1", "--kernel-ns", str(hostile.random.choice((10**5, 10**7)))],
        env={**os.environ, **hostile.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=dies_with_parent,
    )
    child.returncode = 0  # reaped with the others
    hostile.children.append(child.pid)


def unshared(hostile: Hostile) -> None:
    """A child in its own user and PID namespaces joins: its pid there means nothing here."""

    def alone() -> None:
        libc.unshare(0x10000000 | 0x20000000)  # CLONE_NEWUSER, CLONE_NEWPID
        if os.fork() == 0:
            hostilejoin.join(hostile)
            os._exit(0)
        os.wait()

    hostile.fork(alone)


MENU: dict[str, Callable[[Hostile], None]] = {
    attack.__name__: attack
    for attack in (storm, crowd, execs, mappings, threads, long_name, cgroups, kills, stops, work, unshared)
}
