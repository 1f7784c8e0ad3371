"""Calls that share an object, two at a time: the first is held in the driver, before or after its effect, while the
second runs. For use inside the process that makes the calls (see holds.py).

`SCENES` is the table: a scene makes objects, and its rows are the calls that use, make or end them. `run` crosses a row
with another in a fresh scene and says what was wrong: less charged than the device has given, something left at the
end, or a call that never ends. What the device has given is asked of the simulated driver itself, what is charged of
the interposer in front of it.
"""

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import holds
from cuda.bindings import driver as d
from worker import access, made, ok, on_device

MIB = 1 << 20
GRAIN = 2 * MIB  # of physical memory
SIZE = 8 * MIB  # of each object
SLOTS = 16  # places for mappings in the reserved addresses
FILE = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
AT_ONCE = 50  # references to one handle, at most


@dataclass(frozen=True)
class Row:
    """A call: `functions` are the driver functions in which it is held."""

    name: str
    functions: tuple[str, ...]
    call: Callable[[Any], Any]


def row(functions: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def mark(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        method.functions = tuple(functions.split())  # type: ignore[attr-defined]
        return method

    return mark


def failed(answer: tuple[Any, ...]) -> bool:
    return bool(answer[0] != d.CUresult.CUDA_SUCCESS)


class Scene:
    """Objects to be shared. A row appends what it makes to a list, so that `close` can end it."""

    def __init__(self) -> None:
        self.fill()

    def fill(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Ends everything; what a row has ended already gives an error."""
        raise NotImplementedError

    @classmethod
    def rows(cls) -> list[Row]:
        marked = [(name, getattr(cls, name)) for name in vars(cls)]
        return [Row(name, call.functions, call) for name, call in marked if hasattr(call, "functions")]


# ---- what is charged, what is true


def _used(get_info: Callable[..., int]) -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert get_info(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value


def truth() -> int:
    """Bytes of the device that are given out, by the simulated driver."""
    return _used(holds.library().cuMemGetInfo_v2)


def charged() -> int:
    free, total = ok(d.cuMemGetInfo())
    return int(total - free)


# ---- physical memory


class Physical(Scene):
    """A handle, mapped, exported, imported and bound to a multicast object."""

    def fill(self) -> None:
        self.slots = itertools.count(1)
        self.offsets = itertools.count(1)
        self.at = int(ok(d.cuMemAddressReserve(SLOTS * SIZE, 0, 0, 0)))
        self.h = ok(d.cuMemCreate(SIZE, on_device(FILE), 0))
        ok(d.cuMemMap(self.at, SIZE, 0, self.h, 0))
        self.fds = [ok(d.cuMemExportToShareableHandle(self.h, FILE, 0))]
        self.imported = ok(d.cuMemImportFromShareableHandle(self.fds[0], FILE))
        self.team = ok(d.cuMulticastCreate(made(d.CUmulticastObjectProp, numDevices=1, size=SLOTS * SIZE)))
        ok(d.cuMulticastAddDevice(self.team, 0))
        ok(d.cuMulticastBindMem(self.team, 0, self.h, 0, SIZE, 0))
        self.handles = [self.h, self.imported, self.team]

    def close(self) -> None:
        for handle in self.handles:
            for _ in range(AT_ONCE):
                if failed(d.cuMemRelease(handle)):
                    break
        for slot in range(SLOTS):
            d.cuMemUnmap(self.at + slot * SIZE, SIZE)
        for fd in self.fds:
            os.close(int(fd))
        ok(d.cuMemAddressFree(self.at, SLOTS * SIZE))

    def _keep(self, answer: tuple[Any, ...]) -> None:
        if not failed(answer):
            self.handles.append(answer[1])

    @row("cuMemCreate")
    def create(self) -> None:
        self._keep(d.cuMemCreate(SIZE, on_device(FILE), 0))

    @row("cuMemRelease")
    def release(self) -> None:
        d.cuMemRelease(self.h)

    @row("cuMemRelease")
    def release_import(self) -> None:
        d.cuMemRelease(self.imported)

    @row("cuMemRelease")
    def release_team(self) -> None:
        d.cuMemRelease(self.team)

    @row("cuMemMap")
    def map(self) -> None:
        d.cuMemMap(self.at + next(self.slots) * SIZE, SIZE, 0, self.h, 0)

    @row("cuMemMap")
    def map_import(self) -> None:
        d.cuMemMap(self.at + next(self.slots) * SIZE, SIZE, 0, self.imported, 0)

    @row("cuMemMap")
    def map_again(self) -> None:
        d.cuMemMap(self.at, SIZE, 0, self.h, 0)

    @row("cuMemUnmap")
    def unmap(self) -> None:
        d.cuMemUnmap(self.at, SIZE)

    @row("cuMemRetainAllocationHandle")
    def retain(self) -> None:
        self._keep(d.cuMemRetainAllocationHandle(self.at))

    @row("cuMemExportToShareableHandle")
    def export(self) -> None:
        answer = d.cuMemExportToShareableHandle(self.h, FILE, 0)
        if not failed(answer):
            self.fds.append(answer[1])

    @row("cuMemImportFromShareableHandle")
    def import_(self) -> None:
        for fd in self.fds[:1]:
            self._keep(d.cuMemImportFromShareableHandle(fd, FILE))

    @row("cuMemSetAccess")
    def set_access(self) -> None:
        d.cuMemSetAccess(self.at, SIZE, [access()], 1)

    @row("cuMulticastBindMem")
    def bind(self) -> None:
        d.cuMulticastBindMem(self.team, next(self.offsets) * SIZE, self.h, 0, SIZE, 0)

    @row("cuMulticastBindAddr")
    def bind_address(self) -> None:
        d.cuMulticastBindAddr(self.team, next(self.offsets) * SIZE, self.at, SIZE, 0)

    @row("cuMulticastUnbind")
    def unbind(self) -> None:
        d.cuMulticastUnbind(self.team, 0, 0, SLOTS * SIZE)


class Bare(Physical):
    """A handle alone: whatever ends ends at once, and its value comes back."""

    def fill(self) -> None:
        super().fill()
        ok(d.cuMulticastUnbind(self.team, 0, 0, SIZE))
        ok(d.cuMemRelease(self.imported))
        ok(d.cuMemUnmap(self.at, SIZE))
        os.close(self.fds.pop())

    @classmethod
    def rows(cls) -> list[Row]:
        taken = {"create", "release", "map", "map_again", "unmap", "retain", "export", "bind"}
        return [row for row in Physical.rows() if row.name in taken]


class Open(Bare):
    """A handle and a descriptor, which keeps the memory alone."""

    def fill(self) -> None:
        super().fill()
        self.fds = [ok(d.cuMemExportToShareableHandle(self.h, FILE, 0))]

    @row("cuMemRelease")
    def close_and_release(self) -> None:
        if self.fds:
            os.close(self.fds.pop())
        d.cuMemRelease(self.h)

    @classmethod
    def rows(cls) -> list[Row]:
        own = [Row("close_and_release", ("cuMemRelease",), cls.close_and_release)]
        return own + [row for row in Physical.rows() if row.name in {"release", "map", "export", "import_"}]


class Mapped(Bare):
    """A mapping alone, whose handle is released."""

    def fill(self) -> None:
        super().fill()
        ok(d.cuMemMap(self.at, SIZE, 0, self.h, 0))
        ok(d.cuMemRelease(self.h))

    @classmethod
    def rows(cls) -> list[Row]:
        taken = {"create", "release", "map", "map_again", "unmap", "retain", "bind_address"}
        return [row for row in Physical.rows() if row.name in taken]


SCENES: dict[str, type[Scene]] = {"physical": Physical, "bare": Bare, "open": Open, "mapped": Mapped}


# ---- one pair after the other


@dataclass(frozen=True)
class Pair:
    scene: str
    first: Row
    second: Row
    function: str
    when: int

    def __str__(self) -> str:
        moment = "after" if self.when == holds.AFTER else "before"
        return f"{self.scene}: {self.first.name} held {moment} {self.function}, {self.second.name}"


def pairs(scene: str) -> Iterator[Pair]:
    rows = SCENES[scene].rows()
    for first, second in itertools.product(rows, rows):
        for function in first.functions:
            for when in (holds.BEFORE, holds.AFTER):
                yield Pair(scene, first, second, function, when)


def _judge(wrong: list[str], moment: str) -> None:
    asked, given = charged(), truth()
    if asked < given:
        wrong.append(f"{moment}: {(given - asked) / MIB:g} MiB not charged")


def _press() -> None:
    """Takes what the limit still allows: what is not charged is now above it."""
    answer = d.cuMemCreate(ok(d.cuMemGetInfo())[0] // GRAIN * GRAIN, on_device(), 0)
    if not failed(answer):
        ok(d.cuMemRelease(answer[1]))  # unlike cuMemFree, it does not wait for the device


def cross(pair: Pair, context: Any) -> list[str]:
    """What was wrong with this pair."""
    wrong: list[str] = []
    before = charged(), truth()
    scene = SCENES[pair.scene]()

    def work(row: Row) -> Callable[[], None]:
        def call() -> None:
            ok(d.cuCtxSetCurrent(context))
            row.call(scene)

        return call

    try:
        holds.cross(
            work(pair.first),
            pair.function,
            pair.when,
            work(pair.second),
            while_held=lambda: _judge(wrong, "meanwhile"),
        )
    except AssertionError as hangs:
        return [str(hangs)]
    _judge(wrong, "afterwards")
    _press()
    scene.close()
    if (charged(), truth()) != before:
        left = [f"{(now - then) / MIB:g}" for now, then in zip((charged(), truth()), before, strict=True)]
        wrong.append(f"at the end {left[0]} MiB charged, {left[1]} MiB not given back by the device")
    return wrong


def run(scene: str, context: Any) -> list[str]:
    """All pairs of a scene; each wrong thing as a line."""
    return [f"{pair}: {what}" for pair in pairs(scene) for what in cross(pair, context)]
