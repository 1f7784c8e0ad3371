"""The scenes of scenes.py for what is not an object but decides what a call takes: the current pool, limits of a
context, who may reach a pool. And for green contexts, which keep the primary context."""

from typing import Any

from cuda.bindings import driver as d
from memory.poolscenes import THRESHOLD, properties
from memory.scenes import AT_ONCE, SIZE, SQUARE, Scene, failed, row
from run.worker import ok, on_device

HEAP, FIFO = d.CUlimit.CU_LIMIT_MALLOC_HEAP_SIZE, d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE


class Settings(Scene):
    """A pool that is the device's current one, and calls that take memory by what is set."""

    def fill(self) -> None:
        self.stream = ok(d.cuStreamCreate(1))
        self.default = ok(d.cuDeviceGetDefaultMemPool(0))
        self.pool = ok(d.cuMemPoolCreate(properties()))
        ok(d.cuMemPoolSetAttribute(self.pool, THRESHOLD, d.cuuint64_t(1 << 40)))
        ok(d.cuDeviceSetMemPool(0, self.pool))
        self.limits = [(limit, ok(d.cuCtxGetLimit(limit))) for limit in (HEAP, FIFO)]
        self.queued: list[Any] = []
        self.blocks: list[Any] = []
        self.arrays: list[Any] = []
        self.handles: list[Any] = []

    def close(self) -> None:
        for block in self.queued:
            d.cuMemFreeAsync(block, self.stream)
        for block in self.blocks:
            d.cuMemFree(block)
        for array in self.arrays:
            d.cuArrayDestroy(array)
        for handle in self.handles:
            d.cuMemRelease(handle)
        ok(d.cuCtxSynchronize())
        d.cuDeviceSetMemPool(0, self.default)
        d.cuMemPoolDestroy(self.pool)
        for limit, before in self.limits:
            ok(d.cuCtxSetLimit(limit, before))
        ok(d.cuMemPoolTrimTo(self.default, 0))
        ok(d.cuStreamDestroy(self.stream))

    @staticmethod
    def _keep(answer: tuple[Any, ...], there: list[Any]) -> None:
        if not failed(answer):
            there.append(answer[1])

    @row("cuDeviceSetMemPool")
    def current(self) -> None:
        d.cuDeviceSetMemPool(0, self.default)

    @row("cuMemPoolDestroy")
    def end(self) -> None:
        d.cuMemPoolDestroy(self.pool)

    @row("cuMemPoolSetAttribute")
    def threshold(self) -> None:
        d.cuMemPoolSetAttribute(self.pool, THRESHOLD, d.cuuint64_t(0))

    @row("cuMemPoolSetAttribute")
    def reuse(self) -> None:
        follow = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC
        d.cuMemPoolSetAttribute(self.pool, follow, 0)

    @row("cuCtxSetLimit")
    def heap(self) -> None:
        d.cuCtxSetLimit(HEAP, 4 * SIZE)

    @row("cuCtxSetLimit")
    def fifo(self) -> None:
        d.cuCtxSetLimit(FIFO, 3 * SIZE)

    @row("cuMemAllocAsync")
    def alloc_async(self) -> None:
        self._keep(d.cuMemAllocAsync(SIZE, self.stream), self.queued)

    @row("cuMemAllocAsync")
    def alloc_default_stream(self) -> None:
        self._keep(d.cuMemAllocAsync(4 * SIZE, 0), self.queued)

    @row("cuMemAlloc")
    def alloc(self) -> None:
        self._keep(d.cuMemAlloc(SIZE), self.blocks)

    @row("cuMemAllocManaged")
    def managed(self) -> None:
        self._keep(d.cuMemAllocManaged(SIZE, 1), self.blocks)

    @row("cuArray3DCreate")
    def array(self) -> None:
        self._keep(d.cuArray3DCreate(SQUARE), self.arrays)

    @row("cuMemCreate")
    def physical(self) -> None:
        self._keep(d.cuMemCreate(SIZE, on_device(), 0), self.handles)


class Green(Scene):
    """A green context, which keeps the primary context, beside a context of the program's."""

    def fill(self) -> None:
        self.before = ok(d.cuCtxGetCurrent())
        self.greens: list[Any] = []
        self.contexts: list[Any] = []
        self._make()
        self.green = self.greens[0]

    def close(self) -> None:
        for green in self.greens:
            d.cuGreenCtxDestroy(green)
        for context in self.contexts:
            d.cuCtxDestroy(context)
        for _ in range(AT_ONCE):
            if failed(d.cuDevicePrimaryCtxRelease(0)):
                break
        d.cuDevicePrimaryCtxReset(0)
        ok(d.cuCtxSetCurrent(self.before))

    @classmethod
    def base(cls, context: Any) -> Any:
        ok(d.cuDevicePrimaryCtxReset(0))
        for _ in range(AT_ONCE):
            if failed(d.cuDevicePrimaryCtxRelease(0)):
                break
        return ok(d.cuCtxCreate(None, 0, 0))

    def _make(self) -> None:
        resource = ok(d.cuDeviceGetDevResource(0, d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM))
        described = ok(d.cuDevResourceGenerateDesc([resource], 1))
        answer = d.cuGreenCtxCreate(described, 0, d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        if not failed(answer):
            self.greens.append(answer[1])

    @row("cuGreenCtxCreate")
    def create(self) -> None:
        self._make()

    @row("cuGreenCtxDestroy")
    def destroy(self) -> None:
        d.cuGreenCtxDestroy(self.green)

    @row("cuGreenCtxCreate")
    def replace(self) -> None:
        d.cuGreenCtxDestroy(self.green)
        self._make()

    @row("cuCtxCreate cuMemAlloc")
    def context(self) -> None:
        answer = d.cuCtxCreate(None, 0, 0)
        if not failed(answer):
            self.contexts.append(answer[1])
            d.cuMemAlloc(SIZE)

    @row("cuCtxDestroy cuMemAlloc")
    def context_and_end(self) -> None:
        answer = d.cuCtxCreate(None, 0, 0)
        if not failed(answer):
            d.cuMemAlloc(SIZE)
            d.cuCtxDestroy(answer[1])

    @row("cuDevicePrimaryCtxRetain")
    def retain(self) -> None:
        d.cuDevicePrimaryCtxRetain(0)

    @row("cuDevicePrimaryCtxReset")
    def reset(self) -> None:
        d.cuDevicePrimaryCtxReset(0)

    @row("cuMemAlloc")
    def alloc(self) -> None:
        inside = d.cuCtxFromGreenCtx(self.green)
        if not failed(inside) and not failed(d.cuCtxSetCurrent(inside[1])):
            d.cuMemAlloc(SIZE)


SCENES: dict[str, type[Scene]] = {"settings": Settings, "green contexts": Green}
