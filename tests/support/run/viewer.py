"""Processes of a grant that call CUDA and NVML on command, and access to the grant's pages."""

import subprocess
from pathlib import Path

from pages.handmade import Simulator
from run import zygote
from run.simworker import Worker

LOOK = """
import os, threading
import pynvml as n
def device(index=0): return n.nvmlDeviceGetHandleByIndex(index)
def both(index=0):
    memory = n.nvmlDeviceGetMemoryInfo
    one, two = memory(device(index)), memory(device(index), version=n.nvmlMemory_v2)
    return [[one.total, one.free, one.used], [two.total, two.reserved, two.free, two.used]]
def processes():
    return sorted([p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(device()))
def code(call, *arguments):
    try:
        call(*arguments)
    except n.NVMLError as failure:
        return failure.value
    return 0
def cuda():
    free, total = ok(d.cuMemGetInfo())
    assert ok(d.cuDeviceTotalMem(0)) == total
    return [total, free]
"""
USE = """
    rate = lambda: n.nvmlDeviceGetUtilizationRates(device()).gpu
    def each():
        try:
            return sorted([p.pid, p.smUtil] for p in n.nvmlDeviceGetProcessUtilization(device(), 0))
        except n.NVMLError_NotFound:
            return []
    def infos():
        try:
            return sorted([p.pid, p.smUtil] for p in n.nvmlDeviceGetProcessesUtilizationInfo(device(), 0))
        except n.NVMLError_NotFound:
            return []
    sample = lambda: n.nvmlDeviceGetSamples(device(), n.NVML_GPU_UTILIZATION_SAMPLES, 0)[1][0].sampleValue.uiVal
"""


class Inside:
    """Starts workers of one grant, or of the simulator without a grant."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        self.children: list[subprocess.Popen[str] | zygote.Forked] = []

    def spawn(self, *command: str | Path, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            command, env=self.env | (env or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.children.append(child)
        return child

    def fork(self, env: dict[str, str] | None = None) -> zygote.Forked:
        child = zygote.fork(self.env | (env or {}))
        self.children.append(child)
        return child

    def worker(self, init: bool = True) -> Worker:
        made = Worker(self)
        made.do(LOOK)
        if init:
            made.do("n.nvmlInit()")
        return made

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait(10)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()


def bytes_of(sim: Simulator, *pids: int) -> int:
    """Bytes that these processes hold of device 0, according to the simulator."""
    processes = sim.books()["devices"][0]["processes"]
    return sum(process["bytes"] for process in processes if process["pid"] in pids)
