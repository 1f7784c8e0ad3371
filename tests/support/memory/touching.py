"""A program whose memory is changed by kernels all the time and which knows what each word of it has to be. For use
inside a worker (run/worker.py), in whose context it works: `program = touching.Program(seed, pieces); program.start()`.

A kernel uses memory when it runs, which is later than its launch: what is at its addresses then.
"""

import ctypes
import random
import struct
import threading
import time
from typing import Any

from cuda.bindings import driver as d
from run.worker import get, ok, put

from gpushare.paths import SPIN_PTX, WORDS_PTX

BLOCK = 64 << 10
SIZES = (*[(1 << 20) + BLOCK, 2 << 20] * 4, 4 << 20)
ALL = (1 << 64) - 1


def _kernel(path: Any, name: bytes) -> Any:
    return ok(d.cuModuleGetFunction(ok(d.cuModuleLoadData(path.read_bytes() + bytes(1))), name))


def _launch(kernel: Any, stream: Any, *values: int) -> None:
    numbers = values, (ctypes.c_uint64,) * len(values)
    ok(d.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, numbers, 0))


class Kernels:
    def __init__(self) -> None:
        self.touch, self.sum = _kernel(WORDS_PTX, b"touch_words"), _kernel(WORDS_PTX, b"sum_words")
        self.spin = _kernel(SPIN_PTX, b"spin_ns")


class Piece:
    """An allocation. Its words are those of `first`, each exclusive or the mask of its block."""

    def __init__(self, kernels: Kernels, rng: random.Random) -> None:
        self.kernels, self.size = kernels, rng.choice(SIZES)
        self.address, self.stream = int(ok(d.cuMemAlloc(self.size))), ok(d.cuStreamCreate(1))
        self.out = int(ok(d.cuMemAlloc(8)))
        self.first = rng.randbytes(self.size)
        put(self.address, self.first)
        self.masks = [0] * (self.size // BLOCK)
        self.constant = rng.getrandbits(64)
        mode = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        ok(d.cuStreamBeginCapture(self.stream, mode))
        _launch(kernels.touch, self.stream, self.address, self.size, self.constant)
        graph = ok(d.cuStreamEndCapture(self.stream))
        self.graph = ok(d.cuGraphInstantiate(graph, 0))
        ok(d.cuGraphDestroy(graph))

    def touch(self, rng: random.Random) -> None:
        first, mask = rng.randrange(len(self.masks)), rng.getrandbits(64)
        after = rng.randrange(first, len(self.masks)) + 1
        _launch(self.kernels.touch, self.stream, self.address + first * BLOCK, (after - first) * BLOCK, mask)
        for block in range(first, after):
            self.masks[block] ^= mask

    def touch_by_graph(self) -> None:
        ok(d.cuGraphLaunch(self.graph, self.stream))
        self.masks = [mask ^ self.constant for mask in self.masks]

    def spin(self, rng: random.Random) -> None:
        _launch(self.kernels.spin, self.stream, rng.randrange(300_000))

    def wanted(self, block: int) -> bytes:
        first = self.first[block * BLOCK : (block + 1) * BLOCK]
        mask = struct.pack("<Q", self.masks[block]) * (BLOCK // 8)
        return (int.from_bytes(first, "little") ^ int.from_bytes(mask, "little")).to_bytes(BLOCK, "little")

    def sum_is_right(self, rng: random.Random) -> bool:
        """A kernel adds up a block."""
        block = rng.randrange(len(self.masks))
        _launch(self.kernels.sum, self.stream, self.address + block * BLOCK, BLOCK, self.out)
        ok(d.cuStreamSynchronize(self.stream))
        [found] = struct.unpack("<Q", get(self.out, 8))
        return bool(found == sum(struct.unpack(f"<{BLOCK // 8}Q", self.wanted(block))) & ALL)

    def bytes_are_right(self, blocks: list[int]) -> bool:
        ok(d.cuStreamSynchronize(self.stream))
        return all(get(self.address + block * BLOCK, BLOCK) == self.wanted(block) for block in blocks)

    def end(self) -> bool:
        right = self.bytes_are_right(list(range(len(self.masks))))
        ok(d.cuGraphExecDestroy(self.graph))
        ok(d.cuMemFree(self.address))
        ok(d.cuMemFree(self.out))
        ok(d.cuStreamDestroy(self.stream))
        return right


class Program:
    """`faults`: what was not as it has to be. `rounds`: how much it has done."""

    def __init__(self, seed: int, pieces: int) -> None:
        self.rng, self.kernels = random.Random(seed), Kernels()
        self.pieces = [Piece(self.kernels, self.rng) for _ in range(pieces)]
        self.faults: list[str] = []
        self.rounds = 0
        self._context = ok(d.cuCtxGetCurrent())
        self._over, self._works, self._rests = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._works.set()
        self._thread.start()

    def pause(self) -> None:
        """Submits nothing more until `go_on`."""
        self._works.clear()

    def rest(self) -> None:
        """The same, and waits for what it has submitted."""
        self.pause()
        self._rests.wait()

    def go_on(self) -> None:
        self._rests.clear()
        self._works.set()

    def end(self) -> list[str]:
        """Looks at everything, frees it and returns the faults."""
        self._over.set()
        self._works.set()
        self._thread.join()
        if not self.faults and False in [piece.end() for piece in self.pieces]:
            self.faults.append("at the end")
        return self.faults

    def _work(self) -> None:
        try:
            ok(d.cuCtxSetCurrent(self._context))
            while not self._over.is_set() and not self.faults:
                if not self._works.is_set():
                    ok(d.cuCtxSynchronize())
                    self._rests.set()
                    self._works.wait()
                self.rounds += 1
                self._step(self.rng.randrange(len(self.pieces)), self.rng.random())
        except BaseException as failure:
            self.faults.append(repr(failure))
            self._rests.set()

    def _step(self, index: int, chance: float) -> None:
        piece = self.pieces[index]
        if chance < 0.2:
            piece.spin(self.rng)
            piece.touch(self.rng)
        elif chance < 0.45:
            piece.touch(self.rng)
        elif chance < 0.55:
            piece.touch_by_graph()
        elif chance < 0.65:
            self._judge(piece.sum_is_right(self.rng), "a sum")
        elif chance < 0.7:
            self._judge(piece.bytes_are_right([self.rng.randrange(len(piece.masks))]), "bytes")
        elif chance < 0.71:
            self._judge(piece.end(), "all bytes of one that was freed")
            self.pieces[index] = Piece(self.kernels, self.rng)
        else:
            time.sleep(self.rng.uniform(0, 0.002))

    def _judge(self, right: bool, what: str) -> None:
        if not right:
            self.faults.append(f"{what}, in round {self.rounds}")
