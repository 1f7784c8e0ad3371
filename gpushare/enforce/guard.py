"""The tracepoint tier (native/guard/gs_guard.h) as typed objects: what processes take past the interposer is charged to
their cgroup by the kernel, and who takes more than the limit is killed.

A tracepoint refuses nothing: the allocation that passes the limit exists until the process has ended.
"""

import enum
import errno
import os
import pty
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from gpushare._native import ffi, lib
from gpushare.enforce.rm import Layout, Nodes
from gpushare.errors import FailedError

MIB = 1 << 20
_EVENTS_AT_ONCE = 64
_PAGE = 2 * MIB
# Terminals take a struct by an ioctl (TCSETS2) whose number is that of the driver's allocation: what to try with.
_LIKE_ALLOC = 0x402C542B


class Kind(enum.IntEnum):
    """GS_GUARD_*."""

    OVER = lib.GS_GUARD_OVER
    HIDDEN = lib.GS_GUARD_HIDDEN
    CHANGED = lib.GS_GUARD_CHANGED
    UNRECORDED = lib.GS_GUARD_UNRECORDED
    LEFT = lib.GS_GUARD_LEFT


@dataclass(frozen=True, slots=True)
class Event:
    """What the programs tell. `cgroup`: the one that is charged. `used`, `limit`: of it, in bytes, `bytes` of the call.
    `signal`: what the process got, 0 for nothing."""

    kind: Kind
    cgroup: int
    pid: int
    command: str
    bytes: int
    used: int
    limit: int
    signal: int


@dataclass(frozen=True, slots=True)
class Books:
    """`struct gs_guard_books`: bytes and counts of one cgroup."""

    used: int
    doubt: int
    allocations: int
    frees: int
    objects: int
    pending: int
    failed: int
    failed_bytes: int
    over: int
    lost: int


class Guard:
    """The programs, loaded; attached while cgroups are limited. Raises FailedError where the kernel does not take
    them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._err = ffi.new("struct gs_err *")
        self._limited: set[int] = set()
        out = ffi.new("struct gs_guard **")
        self._check(lib.gs_guard_open(layout.native(), out, self._err))
        self._guard = out[0]
        self._out = ffi.new("struct gs_guard_event[]", _EVENTS_AT_ONCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends it: nothing is charged any more."""
        guard, self._guard = self._guard, None
        if guard is not None:
            lib.gs_guard_close(guard)

    def _check(self, status: int) -> None:
        if status < 0:
            raise FailedError(ffi.string(self._err.msg).decode(errors="replace"))

    @property
    def descriptor(self) -> int:
        """Readable while there are events."""
        return int(lib.gs_guard_events_fd(self._guard))

    def limit(self, cgroup: Path, limit_bytes: int, number: int = signal.SIGKILL) -> int:
        """What the processes of a v2 cgroup, and of those in it, may hold; 0 as the signal's `number`: who holds more
        is only told. Returns the cgroup's number, by which the other calls know it."""
        found = _number(cgroup)
        asked = ffi.new("struct gs_guard_limit *", {"bytes": limit_bytes, "signal": number})
        self._check(lib.gs_guard_limit(self._guard, found, asked, self._err))
        self._limited.add(found)
        try:
            self._check(lib.gs_guard_attach(self._guard, self._err))
        except FailedError:
            self.forget(found)
            raise
        return found

    def forget(self, cgroup: int) -> None:
        """The cgroup is not charged any more. With the last one the programs are detached: they cost nothing then."""
        self._limited.discard(cgroup)
        lib.gs_guard_forget(self._guard, cgroup)
        if not self._limited:
            lib.gs_guard_detach(self._guard)

    def books(self, cgroup: int) -> Books:
        """What a limited cgroup holds. Raises FailedError for another."""
        out = ffi.new("struct gs_guard_books *")
        self._check(lib.gs_guard_books(self._guard, cgroup, out, self._err))
        return Books(**{name: int(getattr(out, name)) for name in Books.__slots__})

    def events(self) -> list[Event]:
        """Those that wait, at most 64."""
        count = lib.gs_guard_events(self._guard, self._out, _EVENTS_AT_ONCE)
        return [
            Event(
                Kind(one.kind),
                int(one.cgroup),
                int(one.pid),
                _printable(ffi.string(one.comm)),
                int(one.bytes),
                int(one.used),
                int(one.limit),
                int(one.signal),
            )
            for one in (self._out[index] for index in range(count))
        ]

    def settle(self) -> None:
        """After Kind.LEFT: what ended processes held is given back, unless its file is open all the same. Looks at the
        descriptors of all processes."""
        self._check(lib.gs_guard_settle(self._guard, self._err))

    def self_test(self, scratch: Path) -> str:
        """Tries to take more than a limit. Returns how that was possible, empty where it was not. Raises FailedError,
        or OSError.

        A child moves to the cgroup `scratch`, a v2 directory without processes, and asks a terminal in the words in
        which it would ask the driver, once within the limit and once beyond.
        """
        ours, theirs = pty.openpty()
        try:
            node = os.fstat(theirs).st_rdev
            nodes = Nodes(os.major(node), os.minor(node), os.minor(node))
            tried = Layout((*self._layout.nodes, nodes), self._layout.escapes).native()
            self._check(lib.gs_guard_set_layout(self._guard, tried, self._err))
            number = self.limit(scratch, 4 * _PAGE)
            try:
                return self._try(tried, scratch, theirs, number)
            finally:
                self.forget(number)
                self._check(lib.gs_guard_set_layout(self._guard, self._layout.native(), self._err))
        finally:
            os.close(ours)
            os.close(theirs)

    def _try(self, layout: object, scratch: Path, terminal: int, number: int) -> str:
        # Not "w": there is nothing to truncate, and the child writes without a buffer.
        procs = os.open(scratch / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            within = self._child(layout, procs, terminal, 3 * _PAGE)
            used = self.books(number).used
            beyond = self._child(layout, procs, terminal, 5 * _PAGE)
        finally:
            os.close(procs)
        if within != 0:
            raise FailedError(f"a process that takes less than its limit ends with {within}")
        if used != 3 * _PAGE:
            return f"{3 * _PAGE} bytes that a process took were charged as {used}"
        return "" if beyond == -signal.SIGKILL else f"a process took more than its limit, and ended with {beyond}"

    def _child(self, layout: object, procs: int, terminal: int, size: int) -> int:
        out = ffi.new("int *")
        self._check(lib.gs_guard_try(layout, procs, terminal, _LIKE_ALLOC, size, out, self._err))
        return os.waitstatus_to_exitcode(out[0])

    def wait(self, seconds: float) -> list[Event]:
        """The next events, none where there are none for so long."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
        return self.events()


def _number(cgroup: Path) -> int:
    try:
        return cgroup.stat().st_ino
    except OSError as error:
        raise FailedError(f"cgroup {cgroup} cannot be limited: {os.strerror(error.errno or errno.EIO)}") from None


def _printable(name: bytes) -> str:
    """A process's name is its own: whatever is no printable ASCII is a question mark."""
    return "".join(chr(byte) if 32 <= byte < 127 else "?" for byte in name)
