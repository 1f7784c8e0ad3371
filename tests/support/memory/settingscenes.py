"""The scenes of scenes.py for what is not an object but decides what a call takes: the current pool, limits of a
context, who may reach a pool. And for green contexts, which keep the primary context."""

from typing import Any, ClassVar

from cuda.bindings import driver as d
from memory.poolscenes import THRESHOLD, properties
from memory.scenes import SIZE, SQUARE, Call, Scene, end_primary, failed, held
from run.worker import ok, on_device

HEAP, FIFO = d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE
REUSE = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC


class Settings(Scene):
    """A pool that is the device's current one, and calls that take memory by what is set."""

    def fill(self) -> None:
        self.stream = ok(d.cuStreamCreate(1))
        self.default = ok(d.cuDeviceGetDefaultMemPool(0))
        self.pool = ok(d.cuMemPoolCreate(properties()))
        ok(d.cuMemPoolSetAttribute(self.pool, THRESHOLD, d.cuuint64_t(1 << 40)))
        ok(d.cuDeviceSetMemPool(0, self.pool))
        self.limits = [(limit, ok(d.cuCtxGetLimit(limit))) for limit in (HEAP, FIFO)]

    def close(self) -> None:
        super().close()
        ok(d.cuCtxSynchronize())
        d.cuDeviceSetMemPool(0, self.default)
        d.cuMemPoolDestroy(self.pool)
        for limit, before in self.limits:
            ok(d.cuCtxSetLimit(limit, before))
        ok(d.cuMemPoolTrimTo(self.default, 0))
        ok(d.cuStreamDestroy(self.stream))

    def free_async(self, block: Any) -> None:
        d.cuMemFreeAsync(block, self.stream)

    calls: ClassVar[dict[str, Call]] = {
        "current": lambda s: d.cuDeviceSetMemPool(0, s.default),
        "end": lambda s: d.cuMemPoolDestroy(s.pool),
        "threshold": lambda s: d.cuMemPoolSetAttribute(s.pool, THRESHOLD, d.cuuint64_t(0)),
        "reuse": lambda s: d.cuMemPoolSetAttribute(s.pool, REUSE, 0),
        "heap": lambda s: d.cuCtxSetLimit(HEAP, 4 * SIZE),
        "fifo": lambda s: d.cuCtxSetLimit(FIFO, 3 * SIZE),
        "alloc_async": lambda s: s.keep(d.cuMemAllocAsync(SIZE, s.stream), s.free_async),
        "alloc_default_stream": lambda s: s.keep(d.cuMemAllocAsync(4 * SIZE, 0), s.free_async),
        "alloc": lambda s: s.keep(d.cuMemAlloc(SIZE), d.cuMemFree),
        "managed": lambda s: s.keep(d.cuMemAllocManaged(SIZE, 1), d.cuMemFree),
        "array": lambda s: s.keep(d.cuArray3DCreate(SQUARE), d.cuArrayDestroy),
        "physical": lambda s: s.keep(d.cuMemCreate(SIZE, on_device(), 0), d.cuMemRelease),
    }


class Green(Scene):
    """A green context, which keeps the primary context, beside a context of the program's."""

    def fill(self) -> None:
        self.before = ok(d.cuCtxGetCurrent())
        self.create()
        self.green = self.made[0][1]

    def close(self) -> None:
        self.made.sort(key=lambda one: one[0] is d.cuCtxDestroy)  # contexts last
        super().close()
        end_primary()
        ok(d.cuCtxSetCurrent(self.before))

    @classmethod
    def base(cls, context: Any) -> Any:
        ok(d.cuDevicePrimaryCtxReset(0))
        end_primary()
        return ok(d.cuCtxCreate(None, 0, 0))

    def create(self) -> None:
        resource = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        described = ok(d.cuDevResourceGenerateDesc([resource], 1))
        stream = d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        self.keep(d.cuGreenCtxCreate(described, 0, stream), d.cuGreenCtxDestroy)

    def context(self) -> None:
        answer = d.cuCtxCreate(None, 0, 0)
        self.keep(answer, d.cuCtxDestroy)
        if not failed(answer):
            d.cuMemAlloc(SIZE)

    def context_and_end(self) -> None:
        answer = d.cuCtxCreate(None, 0, 0)
        if not failed(answer):
            d.cuMemAlloc(SIZE)
            d.cuCtxDestroy(answer[1])

    def alloc(self) -> None:
        inside = d.cuCtxFromGreenCtx(self.green)
        if not failed(inside) and not failed(d.cuCtxSetCurrent(inside[1])):
            d.cuMemAlloc(SIZE)

    calls: ClassVar[dict[str, Call]] = {
        "create": held("cuGreenCtxCreate", create),
        "destroy": lambda s: d.cuGreenCtxDestroy(s.green),
        "replace": held("cuGreenCtxCreate", lambda s: (d.cuGreenCtxDestroy(s.green), s.create())),
        "context": held("cuCtxCreate cuMemAlloc", context),
        "context_and_end": held("cuCtxDestroy cuMemAlloc", context_and_end),
        "retain": lambda s: d.cuDevicePrimaryCtxRetain(0),
        "reset": lambda s: d.cuDevicePrimaryCtxReset(0),
        "alloc": held("cuMemAlloc", alloc),
    }


SCENES: dict[str, type[Scene]] = {"settings": Settings, "green contexts": Green}
