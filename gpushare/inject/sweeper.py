"""Directories of grants that nobody has used, removed by a thread of C (native/binding/gs_sweeper.h) while the event
loop goes on. Called on the loop only."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpushare._native import ffi, lib
from gpushare.inject.steps import Steps

_PATH_MAX = 4096  # linux/limits.h


class Sweeper:
    """Its thread starts with the first directory."""

    def __init__(self, steps: Steps, otherwise: Callable[[Path], None]) -> None:
        """`steps`: what is done in each directory. `otherwise`: called with one in which a step has failed."""
        self._steps, self._otherwise = steps, otherwise
        self._sweeper: Any = None
        self._bell = -1
        self._asked = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error = ffi.new("struct gs_err *")
        self._name = ffi.new("char[]", _PATH_MAX)

    def put(self, directory: Path) -> None:
        """Removes it soon. Raises OSError."""
        if self._sweeper is None:
            self._start()
        self._check(lib.gs_sweeper_put(self._sweeper, os.fsencode(directory), self._error))
        self._asked += 1

    async def swept(self) -> None:
        """Returns when all that were put are done."""
        if self._sweeper is not None and lib.gs_sweeper_done(self._sweeper) < self._asked:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append((self._asked, future))
            await future

    def close(self) -> None:
        """Does what is left."""
        if self._sweeper is None:
            return
        lib.gs_sweeper_stop(self._sweeper)
        self._rang()
        asyncio.get_running_loop().remove_reader(self._bell)
        lib.gs_sweeper_free(self._sweeper)
        self._sweeper = None
        os.close(self._bell)

    def _start(self) -> None:
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        out = ffi.new("struct gs_sweeper **")
        steps = self._steps.array
        try:
            self._check(lib.gs_sweeper_start(steps, len(steps), self._bell, out, self._error))
        except OSError:
            os.close(self._bell)
            raise
        self._sweeper = out[0]
        asyncio.get_running_loop().add_reader(self._bell, self._rang)

    def _check(self, code: int) -> None:
        if code < 0:
            raise OSError(-code, ffi.string(self._error.msg).decode(errors="replace"))

    def _rang(self) -> None:
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return
        while lib.gs_sweeper_failed(self._sweeper, self._name, _PATH_MAX):
            self._otherwise(Path(os.fsdecode(ffi.string(self._name))))
        done = lib.gs_sweeper_done(self._sweeper)
        while self._waiting and self._waiting[0][0] <= done:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
