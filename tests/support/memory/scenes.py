"""Objects of the driver and the calls that use, make or end them, for pairs.py.

A scene makes objects, which its calls share. A call is held in the first driver function that it names, or in those
that `held` names.
"""

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from cuda.bindings import driver as d
from run.worker import access, made, ok, on_device

from gpushare import paths

MIB = 1 << 20
SIZE = 8 * MIB  # of each object
SLOTS = 16  # places for mappings in the reserved addresses
FILE = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
AT_ONCE = 50  # references to one handle, at most
SPIN = str(paths.SPIN_PTX).encode()

Call = Callable[[Any], Any]


@dataclass(frozen=True)
class Row:
    """A call: `functions` are the driver functions in which it is held."""

    name: str
    functions: tuple[str, ...]
    call: Call


def held(functions: str, call: Call) -> Call:
    """A call that is held in these functions, whichever others it makes."""
    call.functions = tuple(functions.split())  # type: ignore[attr-defined]
    return call


def _functions(call: Call) -> tuple[str, ...]:
    named = tuple(name for name in call.__code__.co_names if name.startswith("cu"))
    return tuple(getattr(call, "functions", named[:1]))


def failed(answer: tuple[Any, ...]) -> bool:
    return bool(answer[0] != d.CUresult.CUDA_SUCCESS)


class Scene:
    """Objects to be shared."""

    calls: ClassVar[dict[str, Call]]
    taken: ClassVar[str] = ""
    """Which of the calls are made; all if empty."""

    def __init__(self) -> None:
        self.made: list[tuple[Callable[..., Any], Any]] = []
        self.fill()

    def fill(self) -> None:
        raise NotImplementedError

    def keep(self, answer: tuple[Any, ...], end: Callable[..., Any]) -> None:
        """Remembers what a call made, if it did, so that `close` can end it."""
        if not failed(answer):
            self.made.append((end, answer[1]))

    def close(self) -> None:
        """Ends everything, ignoring errors for what a call has already ended."""
        for end, one in self.made:
            end(one)

    @classmethod
    def base(cls, context: Any) -> Any:
        """The context that is current unless a call changes it."""
        return context

    @classmethod
    def rows(cls) -> list[Row]:
        taken = cls.taken.split() or cls.calls
        return [Row(name, _functions(call), call) for name, call in cls.calls.items() if name in taken]


# ---- physical memory


def release_all(handle: Any) -> None:
    for _ in range(AT_ONCE):
        if failed(d.cuMemRelease(handle)):
            break


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
        self.made = [(release_all, handle) for handle in (self.h, self.imported, self.team)]

    def close(self) -> None:
        super().close()
        for slot in range(SLOTS):
            d.cuMemUnmap(self.at + slot * SIZE, SIZE)
        for fd in self.fds:
            os.close(int(fd))
        ok(d.cuMemAddressFree(self.at, SLOTS * SIZE))

    def map(self, handle: Any) -> None:
        d.cuMemMap(self.at + next(self.slots) * SIZE, SIZE, 0, handle, 0)

    def export(self) -> None:
        answer = d.cuMemExportToShareableHandle(self.h, FILE, 0)
        if not failed(answer):
            self.fds.append(answer[1])

    def import_(self) -> None:
        for fd in self.fds[:1]:
            self.keep(d.cuMemImportFromShareableHandle(fd, FILE), release_all)

    def close_and_release(self) -> None:
        if self.fds:
            os.close(self.fds.pop())
        d.cuMemRelease(self.h)

    calls: ClassVar[dict[str, Call]] = {
        "create": lambda s: s.keep(d.cuMemCreate(SIZE, on_device(FILE), 0), release_all),
        "release": lambda s: d.cuMemRelease(s.h),
        # The second call may guess the handle that this one is about to get.
        "replace": held("cuMemCreate", lambda s: (d.cuMemRelease(s.h), s.calls["create"](s))),
        "release_import": lambda s: d.cuMemRelease(s.imported),
        "release_team": lambda s: d.cuMemRelease(s.team),
        "map": held("cuMemMap", lambda s: s.map(s.h)),
        "map_import": held("cuMemMap", lambda s: s.map(s.imported)),
        "map_again": lambda s: d.cuMemMap(s.at, SIZE, 0, s.h, 0),
        "unmap": lambda s: d.cuMemUnmap(s.at, SIZE),
        "retain": lambda s: s.keep(d.cuMemRetainAllocationHandle(s.at), release_all),
        "export": export,
        "import_": import_,
        "set_access": lambda s: d.cuMemSetAccess(s.at, SIZE, [access()], 1),
        "bind": lambda s: d.cuMulticastBindMem(s.team, next(s.offsets) * SIZE, s.h, 0, SIZE, 0),
        "bind_address": lambda s: d.cuMulticastBindAddr(s.team, next(s.offsets) * SIZE, s.at, SIZE, 0),
        "unbind": lambda s: d.cuMulticastUnbind(s.team, 0, 0, SLOTS * SIZE),
        "close_and_release": close_and_release,
    }
    taken = " ".join(name for name in calls if name != "close_and_release")


class Bare(Physical):
    """A handle alone: its release frees the memory at once, and the driver reuses its value."""

    taken = "create replace release map map_again unmap retain export bind"

    def fill(self) -> None:
        super().fill()
        ok(d.cuMulticastUnbind(self.team, 0, 0, SIZE))
        ok(d.cuMemRelease(self.imported))
        ok(d.cuMemUnmap(self.at, SIZE))
        os.close(self.fds.pop())


class Open(Bare):
    """A handle and a descriptor, which alone also keeps the memory alive."""

    taken = "close_and_release release map export import_"

    def fill(self) -> None:
        super().fill()
        self.fds = [ok(d.cuMemExportToShareableHandle(self.h, FILE, 0))]


class Mapped(Bare):
    """A mapping alone, whose handle is released."""

    taken = "create release map map_again unmap retain bind_address"

    def fill(self) -> None:
        super().fill()
        ok(d.cuMemMap(self.at, SIZE, 0, self.h, 0))
        ok(d.cuMemRelease(self.h))


# ---- memory of a context


class Pointers(Scene):
    """An allocation of cuMemAlloc."""

    def fill(self) -> None:
        self.p = ok(d.cuMemAlloc(SIZE))
        self.stream = ok(d.cuStreamCreate(0))
        self.made = [(d.cuMemFree, self.p)]

    def close(self) -> None:
        super().close()
        ok(d.cuStreamDestroy(self.stream))

    calls: ClassVar[dict[str, Call]] = {
        "alloc": lambda s: s.keep(d.cuMemAlloc(SIZE), d.cuMemFree),
        # The second call may free the address that this one is about to get.
        "replace": held("cuMemAlloc", lambda s: (d.cuMemFree(s.p), s.calls["alloc"](s))),
        "pitch": lambda s: s.keep(d.cuMemAllocPitch(SIZE >> 10, 1 << 10, 4), d.cuMemFree),
        "managed": lambda s: s.keep(d.cuMemAllocManaged(SIZE, 1), d.cuMemFree),
        "free": lambda s: d.cuMemFree(s.p),
        "free_async": lambda s: (d.cuMemFreeAsync(s.p, s.stream), d.cuStreamSynchronize(s.stream)),
        "share": lambda s: d.cuIpcGetMemHandle(s.p),
    }


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

    def create(self) -> None:
        self.keep(d.cuArray3DCreate(SQUARE), d.cuArrayDestroy)

    def create_mipmap(self) -> None:
        self.keep(d.cuMipmappedArrayCreate(SQUARE, 2), d.cuMipmappedArrayDestroy)

    calls: ClassVar[dict[str, Call]] = {
        "create": held("cuArray3DCreate cuArrayGetMemoryRequirements cuArrayDestroy", create),
        "replace": held("cuArray3DCreate", lambda s: (d.cuArrayDestroy(s.array), s.create())),
        "create_mipmap": held("cuMipmappedArrayCreate cuMipmappedArrayGetMemoryRequirements", create_mipmap),
        "destroy": lambda s: d.cuArrayDestroy(s.array),
        "destroy_mipmap": lambda s: d.cuMipmappedArrayDestroy(s.mipmap),
    }


class Contexts(Scene):
    """A context with an allocation, an array and a module."""

    def fill(self) -> None:
        before = ok(d.cuCtxGetCurrent())
        self.create()
        self.context = ok(d.cuCtxGetCurrent())
        self.p = ok(d.cuMemAlloc(SIZE))
        self.array = ok(d.cuArray3DCreate(SQUARE))
        self.module = ok(d.cuModuleLoad(SPIN))
        ok(d.cuCtxSetCurrent(before))

    def create(self) -> None:
        self.keep(d.cuCtxCreate(None, 0, 0), d.cuCtxDestroy)

    def enter(self) -> bool:
        return not failed(d.cuCtxSetCurrent(self.context))

    calls: ClassVar[dict[str, Call]] = {
        "create": create,
        "destroy": lambda s: d.cuCtxDestroy(s.context),
        "replace": held("cuCtxCreate", lambda s: (d.cuCtxDestroy(s.context), s.create())),
        "alloc": lambda s: s.enter() and d.cuMemAlloc(SIZE),
        "free": lambda s: s.enter() and d.cuMemFree(s.p),
        "array_create": held(
            "cuArray3DCreate cuArrayGetMemoryRequirements", lambda s: s.enter() and d.cuArray3DCreate(SQUARE)
        ),
        "array_destroy": lambda s: s.enter() and d.cuArrayDestroy(s.array),
        "load": lambda s: s.enter() and d.cuModuleLoad(SPIN),
        "unload": lambda s: s.enter() and d.cuModuleUnload(s.module),
        "limit": held(
            "cuCtxSetLimit", lambda s: s.enter() and d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, 4 * SIZE)
        ),
    }


def end_primary() -> None:
    for _ in range(AT_ONCE):
        if failed(d.cuDevicePrimaryCtxRelease(0)):
            break
    d.cuDevicePrimaryCtxReset(0)


class Primary(Scene):
    """The primary context, retained once, with an allocation. The base context is a different one."""

    def fill(self) -> None:
        before = ok(d.cuCtxGetCurrent())
        self.context = ok(d.cuDevicePrimaryCtxRetain(0))
        ok(d.cuCtxSetCurrent(self.context))
        self.p = ok(d.cuMemAlloc(SIZE))
        ok(d.cuCtxSetCurrent(before))

    def close(self) -> None:
        end_primary()

    @classmethod
    def base(cls, context: Any) -> Any:
        ok(d.cuDevicePrimaryCtxReset(0))
        end_primary()
        return ok(d.cuCtxCreate(None, 0, 0))

    calls: ClassVar[dict[str, Call]] = {
        "retain": lambda s: d.cuDevicePrimaryCtxRetain(0),
        "release": lambda s: d.cuDevicePrimaryCtxRelease(0),
        "reset": lambda s: d.cuDevicePrimaryCtxReset(0),
        "alloc": held("cuMemAlloc", lambda s: failed(d.cuCtxSetCurrent(s.context)) or d.cuMemAlloc(SIZE)),
    }


class Programs(Scene):
    """A module and a library, whose kernels have not been used yet."""

    def fill(self) -> None:
        self.module = ok(d.cuModuleLoad(SPIN))
        self.library = ok(d.cuLibraryLoadFromFile(SPIN, [], [], 0, [], [], 0))
        self.kernel = ok(d.cuLibraryGetKernel(self.library, b"spin_ns"))
        self.made = [(d.cuModuleUnload, self.module), (d.cuLibraryUnload, self.library)]

    calls: ClassVar[dict[str, Call]] = {
        "load": lambda s: s.keep(d.cuModuleLoad(SPIN), d.cuModuleUnload),
        "unload": lambda s: d.cuModuleUnload(s.module),
        "replace": held("cuModuleLoad", lambda s: (d.cuModuleUnload(s.module), s.calls["load"](s))),
        "function": lambda s: d.cuModuleGetFunction(s.module, b"spin_ns"),
        "load_library": lambda s: s.keep(d.cuLibraryLoadFromFile(SPIN, [], [], 0, [], [], 0), d.cuLibraryUnload),
        "unload_library": lambda s: d.cuLibraryUnload(s.library),
        "get_kernel": lambda s: d.cuLibraryGetKernel(s.library, b"spin_ns"),
        "kernel_function": lambda s: d.cuKernelGetFunction(s.kernel),
        "get_module": lambda s: d.cuLibraryGetModule(s.library),
    }


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
