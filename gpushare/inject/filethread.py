"""Lists of steps that a thread of C carries out (native/binding/gs_file_thread.h) while the event loop goes on: each
changes files of a grant that nobody has used. Called on the loop only."""

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
    """It starts with the first list. Lists are carried out in the order in which they came, and have numbers from 1."""

    def __init__(self) -> None:
        self._thread: Any = None
        self._bell = -1
        self._asked = self._over = 0
        self._jobs: deque[tuple[Steps, Over]] = deque()
        """Those after `_over`."""
        self._failed: dict[int, OSError] = {}
        """Of those that are not over: one that is may wait for others, and so come here again."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error = ffi.new("struct gs_err *")
        self._number = ffi.new("uint64_t *")

    @property
    def asked(self) -> int:
        """The number of the last one."""
        return self._asked

    def run(self, steps: Steps, directory: str | Path, over: Over) -> int:
        """Carries them out soon, for a directory as Steps.run takes it. They must stay as they are until `over` is
        called, on the loop, with the error of a step that failed. Returns the list's number. Raises OSError."""
        if self._thread is None:
            self._start()
        name = os.fsencode(directory)
        self._check(lib.gs_file_thread_put(self._thread, name, steps.array, len(steps.array), self._error))
        self._jobs.append((steps, over))
        self._asked += 1
        return self._asked

    async def done(self, number: int) -> None:
        """Returns when the list of that number is over, and all before it."""
        if number > self._over:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((number, future))
            await future

    def wait(self, number: int) -> None:
        """The same for who cannot await it: it takes a millisecond, or one for a few others before it."""
        if number > self._over:
            lib.gs_file_thread_wait(self._thread, number)
            self._settle()

    def close(self) -> None:
        """Does what is left."""
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
        # How many are done is asked before what has failed: of those, all failures are there.
        done = lib.gs_file_thread_done(self._thread)
        while lib.gs_file_thread_failed(self._thread, self._number, self._error):
            self._failed[self._number[0]] = self._said()
        done = max(done, *self._failed, 0)
        while self._over < done:
            self._over += 1
            _, over = self._jobs.popleft()
            try:
                over(self._failed.pop(self._over, None))
            except Exception:  # of one grant: the others' are told all the same
                log.exception("files of a grant")
        while self._waiting and self._waiting[0][0] <= self._over:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
