"""NVML's view of one device, read without a daemon."""

from typing import Any

from gpubench.config import MissingError


class Nvml:
    def __init__(self, gpu: int) -> None:
        """`gpu`: in the order of the bus, which is NVML's. Raises gpushare's UnreachableError without a driver and
        MissingError without the package."""
        from gpushare.node.nvml import load

        try:
            self._nvml: Any = load()
        except ImportError:
            raise MissingError("needs Python's nvidia-ml-py") from None
        self._handle = self._nvml.nvmlDeviceGetHandleByIndex(gpu)

    def used_bytes(self) -> int:
        """Of the whole device."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def process_bytes(self, pid: int) -> int | None:
        """None when NVML does not list the process, or lists it under the number of another PID namespace."""
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        return next((int(one.usedGpuMemory) for one in found if one.pid == pid and one.usedGpuMemory is not None), None)
