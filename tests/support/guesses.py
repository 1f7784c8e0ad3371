"""Handles of physical memory that are released by a guess, and given out again while that call is on its way: what uses
the handle then holds what it names now. For use inside the process that makes the calls (see holds.py).

In every play a call that returns the handle of memory X is held when the driver has done it, another thread releases
that handle, and the driver gives it to memory Y. X lives on by a descriptor. Then the first call is in the books before
the others, since something else is mapped where X was: what they say of the handle is not true any more.
"""

import os
from collections.abc import Callable
from typing import Any

import holds
from cuda.bindings import driver as d
from pairs import MIB, charged, truth
from scenes import FILE, SIZE
from worker import ok, on_device


class _Play:
    def __init__(self, context: Any) -> None:
        ok(d.cuCtxSetCurrent(context))
        self.context, self.wrong, self.fds = context, list[str](), list[int]()
        self.before = charged(), truth()
        self.at = int(ok(d.cuMemAddressReserve(2 * SIZE, 0, 0, 0)))
        self.key = ok(d.cuMemCreate(SIZE, on_device(FILE), 0))
        self.other = ok(d.cuMemCreate(SIZE, on_device(FILE), 0))
        self.third = ok(d.cuMemCreate(SIZE, on_device(FILE), 0))
        self.export(self.key)
        self.export(self.other)
        ok(d.cuMemMap(self.at, SIZE, 0, self.key, 0))
        ok(d.cuMemRelease(self.key))
        self.given: Any = None

    def export(self, handle: Any) -> None:
        self.fds.append(int(ok(d.cuMemExportToShareableHandle(handle, FILE, 0))))

    def start(self, call: Callable[[], Any]) -> holds.Operation:
        """Until the call has ended, is held, or waits."""

        def act() -> None:
            ok(d.cuCtxSetCurrent(self.context))
            call()

        operation = holds.Operation(act)
        operation.waits()
        return operation

    def again(self, make: Callable[[], Any]) -> None:
        """Ends the mapping, the last that keeps the handle's value, and makes what may get it, in one thread."""
        ok(d.cuMemUnmap(self.at, SIZE))
        ok(d.cuMemMap(self.at, SIZE, 0, self.third, 0))
        self.given = ok(make())

    def judge(self, moment: str) -> None:
        asked, given = charged(), truth()
        if asked < given:
            self.wrong.append(f"{moment}: {(given - asked) / MIB:g} MiB not charged")

    def stale(self, function: str, make: Callable[[], Any], use: Callable[[], Any]) -> None:
        """The retained handle, released by a guess, is given to what `make` makes, and used then."""
        with holds.Hold("cuMemRelease", holds.AFTER) as release, holds.Hold(function, holds.AFTER) as making:
            with holds.Hold("cuMemRetainAllocationHandle", holds.AFTER):
                retain = self.start(lambda: d.cuMemRetainAllocationHandle(self.at))
                guess = self.start(lambda: d.cuMemRelease(self.key))
                maker = self.start(lambda: self.again(make))
            retain.result("the call that returned the handle")
            user = self.start(use)
            making.release()
            assert not maker.waits()
            release.release()
        for operation in (guess, maker, user):
            operation.result("a call")
        assert int(self.given) == int(self.key)
        self.judge("used")

    def finish(self) -> list[str]:
        for handle in (self.key, self.other, self.third):
            while d.cuMemRelease(handle)[0] == d.CUresult.CUDA_SUCCESS:
                self.judge("released")
        for at in (self.at, self.at + SIZE):
            d.cuMemUnmap(at, SIZE)
            self.judge("unmapped")
        for fd in self.fds:
            os.close(fd)
            self.judge("closed")
        ok(d.cuMemAddressFree(self.at, 2 * SIZE))
        left = [(now - then) / MIB for now, then in zip((charged(), truth()), self.before, strict=True)]
        if any(left):
            self.wrong.append(f"at the end {left[0]:g} MiB charged, {left[1]:g} MiB not given back by the device")
        return self.wrong


def exported(context: Any) -> list[str]:
    """What an export names: an import of it keeps that alone."""
    play = _Play(context)
    play.stale("cuMemCreate", lambda: d.cuMemCreate(SIZE, on_device(FILE), 0), lambda: play.export(play.key))
    held = ok(d.cuMemImportFromShareableHandle(play.fds[-1], FILE))
    os.close(play.fds.pop())
    d.cuMemRelease(play.key)
    play.judge("released")
    ok(d.cuMemRelease(held))
    return play.finish()


def mapped(context: Any) -> list[str]:
    """What is mapped lives on without the handle."""
    play = _Play(context)

    def use() -> None:
        ok(d.cuMemMap(play.at + SIZE, SIZE, 0, play.key, 0))

    play.stale("cuMemCreate", lambda: d.cuMemCreate(SIZE, on_device(FILE), 0), use)
    d.cuMemRelease(play.key)
    play.judge("released")
    return play.finish()


def imported(context: Any) -> list[str]:
    """What an import holds: its memory lives on without another handle and without a descriptor."""
    play = _Play(context)
    source = play.fds[-1]
    play.stale("cuMemImportFromShareableHandle", lambda: d.cuMemImportFromShareableHandle(source, FILE), lambda: None)
    ok(d.cuMemRelease(play.other))
    os.close(play.fds.pop())
    play.judge("closed")
    return play.finish()


PLAYS = {play.__name__: play for play in (exported, mapped, imported)}


def run(name: str, context: Any) -> list[str]:
    return PLAYS[name](context)
