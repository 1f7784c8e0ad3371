#!/usr/bin/env python3
"""The Python version of spin.c, on cuda.bindings.driver: holds memory and runs spin_ns kernels.

spin.py [--device N] [--alloc BYTES] [--kernel-ns NS] [--seconds S]

Prints the same JSON objects as gpushare-spin, one per line. Without --seconds it reads the same commands from stdin.
"""

import argparse
import ctypes
import json
import os
import re
import select
import sys
import time
from pathlib import Path

from cuda.bindings import driver as cuda

PTX = Path(__file__).with_name("spin.ptx")
BATCH_NS = 4_000_000
_SIZE = re.compile(r"([0-9]+)(?:([KMGT])(?:iB)?)?")


def size(text):
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) << 10 * " KMGT".index(match[2] or " ")


def say(**facts):
    print(json.dumps(facts), flush=True)


def must(result):
    """Returns the call's values; any error ends the program."""
    code, *values = result
    if code != cuda.CUresult.CUDA_SUCCESS:
        say(event="error", error=int(code), name=code.name)
        sys.exit(1)
    return values[0] if len(values) == 1 else values


class Program:
    def __init__(self, ordinal):
        must(cuda.cuInit(0))
        device = must(cuda.cuDeviceGet(ordinal))
        must(cuda.cuCtxSetCurrent(must(cuda.cuDevicePrimaryCtxRetain(device))))
        module = must(cuda.cuModuleLoadData(PTX.read_bytes() + b"\0"))
        self.spin = must(cuda.cuModuleGetFunction(module, b"spin_ns"))
        self.stream = must(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.marks = [must(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)) for _ in range(2)]
        self.batches = self.kernels = self.kernel_ns = self.held_bytes = 0
        self.held = []
        self.running = False
        name = must(cuda.cuDeviceGetName(128, device)).split(b"\0")[0].decode()
        say(event="ready", pid=os.getpid(), device=name)

    def allocate(self, count, piece):
        granted = True
        for offset in range(0, count, piece):
            part = min(piece, count - offset)
            code, pointer = cuda.cuMemAlloc(part)
            granted = code == cuda.CUresult.CUDA_SUCCESS
            if not granted:
                break
            self.held.append(pointer)
            self.held_bytes += part
        if not granted and code != cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            must((code,))
        say(event="alloc", ok=granted, error=int(code), name=code.name, bytes=count, held_bytes=self.held_bytes)

    def free(self):
        while self.held:
            must(cuda.cuMemFree(self.held.pop()))
        self.held_bytes = 0
        say(event="free", held_bytes=0)

    def memory(self):
        available, total = must(cuda.cuMemGetInfo())
        say(event="memory", free_bytes=available, total_bytes=total, held_bytes=self.held_bytes)

    def submit(self):
        arguments = ((self.kernel_ns,), (ctypes.c_uint64,))
        count = max(1, BATCH_NS // self.kernel_ns)
        for _ in range(count):
            must(cuda.cuLaunchKernel(self.spin, 1, 1, 1, 1, 1, 1, 0, self.stream, arguments, 0))
        must(cuda.cuEventRecord(self.marks[self.batches % 2], self.stream))
        self.batches += 1
        if self.batches > 1:
            must(cuda.cuEventSynchronize(self.marks[self.batches % 2]))
        self.kernels += count

    def run(self, kernel_ns):
        self.kernel_ns = kernel_ns
        self.running = True

    def stop(self):
        must(cuda.cuCtxSynchronize())
        self.running = False
        say(event="idle", kernels=self.kernels, t_ns=time.monotonic_ns())

    def command(self, line):
        verb, *rest = line.split() or [""]
        if verb == "alloc" and len(rest) == 1:
            self.allocate(size(rest[0]), size(rest[0]))
        elif verb == "fill" and len(rest) == 2:
            self.allocate(size(rest[0]), size(rest[1]))
        elif verb == "run" and rest:
            self.run(int(rest[0]))
            say(event="run", t_ns=time.monotonic_ns())
        elif verb in ("free", "memory") and not rest:
            getattr(self, verb)()
        elif verb == "idle":
            self.stop()
        else:
            say(event="unknown")

    def serve(self):
        buffer = b""
        while True:
            if select.select([0], [], [], 0 if self.running else None)[0]:
                read = os.read(0, 4096)
                buffer += read
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    if line == b"quit":
                        return
                    self.command(line.decode())
                if not read:
                    return
            if self.running:
                self.submit()


def main():
    parser = argparse.ArgumentParser(description="holds device memory and runs spin_ns kernels")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--alloc", type=size, default=0)
    parser.add_argument("--kernel-ns", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    program = Program(args.device)
    if args.alloc:
        program.allocate(args.alloc, args.alloc)
    if args.seconds is None:
        program.serve()
        return
    end = time.monotonic() + args.seconds
    program.run(args.kernel_ns)
    while time.monotonic() < end:
        program.submit()
    program.stop()


if __name__ == "__main__":
    main()
