"""Runs lists of steps on a C thread (native/binding/gs_file_thread.h) while the event loop continues: each list changes
files of a grant that has not been used yet. Called on the loop only."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpushare._native import ffi, lib
from gpushare.inject.steps import Steps

log = logging.getLogger(__name__)

Over = Callable[[OSError | None], None]


class FileThread:
    """The thread, started with the first list. Lists run in the order in which they were put, numbered from 1."""

    def __init__(self) -> None:
        self._thread: Any = None
        self._bell = -1
        self._asked = self._over = 0
        self._jobs: deque[tuple[Steps, Over]] = deque()
        """Lists after number `_over`, in order."""
        self._failed: dict[int, OSError] = {}
        """Errors by list number, of lists whose callback has not run. A callback may call `wait` and so re-enter
        `_settle`."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error = ffi.new("struct gs_err *")
        self._number = ffi.new("uint64_t *")

    @property
    def asked(self) -> int:
        """The number of the last list put."""
        return self._asked

    def run(self, steps: Steps, directory: str | Path, over: Over) -> int:
        """Queues a list. `directory`: as in Steps.run. `steps` must not change until `over` is called, on the loop,
        with the error of a failed step or None. Returns the list's number. Raises OSError."""
        if self._thread is None:
            self._start()
        name = os.fsencode(directory)
        self._check(lib.gs_file_thread_put(self._thread, name, steps.array, len(steps.array), self._error))
        self._jobs.append((steps, over))
        self._asked += 1
        return self._asked

    async def done(self, number: int) -> None:
        """Returns when the list with this number and all before it have completed."""
        if number > self._over:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((number, future))
            await future

    def wait(self, number: int) -> None:
        """As `done`, but blocks: about a millisecond, or one for every few lists before it."""
        if number > self._over:
            lib.gs_file_thread_wait(self._thread, number)
            self._settle()

    def close(self) -> None:
        """Completes the queued lists and ends the thread."""
        if self._thread is None:
            return
        lib.gs_file_thread_stop(self._thread)
        self._settle()
        asyncio.get_running_loop().remove_reader(self._bell)
        lib.gs_file_thread_free(self._thread)
        self._thread = None
        os.close(self._bell)

    def _start(self) -> None:
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        out = ffi.new("struct gs_file_thread **")
        try:
            self._check(lib.gs_file_thread_start(self._bell, out, self._error))
        except OSError:
            os.close(self._bell)
            raise
        self._thread = out[0]
        asyncio.get_running_loop().add_reader(self._bell, self._rang)

    def _check(self, code: int) -> None:
        if code < 0:
            raise self._said()

    def _said(self) -> OSError:
        return OSError(-self._error.code, ffi.string(self._error.msg).decode(errors="replace"))

    def _rang(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return
        self._settle()

    def _settle(self) -> None:
        # Read the completed count before the failures: then all failures up to that count are there.
        done = lib.gs_file_thread_done(self._thread)
        while lib.gs_file_thread_failed(self._thread, self._number, self._error):
            self._failed[self._number[0]] = self._said()
        done = max(done, *self._failed, 0)
        while self._over < done:
            self._over += 1
            _, over = self._jobs.popleft()
            try:
                over(self._failed.pop(self._over, None))
            except Exception:  # one grant's callback must not keep the others' from running
                log.exception("files of a grant")
        while self._waiting and self._waiting[0][0] <= self._over:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
