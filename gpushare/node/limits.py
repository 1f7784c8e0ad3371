"""The driver's own memory limits per cgroup: nvmlDeviceSetMemoryLimits_v1, in drivers from r615 on.

https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html. The hard limit is enforced in the kernel, by its
`dmem` controller where there is one, for all processes in the cgroup. The soft limit stays 0: it is a reservation that
only MPS acts upon, and if a cgroup is removed without a reset, its reservation stays with the ancestors.
"""

import os
from pathlib import Path
from typing import Any

from gpushare.errors import FailedError

MAX = (1 << 64) - 1  # NVML_DEVICE_MEMORY_LIMIT_MAX


def limit(nvml: Any, handle: Any, group: Path, most: int | None) -> None:
    """Sets the hard limit to `most` bytes; None: no limit. `nvml`: the pynvml module. Raises FailedError."""
    hard = MAX if most is None else most
    _call(nvml, "Set", handle, group, hard)


def used(nvml: Any, handle: Any, group: Path) -> int:
    """Returns the bytes that the processes of the cgroup hold. Raises FailedError."""
    return int(_call(nvml, "Get", handle, group, 0).currentUsed)


def _call(nvml: Any, verb: str, handle: Any, group: Path, hard: int) -> Any:
    call = getattr(nvml, f"nvmlDevice{verb}MemoryLimits_v1", None)
    if call is None:
        raise FailedError("nvidia-ml-py is older than 13.615 and knows no limits per cgroup: install a newer one")
    if handle is None:
        raise FailedError("the device does not work")
    limits = getattr(nvml, f"c_nvml{verb}MemoryLimits_v1_t")()
    limits.nameSpace, limits.softLimit, limits.hardLimit = os.fsencode(group), 0, hard
    try:
        call(handle, limits)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, nvml.NVML_ERROR_NOT_SUPPORTED):
            raise FailedError(
                f"the driver has no limits per cgroup here ({error}): those from r615 on do, with cgroup v2 and no MIG"
            ) from None
        raise FailedError(f"the driver does not limit the memory of {group}: {error}") from None
    return limits
