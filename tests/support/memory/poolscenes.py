"""The scenes of scenes.py for memory pools, their blocks and graph memory."""

import ctypes
import os
from typing import Any

from cuda.bindings import driver as d
from memory.scenes import FILE, MIB, Scene, failed, row
from memory.scenes import SIZE as LITTLE
from run.worker import made, ok

SIZE = 20 * MIB  # of each block: two blocks need two growth steps of a pool
THRESHOLD = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
ASKED = "cuMemPoolGetAttribute"  # called by the interposer


def properties(**fields: Any) -> Any:
    wanted = made(d.CUmemPoolProps, allocType=d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED, **fields)
    wanted.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return wanted


class Pools(Scene):
    """A pool with two blocks, of which one is free, and two streams."""

    def fill(self) -> None:
        self.streams = [ok(d.cuStreamCreate(1)) for _ in range(2)]
        self.pool = ok(d.cuMemPoolCreate(properties(handleTypes=FILE)))
        self.pools = [self.pool]
        self.default = ok(d.cuDeviceGetDefaultMemPool(0))
        ok(d.cuMemPoolSetAttribute(self.pool, THRESHOLD, d.cuuint64_t(1 << 40)))
        self.blocks = [ok(d.cuMemAllocFromPoolAsync(SIZE, self.pool, self.streams[0])) for _ in range(2)]
        self.block = self.blocks[0]
        ok(d.cuMemFreeAsync(self.blocks.pop(), self.streams[0]))
        for stream in self.streams:
            ok(d.cuStreamSynchronize(stream))

    def close(self) -> None:
        for block in self.blocks:
            d.cuMemFree(block)
        d.cuDeviceSetMemPool(0, self.default)
        for stream in self.streams:
            d.cuStreamSynchronize(stream)
            d.cuStreamDestroy(stream)
        for pool in self.pools:
            d.cuMemPoolDestroy(pool)
        ok(d.cuMemPoolTrimTo(self.default, 0))
        ok(d.cuCtxSynchronize())

    def _keep(self, answer: tuple[Any, ...]) -> None:
        if not failed(answer):
            self.blocks.append(answer[1])

    @row(f"cuMemAllocFromPoolAsync {ASKED}")
    def alloc(self) -> None:
        self._keep(d.cuMemAllocFromPoolAsync(SIZE, self.pool, self.streams[0]))

    @row("cuMemAllocFromPoolAsync")
    def grow(self) -> None:
        self._keep(d.cuMemAllocFromPoolAsync(3 * SIZE, self.pool, self.streams[1]))

    @row("cuMemAllocAsync")
    def alloc_current(self) -> None:
        d.cuDeviceSetMemPool(0, self.pool)
        self._keep(d.cuMemAllocAsync(SIZE, self.streams[1]))

    @row("cuMemPoolCreate cuMemAllocFromPoolAsync")
    def create(self) -> None:
        pool = ok(d.cuMemPoolCreate(properties()))
        self.pools.append(pool)
        self._keep(d.cuMemAllocFromPoolAsync(SIZE, pool, self.streams[0]))

    @row(f"cuMemPoolDestroy {ASKED}")
    def destroy(self) -> None:
        d.cuMemPoolDestroy(self.pool)

    @row(f"cuMemPoolTrimTo {ASKED}")
    def trim(self) -> None:
        d.cuMemPoolTrimTo(self.pool, 0)

    @row(f"cuMemPoolSetAttribute cuStreamSynchronize {ASKED}")
    def let_shrink(self) -> None:
        d.cuMemPoolSetAttribute(self.pool, THRESHOLD, d.cuuint64_t(0))
        d.cuStreamSynchronize(self.streams[1])

    @row("cuMemFreeAsync")
    def free_async(self) -> None:
        d.cuMemFreeAsync(self.block, self.streams[0])

    @row("cuMemFreeAsync")
    def free_elsewhere(self) -> None:
        d.cuMemFreeAsync(self.block, self.streams[1])

    @row("cuMemFree")
    def free(self) -> None:
        d.cuMemFree(self.block)

    @row("cuStreamSynchronize")
    def wait(self) -> None:
        d.cuStreamSynchronize(self.streams[1])

    @row("cuStreamDestroy")
    def end_stream(self) -> None:
        d.cuStreamDestroy(self.streams[0])

    @row("cuMemPoolExportPointer cuMemPoolImportPointer cuMemFree")
    def share(self) -> None:
        exported = d.cuMemPoolExportToShareableHandle(self.pool, FILE, 0)
        if failed(exported):
            return
        imported = d.cuMemPoolImportFromShareableHandle(exported[1], FILE, 0)
        os.close(int(exported[1]))
        data = d.cuMemPoolExportPointer(self.block)
        if failed(imported) or failed(data):
            return
        self.pools.append(imported[1])
        address = d.cuMemPoolImportPointer(imported[1], data[1])
        if not failed(address):
            d.cuMemFree(address[1])


class Small(Pools):
    """The same, with a pool that returns freed blocks to the device at once."""

    def fill(self) -> None:
        super().fill()
        ok(d.cuMemPoolSetAttribute(self.pool, THRESHOLD, d.cuuint64_t(0)))
        ok(d.cuStreamSynchronize(self.streams[0]))

    @classmethod
    def rows(cls) -> list[Any]:
        return Pools.rows()


class Queued(Pools):
    """The same, with another block whose free is queued behind work that ends only with the scene."""

    def fill(self) -> None:
        super().fill()
        self.host = ok(d.cuMemHostAlloc(4096, 2))
        self.flag = ctypes.c_uint32.from_address(int(self.host))
        self.flag.value = 0
        ok(d.cuStreamWaitValue32(self.streams[0], int(self.host), 1, 0))
        queued = ok(d.cuMemAllocFromPoolAsync(SIZE, self.pool, self.streams[1]))
        ok(d.cuMemFreeAsync(queued, self.streams[0]))

    def close(self) -> None:
        self.flag.value = 1
        super().close()
        ok(d.cuMemFreeHost(self.host))

    @classmethod
    def rows(cls) -> list[Any]:
        taken = {"alloc", "destroy", "trim", "let_shrink", "free_async", "free_elsewhere", "wait", "end_stream"}
        return [one for one in Pools.rows() if one.name in taken]


class Ended(Pools):
    """A block in a destroyed pool."""

    def fill(self) -> None:
        super().fill()
        ok(d.cuMemPoolDestroy(self.pool))

    @classmethod
    def rows(cls) -> list[Any]:
        taken = {"create", "free_async", "free_elsewhere", "free", "wait", "end_stream", "share", "destroy"}
        return [one for one in Pools.rows() if one.name in taken]


class TwoPools(Scene):
    """A pool with a block, and the device's default pool with another."""

    def fill(self) -> None:
        self.stream = ok(d.cuStreamCreate(0))
        self.pool = ok(d.cuMemPoolCreate(properties()))
        self.block = ok(d.cuMemAllocFromPoolAsync(LITTLE, self.pool, self.stream))
        self.other = ok(d.cuMemAllocAsync(LITTLE, self.stream))
        self.pools, self.blocks = [self.pool], [self.block, self.other]

    def close(self) -> None:
        for block in self.blocks:
            d.cuMemFreeAsync(block, self.stream)
        ok(d.cuStreamSynchronize(self.stream))
        for pool in self.pools:
            d.cuMemPoolDestroy(pool)
        ok(d.cuMemPoolTrimTo(ok(d.cuDeviceGetDefaultMemPool(0)), 0))
        ok(d.cuStreamDestroy(self.stream))

    def _keep(self, answer: tuple[Any, ...]) -> None:
        if not failed(answer):
            self.blocks.append(answer[1])

    @row("cuMemPoolCreate")
    def create(self) -> None:
        answer = d.cuMemPoolCreate(properties())
        if not failed(answer):
            self.pools.append(answer[1])

    @row("cuMemPoolDestroy")
    def destroy(self) -> None:
        d.cuMemPoolDestroy(self.pool)

    @row("cuMemPoolCreate")
    def replace(self) -> None:
        d.cuMemPoolDestroy(self.pool)
        self.create()

    @row("cuMemPoolTrimTo")
    def trim(self) -> None:
        d.cuMemPoolTrimTo(self.pool, 0)

    @row("cuMemAllocFromPoolAsync")
    def alloc_from(self) -> None:
        self._keep(d.cuMemAllocFromPoolAsync(8 * LITTLE, self.pool, self.stream))

    @row("cuMemAllocAsync")
    def alloc(self) -> None:
        self._keep(d.cuMemAllocAsync(8 * LITTLE, self.stream))

    @row("cuMemFreeAsync")
    def free_async(self) -> None:
        d.cuMemFreeAsync(self.block, self.stream)

    @row("cuMemFree")
    def free(self) -> None:
        d.cuMemFree(self.block)

    @row("cuStreamSynchronize")
    def wait(self) -> None:
        d.cuStreamSynchronize(self.stream)


class Current(Scene):
    """The pool that the device allocates from where none is named: it is a setting, which other threads change."""

    def fill(self) -> None:
        self.stream = ok(d.cuStreamCreate(1))
        self.default = ok(d.cuDeviceGetDefaultMemPool(0))
        self.pools = [ok(d.cuMemPoolCreate(properties())) for _ in range(2)]
        self.pool, self.other = self.pools
        ok(d.cuDeviceSetMemPool(0, self.pool))
        self.blocks = [ok(d.cuMemAllocAsync(LITTLE, self.stream))]

    def close(self) -> None:
        for block in self.blocks:
            d.cuMemFreeAsync(block, self.stream)
        ok(d.cuStreamSynchronize(self.stream))
        d.cuDeviceSetMemPool(0, self.default)
        for pool in self.pools:
            d.cuMemPoolDestroy(pool)
        ok(d.cuMemPoolTrimTo(self.default, 0))
        ok(d.cuStreamDestroy(self.stream))

    def _keep(self, answer: tuple[Any, ...]) -> None:
        if not failed(answer):
            self.blocks.append(answer[1])

    @row(f"cuDeviceGetMemPool {ASKED} cuMemAllocAsync")
    def alloc(self) -> None:
        self._keep(d.cuMemAllocAsync(2 * SIZE, self.stream))

    @row(f"cuStreamIsCapturing {ASKED} cuMemAllocAsync")
    def alloc_small(self) -> None:
        self._keep(d.cuMemAllocAsync(LITTLE, self.stream))

    @row("cuDeviceSetMemPool")
    def choose_default(self) -> None:
        d.cuDeviceSetMemPool(0, self.default)

    @row("cuDeviceSetMemPool")
    def choose_other(self) -> None:
        d.cuDeviceSetMemPool(0, self.other)

    @row("cuMemPoolDestroy")
    def destroy(self) -> None:
        d.cuMemPoolDestroy(self.pool)

    @row("cuMemPoolCreate cuDeviceSetMemPool cuMemPoolDestroy")
    def replace(self) -> None:
        d.cuMemPoolDestroy(self.pool)
        answer = d.cuMemPoolCreate(properties())
        if not failed(answer):
            d.cuDeviceSetMemPool(0, answer[1])
            d.cuMemPoolDestroy(answer[1])


class GraphMemory(Scene):
    """An executable graph that allocates and frees."""

    def fill(self) -> None:
        self.stream = ok(d.cuStreamCreate(1))
        self.graph = ok(d.cuGraphCreate(0))
        memory = made(d.CUDA_MEM_ALLOC_NODE_PARAMS, bytesize=SIZE, poolProps=properties())
        node = ok(d.cuGraphAddMemAllocNode(self.graph, [], 0, memory))
        ok(d.cuGraphAddMemFreeNode(self.graph, [node], 1, memory.dptr))
        self.execs = [ok(d.cuGraphInstantiate(self.graph, 0))]

    def close(self) -> None:
        ok(d.cuStreamSynchronize(self.stream))
        for one in self.execs:
            d.cuGraphExecDestroy(one)
        ok(d.cuGraphDestroy(self.graph))
        ok(d.cuStreamDestroy(self.stream))
        ok(d.cuDeviceGraphMemTrim(0))

    @row("cuGraphInstantiate")
    def instantiate(self) -> None:
        answer = d.cuGraphInstantiate(self.graph, 0)
        if not failed(answer):
            self.execs.append(answer[1])

    @row("cuGraphExecDestroy")
    def destroy(self) -> None:
        d.cuGraphExecDestroy(self.execs[0])

    @row("cuGraphLaunch")
    def launch(self) -> None:
        d.cuGraphLaunch(self.execs[0], self.stream)

    @row("cuGraphUpload")
    def upload(self) -> None:
        d.cuGraphUpload(self.execs[0], self.stream)

    @row("cuDeviceGraphMemTrim")
    def trim(self) -> None:
        d.cuDeviceGraphMemTrim(0)

    @row("cuGraphLaunch")
    def launch_and_trim(self) -> None:
        d.cuGraphLaunch(self.execs[0], self.stream)
        d.cuStreamSynchronize(self.stream)
        d.cuDeviceGraphMemTrim(0)

    @row("cuStreamSynchronize")
    def wait(self) -> None:
        d.cuStreamSynchronize(self.stream)


QUICK: dict[str, type[Scene]] = {
    "two pools": TwoPools,
    "queued frees": Queued,
    "ended pools": Ended,
    "current pool": Current,
    "graph memory": GraphMemory,
}
LARGE: dict[str, type[Scene]] = {"pools": Pools, "small pools": Small}
