"""Objects of the driver and the calls that use, make or end them, for pairs.py.

A scene makes objects, which its rows share. A row names the driver functions in which its call can be held.
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as d
from run.worker import access, made, ok, on_device

from gpushare import paths

MIB = 1 << 20
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
        """Ends everything, ignoring errors for what a row has already ended."""
        raise NotImplementedError

    @classmethod
    def base(cls, context: Any) -> Any:
        """The context that is current unless a row changes it."""
        return context

    @classmethod
    def rows(cls) -> list[Row]:
        marked = [(name, getattr(cls, name)) for name in vars(cls)]
        return [Row(name, call.functions, call) for name, call in marked if hasattr(call, "functions")]


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

    @row("cuMemCreate")
    def replace(self) -> None:
        """The second call may guess the handle that this one is about to get."""
        d.cuMemRelease(self.h)
        self.create()

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
    """A handle alone: its release frees the memory at once, and the driver reuses its value."""

    def fill(self) -> None:
        super().fill()
        ok(d.cuMulticastUnbind(self.team, 0, 0, SIZE))
        ok(d.cuMemRelease(self.imported))
        ok(d.cuMemUnmap(self.at, SIZE))
        os.close(self.fds.pop())

    @classmethod
    def rows(cls) -> list[Row]:
        taken = {"create", "replace", "release", "map", "map_again", "unmap", "retain", "export", "bind"}
        return [row for row in Physical.rows() if row.name in taken]


class Open(Bare):
    """A handle and a descriptor, which alone also keeps the memory alive."""

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


# ---- memory of a context


class Pointers(Scene):
    """An allocation of cuMemAlloc."""

    def fill(self) -> None:
        self.p = ok(d.cuMemAlloc(SIZE))
        self.stream = ok(d.cuStreamCreate(0))
        self.made = [self.p]

    def close(self) -> None:
        for pointer in self.made:
            d.cuMemFree(pointer)
        ok(d.cuStreamDestroy(self.stream))

    def _keep(self, answer: tuple[Any, ...]) -> None:
        if not failed(answer):
            self.made.append(answer[1])

    @row("cuMemAlloc")
    def alloc(self) -> None:
        self._keep(d.cuMemAlloc(SIZE))

    @row("cuMemAlloc")
    def replace(self) -> None:
        """The second call may free the address that this one is about to get."""
        d.cuMemFree(self.p)
        self._keep(d.cuMemAlloc(SIZE))

    @row("cuMemAllocPitch")
    def pitch(self) -> None:
        self._keep(d.cuMemAllocPitch(SIZE >> 10, 1 << 10, 4))

    @row("cuMemAllocManaged")
    def managed(self) -> None:
        self._keep(d.cuMemAllocManaged(SIZE, 1))

    @row("cuMemFree")
    def free(self) -> None:
        d.cuMemFree(self.p)

    @row("cuMemFreeAsync")
    def free_async(self) -> None:
        d.cuMemFreeAsync(self.p, self.stream)
        d.cuStreamSynchronize(self.stream)

    @row("cuIpcGetMemHandle")
    def share(self) -> None:
        d.cuIpcGetMemHandle(self.p)


SQUARE = made(
    d.CUDA_ARRAY3D_DESCRIPTOR,
    Width=1 << 10,
    Height=1 << 11,
    Format=d.CUarray_format.CU_AD_FORMAT_FLOAT,
    NumChannels=1,
)


class Arrays(Scene):
    """An array and a mipmapped one."""

    def fill(self) -> None:
        self.array = ok(d.cuArray3DCreate(SQUARE))
        self.mipmap = ok(d.cuMipmappedArrayCreate(SQUARE, 2))
        self.made = [(d.cuArrayDestroy, self.array), (d.cuMipmappedArrayDestroy, self.mipmap)]

    def close(self) -> None:
        for end, array in self.made:
            end(array)

    def _keep(self, end: Callable[..., Any], answer: tuple[Any, ...]) -> None:
        if not failed(answer):
            self.made.append((end, answer[1]))

    @row("cuArray3DCreate cuArrayGetMemoryRequirements cuArrayDestroy")
    def create(self) -> None:
        self._keep(d.cuArrayDestroy, d.cuArray3DCreate(SQUARE))

    @row("cuArray3DCreate")
    def replace(self) -> None:
        d.cuArrayDestroy(self.array)
        self._keep(d.cuArrayDestroy, d.cuArray3DCreate(SQUARE))

    @row("cuMipmappedArrayCreate cuMipmappedArrayGetMemoryRequirements")
    def create_mipmap(self) -> None:
        self._keep(d.cuMipmappedArrayDestroy, d.cuMipmappedArrayCreate(SQUARE, 2))

    @row("cuArrayDestroy")
    def destroy(self) -> None:
        d.cuArrayDestroy(self.array)

    @row("cuMipmappedArrayDestroy")
    def destroy_mipmap(self) -> None:
        d.cuMipmappedArrayDestroy(self.mipmap)


class Contexts(Scene):
    """A context with an allocation, an array and a module."""

    def fill(self) -> None:
        self.made: list[Any] = []
        before = ok(d.cuCtxGetCurrent())
        self.context = self._create()
        self.p = ok(d.cuMemAlloc(SIZE))
        self.array = ok(d.cuArray3DCreate(SQUARE))
        self.module = ok(d.cuModuleLoad(str(paths.SPIN_PTX).encode()))
        ok(d.cuCtxSetCurrent(before))

    def close(self) -> None:
        for context in self.made:
            d.cuCtxDestroy(context)

    def _create(self) -> Any:
        answer = d.cuCtxCreate(None, 0, 0)
        if failed(answer):
            return None
        self.made.append(answer[1])
        return answer[1]

    def _inside(self) -> bool:
        return not failed(d.cuCtxSetCurrent(self.context))

    @row("cuCtxCreate")
    def create(self) -> None:
        self._create()

    @row("cuCtxDestroy")
    def destroy(self) -> None:
        d.cuCtxDestroy(self.context)

    @row("cuCtxCreate")
    def replace(self) -> None:
        d.cuCtxDestroy(self.context)
        self._create()

    @row("cuMemAlloc")
    def alloc(self) -> None:
        if self._inside():
            d.cuMemAlloc(SIZE)

    @row("cuMemFree")
    def free(self) -> None:
        if self._inside():
            d.cuMemFree(self.p)

    @row("cuArray3DCreate cuArrayGetMemoryRequirements")
    def array_create(self) -> None:
        if self._inside():
            d.cuArray3DCreate(SQUARE)

    @row("cuArrayDestroy")
    def array_destroy(self) -> None:
        if self._inside():
            d.cuArrayDestroy(self.array)

    @row("cuModuleLoad")
    def load(self) -> None:
        if self._inside():
            d.cuModuleLoad(str(paths.SPIN_PTX).encode())

    @row("cuModuleUnload")
    def unload(self) -> None:
        if self._inside():
            d.cuModuleUnload(self.module)

    @row("cuCtxSetLimit")
    def limit(self) -> None:
        if self._inside():
            d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, 4 * SIZE)


class Primary(Scene):
    """The primary context, retained once, with an allocation. The base context is a different one."""

    def fill(self) -> None:
        before = ok(d.cuCtxGetCurrent())
        self.context = ok(d.cuDevicePrimaryCtxRetain(0))
        ok(d.cuCtxSetCurrent(self.context))
        self.p = ok(d.cuMemAlloc(SIZE))
        ok(d.cuCtxSetCurrent(before))

    def close(self) -> None:
        for _ in range(AT_ONCE):
            if failed(d.cuDevicePrimaryCtxRelease(0)):
                break
        d.cuDevicePrimaryCtxReset(0)

    @classmethod
    def base(cls, context: Any) -> Any:
        ok(d.cuDevicePrimaryCtxReset(0))
        cls.close(cls.__new__(cls))
        return ok(d.cuCtxCreate(None, 0, 0))

    @row("cuDevicePrimaryCtxRetain")
    def retain(self) -> None:
        d.cuDevicePrimaryCtxRetain(0)

    @row("cuDevicePrimaryCtxRelease")
    def release(self) -> None:
        d.cuDevicePrimaryCtxRelease(0)

    @row("cuDevicePrimaryCtxReset")
    def reset(self) -> None:
        d.cuDevicePrimaryCtxReset(0)

    @row("cuMemAlloc")
    def alloc(self) -> None:
        if not failed(d.cuCtxSetCurrent(self.context)):
            d.cuMemAlloc(SIZE)


class Programs(Scene):
    """A module and a library, whose kernels have not been used yet."""

    def fill(self) -> None:
        self.module = ok(d.cuModuleLoad(str(paths.SPIN_PTX).encode()))
        self.library = ok(d.cuLibraryLoadFromFile(str(paths.SPIN_PTX).encode(), [], [], 0, [], [], 0))
        self.kernel = ok(d.cuLibraryGetKernel(self.library, b"spin_ns"))
        self.made = [(d.cuModuleUnload, self.module), (d.cuLibraryUnload, self.library)]

    def close(self) -> None:
        for end, program in self.made:
            end(program)

    def _keep(self, end: Callable[..., Any], answer: tuple[Any, ...]) -> None:
        if not failed(answer):
            self.made.append((end, answer[1]))

    @row("cuModuleLoad")
    def load(self) -> None:
        self._keep(d.cuModuleUnload, d.cuModuleLoad(str(paths.SPIN_PTX).encode()))

    @row("cuModuleUnload")
    def unload(self) -> None:
        d.cuModuleUnload(self.module)

    @row("cuModuleLoad")
    def replace(self) -> None:
        d.cuModuleUnload(self.module)
        self.load()

    @row("cuModuleGetFunction")
    def function(self) -> None:
        d.cuModuleGetFunction(self.module, b"spin_ns")

    @row("cuLibraryLoadFromFile")
    def load_library(self) -> None:
        answer = d.cuLibraryLoadFromFile(str(paths.SPIN_PTX).encode(), [], [], 0, [], [], 0)
        self._keep(d.cuLibraryUnload, answer)

    @row("cuLibraryUnload")
    def unload_library(self) -> None:
        d.cuLibraryUnload(self.library)

    @row("cuLibraryGetKernel")
    def get_kernel(self) -> None:
        d.cuLibraryGetKernel(self.library, b"spin_ns")

    @row("cuKernelGetFunction")
    def kernel_function(self) -> None:
        d.cuKernelGetFunction(self.kernel)

    @row("cuLibraryGetModule")
    def get_module(self) -> None:
        d.cuLibraryGetModule(self.library)


SCENES: dict[str, type[Scene]] = {
    "physical": Physical,
    "bare": Bare,
    "open": Open,
    "mapped": Mapped,
    "pointers": Pointers,
    "arrays": Arrays,
    "contexts": Contexts,
    "primary": Primary,
    "programs": Programs,
}
