"""The words by which pods ask NVIDIA's stack (KAI's scheduler with gpu-fractioning) for a part of a device, as a
request for one of our shares.

`nvidia.com/container.<name>.gpu-memory.request`, `.gpu-memory.limit`: Kubernetes quantities of memory, for the pod's
container of that name; `.gpu-compute.mode`: how it shares the device's time. Other words of NVIDIA's are not read.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from math import ceil
from typing import Any

from gpushare.errors import UsageError
from gpushare.units import MIB, TEXT_MAX, format_size

_PREFIX = "nvidia.com/container."
# Where containerd and CRI-O say the container's name in its pod (hooks/edit.c looks there too).
NAMES = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")

TIME = 10
"""milli-GPU of a container whose words say nothing of time. All such have the same, so that what is not promised to
others is shared among them evenly: NVIDIA's `time-slicing`."""

_WORDS = ("gpu-memory.request", "gpu-memory.limit", "gpu-compute.mode")
_SIZE_MAX = 16 << 40
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}  # fmt: skip
_QUANTITY = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|([kMGT]|[KMGT]i))?", re.ASCII)


def words(name: str) -> list[str]:
    """The annotations that are read for the container with that name."""
    return [f"{_PREFIX}{name}.{word}" for word in _WORDS]


def request(annotations: Mapping[str, Any]) -> dict[str, str | int]:
    """The fields of a GrantRequest that a container's annotations ask for, in NVIDIA's words; none where it asks for no
    memory so, or has no name in a pod.

    The limit is what the container can use and what is kept free for it; of both words, one that is missing is like
    the other. Raises UsageError, which names the annotation, for a value that NVIDIA's stack would not take, and for
    what there is not here.
    """
    name = next((value for key in NAMES if isinstance(value := annotations.get(key), str) and value), None)
    if name is None:
        return {}
    request_word, limit_word, mode_word = words(name)
    sizes = [_size(word, annotations[word]) for word in (request_word, limit_word) if word in annotations]
    if not sizes:
        return {}
    if sizes[0] > sizes[-1]:
        raise UsageError(
            f"annotation {request_word} is {format_size(sizes[0])}, more than {limit_word} with "
            f"{format_size(sizes[-1])}: ask for no more than the limit"
        )
    mode = annotations.get(mode_word, "time-slicing")
    if mode != "time-slicing":
        raise UsageError(
            f"annotation {mode_word} is {str(mode)[:40]!r}: gpushare gives time in turns; write time-slicing, or "
            "leave it out"
        )
    return {"memory": sizes[-1], "time": TIME}


def _size(annotation: str, text: object) -> int:
    """A Kubernetes quantity in bytes; part of a byte counts as one."""
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) and len(text) <= TEXT_MAX else None
    if match is None:
        raise UsageError(
            f"annotation {annotation} is {str(text)[:40]!r}, not a quantity: write for example 8Gi or 512Mi"
        )
    size = Decimal(match[1] + (match[2] or "")) * _SCALE[match[3] or ""]
    if not MIB <= size <= _SIZE_MAX:
        raise UsageError(f"annotation {annotation} is {text!r}, out of range: give at least 1Mi and at most 16Ti")
    return ceil(size)
