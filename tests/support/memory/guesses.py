"""Guessed handles of physical memory: the driver reuses handle values, so a program can name a handle before the call
that creates it has returned. For use inside the process that makes the calls (see holds.py).

`run` plays one use of such a handle: while the creating call is held in the driver, and the other way round. It returns
what was wrong: less charged than the device has given, something left at the end, or a call that did not wait.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cuda.bindings import driver as d
from memory import holds
from memory.pairs import MIB, charged, truth
from memory.scenes import FILE, SIZE, failed
from run.waiting import until
from run.worker import made, ok, on_device

PLACES = 256  # GS_UNDERWAY of native/interposer/memory/physical/order.h


class _Play:
    def __init__(self, context: Any) -> None:
        ok(d.cuCtxSetCurrent(context))
        self.context, self.wrong, self.fds = context, list[str](), list[int]()
        self.empty = charged(), truth()
        self.at = int(ok(d.cuMemAddressReserve(2 * SIZE, 0, 0, 0)))
        self.team = ok(d.cuMulticastCreate(made(d.CUmulticastObjectProp, numDevices=1, size=SIZE)))
        ok(d.cuMulticastAddDevice(self.team, 0))
        self.again = threading.Event()
        self.maker, _ = self.start(self.create_twice)

    def create_twice(self) -> None:
        """Creates twice in one thread, since a driver may reuse a handle only within a thread."""
        self.key = ok(d.cuMemCreate(SIZE, on_device(FILE), 0))
        ok(d.cuMemRelease(self.key))
        self.again.wait()
        assert int(ok(d.cuMemCreate(SIZE, on_device(FILE), 0))) == int(self.key), "the driver gave it out no more"

    def release(self) -> None:
        d.cuMemRelease(self.key)

    def map(self) -> None:
        d.cuMemMap(self.at, SIZE, 0, self.key, 0)

    def export(self) -> None:
        answer = d.cuMemExportToShareableHandle(self.key, FILE, 0)
        if not failed(answer):
            self.fds.append(int(answer[1]))

    def bind(self) -> None:
        d.cuMulticastBindMem(self.team, 0, self.key, 0, SIZE, 0)

    def start(self, call: Callable[[], Any]) -> tuple[holds.Operation, bool]:
        """Starts the call in its own thread; also returns whether it is held or waits."""

        def act() -> None:
            ok(d.cuCtxSetCurrent(self.context))
            call()

        operation = holds.Operation(act)
        return operation, operation.waits()

    def judge(self, moment: str) -> None:
        asked, given = charged(), truth()
        if asked < given:
            self.wrong.append(f"{moment}: {(given - asked) / MIB:g} MiB not charged")

    def during(self, use: Callable[[], None], when: int) -> list[str]:
        """Checks that the use waits while the creation is held."""
        with holds.Hold("cuMemCreate", when) as hold:
            self.again.set()
            assert hold.stopped(holds.PATIENCE_S)
            user, waits = self.start(use)
            if not waits:
                self.wrong.append("the use did not wait")
        return self.close(user)

    def before(self, use: Callable[[], None], function: str, when: int) -> list[str]:
        """Checks that the creation waits while the use is held."""
        with holds.Hold(function, when):
            user, _ = self.start(use)
            self.again.set()
            if not self.maker.waits():
                self.wrong.append("the creation did not wait")
        return self.close(user)

    def close(self, user: holds.Operation) -> list[str]:
        self.again.set()
        for operation in (self.maker, user):
            operation.result("a call")
        self.judge("afterwards")
        for end in (
            lambda: d.cuMulticastUnbind(self.team, 0, 0, SIZE),
            lambda: d.cuMemUnmap(self.at, SIZE),
            *(lambda fd=fd: os.close(fd) for fd in self.fds),  # type: ignore[misc]
            lambda: d.cuMemRelease(self.key),
        ):
            end()
            self.judge("ending")
        ok(d.cuMemRelease(self.team))
        ok(d.cuMemAddressFree(self.at, 2 * SIZE))
        left = [(now - then) / MIB for now, then in zip((charged(), truth()), self.empty, strict=True)]
        if any(left):
            self.wrong.append(f"at the end {left[0]:g} MiB charged, {left[1]:g} MiB not given back by the device")
        return self.wrong


FUNCTIONS = {
    "release": "cuMemRelease",
    "map": "cuMemMap",
    "export": "cuMemExportToShareableHandle",
    "bind": "cuMulticastBindMem",
}


def run(use: str, context: Any) -> list[str]:
    wrong = []
    for when in (holds.BEFORE, holds.AFTER):
        play = _Play(context)
        wrong += [f"{use} during the creation: {what}" for what in play.during(getattr(play, use), when)]
        play = _Play(context)
        wrong += [
            f"{use} before the creation: {what}" for what in play.before(getattr(play, use), FUNCTIONS[use], when)
        ]
    return wrong


def others_go_on(context: Any) -> list[str]:
    """Checks that a call that the driver blocks blocks only calls that name the same object."""
    play = _Play(context)
    mine, other = (ok(d.cuMemCreate(SIZE, on_device(FILE), 0)) for _ in range(2))

    def rest() -> None:
        ok(d.cuMemMap(play.at, SIZE, 0, other, 0))
        retained = ok(d.cuMemRetainAllocationHandle(play.at))
        ok(d.cuMemUnmap(play.at, SIZE))
        ok(d.cuMemRelease(retained))
        ok(d.cuMemRelease(other))
        play.release()

    with holds.Hold("cuMulticastBindMem", holds.BEFORE):
        blocked, _ = play.start(lambda: ok(d.cuMulticastBindMem(play.team, 0, mine, 0, SIZE, 0)))
        going, waits = play.start(rest)
        if waits:
            play.wrong.append("calls with other objects waited")
    blocked.result("a call")
    ok(d.cuMemRelease(mine))
    return play.close(going)


def closed_descriptor(context: Any) -> list[str]:
    """Checks that an import from a descriptor that is not open fails, even if its number is reused before the driver
    reads it: the interposer passes its own copies of imported descriptors."""
    play = _Play(context)
    memory = ok(d.cuMemCreate(SIZE, on_device(FILE), 0))
    fd = int(ok(d.cuMemExportToShareableHandle(memory, FILE, 0)))
    number = os.dup(fd)
    os.close(number)
    handles: list[Any] = []

    def act(descriptor: int) -> Callable[[], None]:
        def call() -> None:
            ok(d.cuCtxSetCurrent(context))
            answer = d.cuMemImportFromShareableHandle(descriptor, FILE)
            handles.extend([] if failed(answer) else [answer[1]])

        return call

    guess, other = holds.Operation(act(number)), holds.Operation(act(fd))
    with ExitStack() as stopped:
        for operation in (guess, other):  # meanwhile only the import opens descriptors
            hold = holds.Hold("cuMemImportFromShareableHandle", holds.BEFORE, operation.native_id or 0)
            stopped.enter_context(hold)
            operation.go()
            assert hold.stopped(holds.PATIENCE_S)
    for operation in (guess, other):
        operation.result("an import")
    if len(handles) != 1:
        play.wrong.append("the descriptor was not open, and something was imported")
    os.close(fd)
    ok(d.cuMemRelease(memory))
    play.judge("released")
    for handle in handles:
        ok(d.cuMemRelease(handle))
    return play.close(guess)


def more_than_places(context: Any) -> list[str]:
    """Makes more calls at once than the interposer has places for: the last one waits."""
    play = _Play(context)
    memory = ok(d.cuMemCreate(SIZE, on_device(), 0))
    with holds.Hold("cuMemRelease", holds.BEFORE) as hold:
        calls = [holds.Operation(lambda: d.cuMemRelease(memory)[0]) for _ in range(PLACES + 40)]
        for call in calls:
            call.go()
        assert hold.stopped(holds.PATIENCE_S)
        holds.until_all_sleep(calls)
        last, waits = play.start(lambda: ok(d.cuMemRelease(ok(d.cuMemCreate(SIZE, on_device(), 0)))))
        if not waits:
            play.wrong.append("there were places for all")
    released = [call.result("a release") for call in calls].count(d.CUresult.CUDA_SUCCESS)
    if released != 1:
        play.wrong.append(f"one reference was released {released} times")
    return play.close(last)


def ended_thread(context: Any) -> list[str]:
    """Checks that a thread that ends while its call waits for another one blocks nobody."""
    play = _Play(context)
    memory, process = int(ok(d.cuMemCreate(SIZE, on_device(), 0))), ctypes.CDLL(None)
    process.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    process.cuMemRelease.argtypes = [ctypes.c_ulonglong]
    process.signal(signal.SIGUSR1, ctypes.cast(process.pthread_exit, ctypes.c_void_p))
    with holds.Hold("cuMemRelease", holds.BEFORE):
        first, _ = play.start(lambda: d.cuMemRelease(memory))
        victim, waits = play.start(lambda: process.cuMemRelease(memory))
        assert waits
        signal.pthread_kill(victim.ident or 0, signal.SIGUSR1)
        until(lambda: not Path(f"/proc/self/task/{victim.native_id}").exists())
        last, _ = play.start(lambda: d.cuMemRelease(memory))
    first.result("the call before it")
    return play.close(last)
