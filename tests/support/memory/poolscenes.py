"""The scenes of scenes.py for memory pools, their blocks and graph memory."""

import ctypes
import os
from typing import Any, ClassVar

from cuda.bindings import driver as d
from memory.scenes import FILE, MIB, Call, Scene, failed, held
from memory.scenes import SIZE as LITTLE
from run.worker import made, ok

SIZE = 20 * MIB  # of each block: two blocks need two growth steps of a pool
THRESHOLD = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
ASKED = "cuMemPoolGetAttribute"  # called by the interposer


def properties(**fields: Any) -> Any:
    wanted = made(d.CUmemPoolProps, allocType=d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED, **fields)
    wanted.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    return wanted


class Blocks(Scene):
    """Blocks of pools."""

    blocks: list[Any]

    def take(self, answer: tuple[Any, ...]) -> None:
        if not failed(answer):
            self.blocks.append(answer[1])


class Pools(Blocks):
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

    def create(self) -> None:
        pool = ok(d.cuMemPoolCreate(properties()))
        self.pools.append(pool)
        self.take(d.cuMemAllocFromPoolAsync(SIZE, pool, self.streams[0]))

    def let_shrink(self) -> None:
        d.cuMemPoolSetAttribute(self.pool, THRESHOLD, d.cuuint64_t(0))
        d.cuStreamSynchronize(self.streams[1])

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

    calls: ClassVar[dict[str, Call]] = {
        "alloc": held(
            f"cuMemAllocFromPoolAsync {ASKED}",
            lambda s: s.take(d.cuMemAllocFromPoolAsync(SIZE, s.pool, s.streams[0])),
        ),
        "grow": lambda s: s.take(d.cuMemAllocFromPoolAsync(3 * SIZE, s.pool, s.streams[1])),
        "alloc_current": held(
            "cuMemAllocAsync",
            lambda s: (d.cuDeviceSetMemPool(0, s.pool), s.take(d.cuMemAllocAsync(SIZE, s.streams[1]))),
        ),
        "create": held("cuMemPoolCreate cuMemAllocFromPoolAsync", create),
        "destroy": held(f"cuMemPoolDestroy {ASKED}", lambda s: d.cuMemPoolDestroy(s.pool)),
        "trim": held(f"cuMemPoolTrimTo {ASKED}", lambda s: d.cuMemPoolTrimTo(s.pool, 0)),
        "let_shrink": held(f"cuMemPoolSetAttribute cuStreamSynchronize {ASKED}", let_shrink),
        "free_async": lambda s: d.cuMemFreeAsync(s.block, s.streams[0]),
        "free_elsewhere": lambda s: d.cuMemFreeAsync(s.block, s.streams[1]),
        "free": lambda s: d.cuMemFree(s.block),
        "wait": lambda s: d.cuStreamSynchronize(s.streams[1]),
        "end_stream": lambda s: d.cuStreamDestroy(s.streams[0]),
        "share": held("cuMemPoolExportPointer cuMemPoolImportPointer cuMemFree", share),
    }


class Small(Pools):
    """The same, with a pool that returns freed blocks to the device at once."""

    def fill(self) -> None:
        super().fill()
        ok(d.cuMemPoolSetAttribute(self.pool, THRESHOLD, d.cuuint64_t(0)))
        ok(d.cuStreamSynchronize(self.streams[0]))


class Queued(Pools):
    """The same, with another block whose free is queued behind work that ends only with the scene."""

    taken = "alloc destroy trim let_shrink free_async free_elsewhere wait end_stream"

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


class Ended(Pools):
    """A block in a destroyed pool."""

    taken = "create free_async free_elsewhere free wait end_stream share destroy"

    def fill(self) -> None:
        super().fill()
        ok(d.cuMemPoolDestroy(self.pool))


class TwoPools(Blocks):
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

    def create(self) -> None:
        answer = d.cuMemPoolCreate(properties())
        if not failed(answer):
            self.pools.append(answer[1])

    calls: ClassVar[dict[str, Call]] = {
        "create": create,
        "destroy": lambda s: d.cuMemPoolDestroy(s.pool),
        "replace": held("cuMemPoolCreate", lambda s: (d.cuMemPoolDestroy(s.pool), s.create())),
        "trim": lambda s: d.cuMemPoolTrimTo(s.pool, 0),
        "alloc_from": lambda s: s.take(d.cuMemAllocFromPoolAsync(8 * LITTLE, s.pool, s.stream)),
        "alloc": lambda s: s.take(d.cuMemAllocAsync(8 * LITTLE, s.stream)),
        "free_async": lambda s: d.cuMemFreeAsync(s.block, s.stream),
        "free": lambda s: d.cuMemFree(s.block),
        "wait": lambda s: d.cuStreamSynchronize(s.stream),
    }


class Current(Blocks):
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

    def replace(self) -> None:
        d.cuMemPoolDestroy(self.pool)
        answer = d.cuMemPoolCreate(properties())
        if not failed(answer):
            d.cuDeviceSetMemPool(0, answer[1])
            d.cuMemPoolDestroy(answer[1])

    calls: ClassVar[dict[str, Call]] = {
        "alloc": held(
            f"cuDeviceGetMemPool {ASKED} cuMemAllocAsync", lambda s: s.take(d.cuMemAllocAsync(2 * SIZE, s.stream))
        ),
        "alloc_small": held(
            f"cuStreamIsCapturing {ASKED} cuMemAllocAsync", lambda s: s.take(d.cuMemAllocAsync(LITTLE, s.stream))
        ),
        "choose_default": lambda s: d.cuDeviceSetMemPool(0, s.default),
        "choose_other": lambda s: d.cuDeviceSetMemPool(0, s.other),
        "destroy": lambda s: d.cuMemPoolDestroy(s.pool),
        "replace": held("cuMemPoolCreate cuDeviceSetMemPool cuMemPoolDestroy", replace),
    }


class GraphMemory(Scene):
    """An executable graph that allocates and frees."""

    def fill(self) -> None:
        self.stream = ok(d.cuStreamCreate(1))
        self.graph = ok(d.cuGraphCreate(0))
        memory = made(d.CUDA_MEM_ALLOC_NODE_PARAMS, bytesize=SIZE, poolProps=properties())
        node = ok(d.cuGraphAddMemAllocNode(self.graph, [], 0, memory))
        ok(d.cuGraphAddMemFreeNode(self.graph, [node], 1, memory.dptr))
        self.exec = ok(d.cuGraphInstantiate(self.graph, 0))
        self.made = [(d.cuGraphExecDestroy, self.exec)]

    def close(self) -> None:
        ok(d.cuStreamSynchronize(self.stream))
        super().close()
        ok(d.cuGraphDestroy(self.graph))
        ok(d.cuStreamDestroy(self.stream))
        ok(d.cuDeviceGraphMemTrim(0))

    def launch_and_trim(self) -> None:
        d.cuGraphLaunch(self.exec, self.stream)
        d.cuStreamSynchronize(self.stream)
        d.cuDeviceGraphMemTrim(0)

    calls: ClassVar[dict[str, Call]] = {
        "instantiate": lambda s: s.keep(d.cuGraphInstantiate(s.graph, 0), d.cuGraphExecDestroy),
        "destroy": lambda s: d.cuGraphExecDestroy(s.exec),
        "launch": lambda s: d.cuGraphLaunch(s.exec, s.stream),
        "upload": lambda s: d.cuGraphUpload(s.exec, s.stream),
        "trim": lambda s: d.cuDeviceGraphMemTrim(0),
        "launch_and_trim": launch_and_trim,
        "wait": lambda s: d.cuStreamSynchronize(s.stream),
    }


QUICK: dict[str, type[Scene]] = {
    "two pools": TwoPools,
    "queued frees": Queued,
    "ended pools": Ended,
    "current pool": Current,
    "graph memory": GraphMemory,
}
LARGE: dict[str, type[Scene]] = {"pools": Pools, "small pools": Small}
