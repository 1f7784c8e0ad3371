"""The tracepoint tier (native/guard/gs_guard.h) as typed objects: kernel programs charge allocations that bypass the
interposer to the process's cgroup, and kill a process that exceeds the limit.

A tracepoint cannot refuse an allocation: the one that exceeds the limit exists until the process has ended.
"""

import enum
import errno
import os
import pty
import select
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gpushare._native import ffi, lib
from gpushare.enforce.rm import Layout, Nodes
from gpushare.errors import FailedError
from gpushare.text.units import PAGE

_EVENTS_AT_ONCE = 64
# TCSETS2, for the self-test: a terminal ioctl that takes a struct and has the number of the driver's allocation (0x2B).
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
    """A report from the programs. `cgroup`: the charged cgroup. `used`, `limit`: the cgroup's, in bytes. `bytes`: size
    of the call. `signal`: signal sent to the process, 0: none."""

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
    """The programs, loaded; attached while any cgroup is limited. Raises FailedError if the kernel rejects them."""

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unloads the programs: nothing is charged any more."""
        guard, self._guard = self._guard, None
        if guard is not None:
            lib.gs_guard_close(guard)

    def _check(self, status: int) -> None:
        if status < 0:
            raise FailedError(ffi.string(self._err.msg).decode(errors="replace"))

    @property
    def descriptor(self) -> int:
        """Polls readable while there are events."""
        return int(lib.gs_guard_events_fd(self._guard))

    def limit(self, cgroup: Path, limit_bytes: int, number: int = signal.SIGKILL) -> int:
        """Limits the bytes that the processes of a v2 cgroup and below may hold. `number`: the signal sent at an
        excess; 0: it is only reported. Returns the cgroup's number, which the other calls take."""
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
        """Stops charging the cgroup. With the last one the programs are detached and cost nothing."""
        self._limited.discard(cgroup)
        lib.gs_guard_forget(self._guard, cgroup)
        if not self._limited:
            lib.gs_guard_detach(self._guard)

    def books(self, cgroup: int) -> Books:
        """Returns a limited cgroup's counters. Raises FailedError for any other cgroup."""
        out = ffi.new("struct gs_guard_books *")
        self._check(lib.gs_guard_books(self._guard, cgroup, out, self._err))
        return Books(**{name: int(getattr(out, name)) for name in Books.__slots__})

    def events(self) -> list[Event]:
        """Returns pending events, at most _EVENTS_AT_ONCE."""
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
        """To be called after Kind.LEFT: credits back what ended processes held, unless the file is still open
        elsewhere. Scans the descriptors of all processes."""
        self._check(lib.gs_guard_settle(self._guard, self._err))

    def self_test(self, scratch: Path) -> str:
        """Tries to exceed a limit. Returns how the limit failed, empty if it was enforced. Raises FailedError or
        OSError.

        A child moves to the cgroup `scratch`, a v2 directory without processes, and issues to a terminal the ioctl that
        it would issue to the driver, once within the limit and once beyond.
        """
        ours, theirs = pty.openpty()
        try:
            node = os.fstat(theirs).st_rdev
            nodes = Nodes(os.major(node), os.minor(node), os.minor(node))
            tried = Layout((*self._layout.nodes, nodes), self._layout.escapes).native()
            self._check(lib.gs_guard_set_layout(self._guard, tried, self._err))
            number = self.limit(scratch, 4 * PAGE)
            try:
                return self._try(tried, scratch, theirs, number)
            finally:
                self.forget(number)
                self._check(lib.gs_guard_set_layout(self._guard, self._layout.native(), self._err))
        finally:
            os.close(ours)
            os.close(theirs)

    def _try(self, layout: object, scratch: Path, terminal: int, number: int) -> str:
        # Not open(..., "w"): there is nothing to truncate, and the child writes to the descriptor.
        procs = os.open(scratch / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            within = self._child(layout, procs, terminal, 3 * PAGE)
            used = self.books(number).used
            beyond = self._child(layout, procs, terminal, 5 * PAGE)
        finally:
            os.close(procs)
        if within != 0:
            raise FailedError(f"a process that takes less than its limit ends with {within}")
        if used != 3 * PAGE:
            return f"{3 * PAGE} bytes that a process took were charged as {used}"
        return "" if beyond == -signal.SIGKILL else f"a process took more than its limit, and ended with {beyond}"

    def _child(self, layout: object, procs: int, terminal: int, size: int) -> int:
        out = ffi.new("int *")
        self._check(lib.gs_guard_try(layout, procs, terminal, _LIKE_ALLOC, size, out, self._err))
        return os.waitstatus_to_exitcode(out[0])

    def wait(self, seconds: float) -> list[Event]:
        """Waits at most `seconds` for events and returns them, if any."""
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
    """Replaces all but printable ASCII with question marks: a process chooses its own name."""
    return "".join(chr(byte) if 32 <= byte < 127 else "?" for byte in name)
