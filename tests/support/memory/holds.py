"""Holds of the simulated driver (native/sim/api/sim_test.h), for use inside the process that makes the driver calls: a
worker imports this module (`worker.do("from memory import holds")`).

A hold stops the next call of a named driver function before or after its effect, wherever the call comes from: the
program, or an interposer in the middle of another call. `cross` runs two operations against each other with it:

    crossing = holds.cross(
        lambda: ok(d.cuMemRelease(handle)), "cuMemRelease", holds.AFTER,  # stopped when the driver has released
        lambda: d.cuMemMap(address, size, 0, handle, 0),                  # runs meanwhile
    )
    crossing.held      # the first operation made that call and was stopped in it
    crossing.blocked   # the second one waited for the first one
    crossing.first, crossing.second   # what they returned

`check_books` compares the simulator's books with what is alive in the process.

The simulated driver must be loaded: call cuInit first. Both operations run in threads of their own; a context is
current there only if the operation makes it so.
"""

import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

BEFORE, AFTER = 0, 1
PATIENCE_S = 60.0  # for anything that must end, on a busy machine
STILL_S = 0.05  # a thread asleep this long in one system call is taken to wait for the held thread
BLOCKED_S = 3.0  # an operation that has not ended by then is taken to wait, even if it wakes now and then

_library: ctypes.CDLL | None = None


def library() -> ctypes.CDLL:
    """The simulated driver of this process, even if an interposer has its name."""
    global _library
    if _library is None:
        lines = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split(maxsplit=5)[5] for line in lines if "libcuda" in line}
        found = [one for one in map(ctypes.CDLL, sorted(paths)) if hasattr(one, "gs_sim_hold")]
        assert found, f"no simulated driver among {sorted(paths)}: call cuInit first"
        _library = found[0]
    return _library


def check_books(device: int = 0) -> None:
    """Asserts that the engine's books of this process equal the sum of what is alive in it. No driver call may be in
    progress in another thread."""
    counts = (ctypes.c_ulonglong * 4)()
    agreed = library().gs_sim_check(device, counts)
    found, books, holds, books_holds = counts
    assert agreed == 1, f"{found} bytes are alive, the books say {books}; {holds} holds, the books say {books_holds}"


class Hold:
    """Stops one call. As a context manager it always lets the call go on at the end.

    function: "cuMemAlloc_v2" for this one export, "cuMemAlloc" for all versions and default streams. thread: a native
    thread id, 0 for any. skip: how many matching calls pass first.
    """

    def __init__(self, function: str, when: int, thread: int = 0, skip: int = 0) -> None:
        self.function, self.when = function, when
        self.number = library().gs_sim_hold(function.encode(), when, thread, skip)
        assert self.number > 0, f"no driver function {function}" if self.number < 0 else "too many holds"

    def stopped(self, seconds: float = 0) -> int:
        """The id of the thread that is stopped, or 0 if there is none within `seconds`."""
        thread = library().gs_sim_held(self.number, int(seconds * 1000))
        return max(0, int(thread))

    def release(self) -> bool:
        """Lets the call go on; true if one was stopped."""
        return library().gs_sim_release(self.number) == 1

    def __enter__(self) -> "Hold":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


class Operation(threading.Thread):
    """A function in its own thread, run by `go`. The thread id is known before that."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function, self._go, self._ready = function, threading.Event(), threading.Event()
        self.value: Any = None
        self.failure: BaseException | None = None
        self.start()
        self._ready.wait()

    def run(self) -> None:
        self._ready.set()
        self._go.wait()
        try:
            self.value = self._function()
        except BaseException as failure:
            self.failure = failure

    def go(self) -> None:
        self._go.set()

    def result(self, what: str) -> Any:
        """Waits for the end: returns or raises as the function did. AssertionError after PATIENCE_S."""
        self.join(PATIENCE_S)
        if self.is_alive():
            frame = sys._current_frames().get(self.ident or 0)
            raise AssertionError(f"{what} does not end:\n{''.join(traceback.format_stack(frame))}")
        if self.failure:
            raise self.failure
        return self.value

    def _asleep(self) -> tuple[bool, str]:
        """Whether the thread sleeps, and how often it has gone to sleep so far."""
        status = Path(f"/proc/self/task/{self.native_id}/status").read_text()
        words = dict(line.split(":", 1) for line in status.splitlines())
        return words["State"].split()[0] == "S", words["voluntary_ctxt_switches"].strip()

    def waits(self) -> bool:
        """Runs the function until it has ended (False), or until it stays asleep or BLOCKED_S have passed (True)."""
        began, since, before = time.monotonic(), time.monotonic(), ""
        self.go()
        while time.monotonic() - began < BLOCKED_S:
            self.join(0.001)
            if not self.is_alive():
                return False
            try:
                sleeping, sleeps = self._asleep()
            except OSError:  # the thread has ended
                continue
            if not sleeping or sleeps != before:
                since, before = time.monotonic(), sleeps
            elif time.monotonic() - since > STILL_S:
                return True
        return True


def until_all_sleep(operations: list[Operation]) -> None:
    """Returns when all of the operations, which must have begun, have slept for STILL_S."""
    began, since, before = time.monotonic(), time.monotonic(), None
    while time.monotonic() - since < STILL_S:
        assert time.monotonic() - began < PATIENCE_S, "they do not come to rest"
        now = [operation._asleep() for operation in operations]
        if now != before or not all(sleeping for sleeping, _ in now):
            since, before = time.monotonic(), now


@dataclass(frozen=True)
class Crossing:
    """The outcome of two operations. `blocked` is an observation, not a proof: a thread that is merely slow to get an
    answer from another process can look the same."""

    held: bool
    blocked: bool
    first: Any
    second: Any


def cross(
    first: Callable[[], Any],
    function: str,
    when: int,
    second: Callable[[], Any],
    anywhere: bool = False,
    skip: int = 0,
    while_held: Callable[[], Any] | None = None,
) -> Crossing:
    """Runs `first` until it is held in the driver function `function`, then `second` until it has ended or waits, then
    lets `first` go on and waits for both.

    If `first` ends without being held, `second` runs after it. anywhere: the call may be one that another thread makes
    for `first`. while_held: called before `first` goes on. Raises what an operation raises; AssertionError if one does
    not end.
    """
    one, two = Operation(first), Operation(second)
    assert one.native_id
    with Hold(function, when, 0 if anywhere else one.native_id, skip) as hold:
        one.go()
        while one.is_alive() and not hold.stopped(0.002):
            pass
        held = hold.stopped() != 0
        blocked = two.waits()
        if while_held is not None:
            while_held()
    return Crossing(held, blocked, one.result("the first operation"), two.result("the second operation"))
