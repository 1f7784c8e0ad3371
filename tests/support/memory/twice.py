"""Objects whose address or handle the driver reuses while the call that ended the former object has not returned. For
use inside the process that makes the calls (see holds.py).

`run` plays both orders for a kind of object, and returns what was wrong: less charged than the device has given, or
something left at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as d
from memory import holds
from memory.pairs import MIB, charged, truth
from memory.scenes import FILE, SIZE, SQUARE
from run.worker import made, ok, on_device

from gpushare import paths

PTX = str(paths.SPIN_PTX).encode()


@dataclass(frozen=True)
class Kind:
    """make: makes an object, returns its address or handle; end: ends it, which may fail; function: the driver function
    that `end` calls."""

    make: Callable[[], Any]
    end: Callable[[Any], Any]
    function: str


def _context() -> Any:
    before = ok(d.cuCtxGetCurrent())
    context = ok(d.cuCtxCreate(None, 0, 0))
    ok(d.cuCtxSetCurrent(before))
    return context


def _library() -> Any:
    library = ok(d.cuLibraryLoadFromFile(PTX, [], [], 0, [], [], 0))
    ok(d.cuKernelGetFunction(ok(d.cuLibraryGetKernel(library, b"spin_ns"))))
    return library


def _buffer() -> Any:
    """A buffer of external memory, which alone keeps the memory alive."""
    memory = ok(d.cuMemCreate(SIZE, on_device(FILE), 0))
    kind = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
    source = made(d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC, type=kind, size=SIZE)
    source.handle.fd = int(ok(d.cuMemExportToShareableHandle(memory, FILE, 0)))
    imported = ok(d.cuImportExternalMemory(source))
    address = ok(d.cuExternalMemoryGetMappedBuffer(imported, made(d.CUDA_EXTERNAL_MEMORY_BUFFER_DESC, size=SIZE)))
    ok(d.cuDestroyExternalMemory(imported))
    ok(d.cuMemRelease(memory))
    return address


_end_mipmap = d.cuMipmappedArrayDestroy

KINDS = {
    "memory": Kind(lambda: ok(d.cuMemAlloc(SIZE)), d.cuMemFree, "cuMemFree"),
    "memory in order": Kind(lambda: ok(d.cuMemAlloc(SIZE)), lambda at: d.cuMemFreeAsync(at, 0), "cuMemFreeAsync"),
    "block of a pool": Kind(lambda: ok(d.cuMemAllocAsync(SIZE, 0)), d.cuMemFree, "cuMemFree"),
    "buffer": Kind(_buffer, d.cuMemFree, "cuMemFree"),
    "array": Kind(lambda: ok(d.cuArray3DCreate(SQUARE)), d.cuArrayDestroy, "cuArrayDestroy"),
    "mipmap": Kind(lambda: ok(d.cuMipmappedArrayCreate(SQUARE, 2)), _end_mipmap, "cuMipmappedArrayDestroy"),
    "physical": Kind(lambda: ok(d.cuMemCreate(SIZE, on_device(), 0)), d.cuMemRelease, "cuMemRelease"),
    "module": Kind(lambda: ok(d.cuModuleLoad(PTX)), d.cuModuleUnload, "cuModuleUnload"),
    "library": Kind(_library, d.cuLibraryUnload, "cuLibraryUnload"),
    "context": Kind(_context, d.cuCtxDestroy, "cuCtxDestroy"),
}  # fmt: skip


class _Play:
    def __init__(self, kind: Kind, context: Any) -> None:
        self.kind, self.context, self.wrong = kind, context, list[str]()
        self.before = self._books()
        self.key = kind.make()
        self.again: list[Any] = []

    def _books(self) -> tuple[int, int]:
        ok(d.cuCtxSynchronize())
        ok(d.cuMemPoolTrimTo(ok(d.cuDeviceGetDefaultMemPool(0)), 0))
        return charged(), truth()

    def judge(self, moment: str) -> None:
        asked, given = charged(), truth()
        if asked < given:
            self.wrong.append(f"{moment}: {(given - asked) / MIB:g} MiB not charged")

    def start(self) -> holds.Operation:
        """Ends the object in another thread; returns when that call is held, waits or has ended."""

        def end() -> None:
            ok(d.cuCtxSetCurrent(self.context))
            self.kind.end(self.key)

        operation = holds.Operation(end)
        operation.waits()
        return operation

    def make_again(self) -> None:
        self.again.append(self.kind.make())
        self.judge("made again")

    def finish(self, *operations: holds.Operation) -> list[str]:
        for operation in operations:
            operation.result("the end of an object")
        self.judge("ended")
        for key in (self.key, *self.again):
            self.kind.end(key)
        left = [(now - then) / MIB for now, then in zip(self._books(), self.before, strict=True)]
        if any(left):
            self.wrong.append(f"at the end {left[0]:g} MiB charged, {left[1]:g} MiB not given back by the device")
        return self.wrong


def _ended_twice(kind: Kind, context: Any) -> list[str]:
    """The first end takes effect; an object with the same key is made and ended; then the first end returns."""
    play = _Play(kind, context)
    with holds.Hold(kind.function, holds.AFTER):
        first = play.start()
        play.make_again()
        second = play.start()
    return play.finish(first, second)


def _crossed(kind: Kind, context: Any) -> list[str]:
    """The second end takes effect first: the first one ends the object that was made in between."""
    play = _Play(kind, context)
    with holds.Hold(kind.function, holds.BEFORE):
        first = play.start()
        with holds.Hold(kind.function, holds.AFTER) as hold:
            second = play.start()
            if hold.stopped():
                play.make_again()
    return play.finish(first, second)


def run(name: str, context: Any) -> list[str]:
    ok(d.cuCtxSetCurrent(context))
    played = {order.__name__[1:]: order(KINDS[name], context) for order in (_ended_twice, _crossed)}
    return [f"{name}, {order}: {wrong}" for order, all_wrong in played.items() for wrong in all_wrong]
