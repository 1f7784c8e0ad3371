"""What containers request in NVIDIA's terms: annotations for a part of a device (KAI scheduler with gpu-fractioning)
are read as a request for one of our shares; requests for a whole device are only detected.

`nvidia.com/container.<name>.gpu-memory.request`, `.gpu-memory.limit`: Kubernetes quantities of memory, for the pod's
container of that name; `.gpu-compute.mode`: how it shares the device's time. NVIDIA's other annotations are ignored.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from math import ceil
from typing import Any

from gpushare.errors import UsageError
from gpushare.paths import CONTAINER_SELF
from gpushare.text.units import MIB, TEXT_MAX, format_size

_PREFIX = "nvidia.com/container."
# Annotations in which containerd and CRI-O give the container's name in its pod (also in hooks/edit.c).
NAMES = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")

TIME = 10
"""Time in milli-GPU of a container, since these annotations do not give any. It is the same for all such containers, so
that unpromised time is shared among them evenly, as in NVIDIA's `time-slicing`."""

_WORDS = ("gpu-memory.request", "gpu-memory.limit", "gpu-compute.mode")
_SIZE_MAX = 16 << 40
_MAJOR = 195  # of NVIDIA's nodes
_ID_MAX = 128  # characters
_SCALE = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}  # fmt: skip
_QUANTITY = re.compile(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|([kMGT]|[KMGT]i))?", re.ASCII)


def words(name: str) -> list[str]:
    """Returns the names of the annotations that are read for the container with this name."""
    return [f"{_PREFIX}{name}.{word}" for word in _WORDS]


def request(annotations: Mapping[str, Any]) -> dict[str, str | int]:
    """Returns the GrantRequest fields that a container's NVIDIA annotations request; empty if they request no memory,
    or if the container has no name in a pod.

    The limit is both what the container can use and what is kept free for it; a missing request or limit defaults to
    the other. Raises UsageError, which names the annotation, for a value that NVIDIA's stack would reject or that is
    not supported here.
    """
    name = container_name(annotations)
    if name is None:
        return {}
    request_word, limit_word, mode_word = words(name)
    sizes = [quantity(word, annotations[word]) for word in (request_word, limit_word) if word in annotations]
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


def ways(config: Mapping[str, Any]) -> list[str]:
    """Returns the ways (api.events.Way) in which the container of a config.json requests a GPU without a share of ours.
    Empty if it has a share; annotations for other containers of its pod do not count."""
    if any(mount.get("destination") == CONTAINER_SELF for mount in config.get("mounts") or ()):
        return []
    environment = (config.get("process") or {}).get("env") or ()
    devices = (config.get("linux") or {}).get("devices") or ()
    found = {
        "environment": any(_is_visible(variable) for variable in environment),
        "annotation": _asks(config.get("annotations") or {}),
        "device": any(node.get("major") == _MAJOR or node["path"].startswith("/dev/nvidia") for node in devices),
    }
    return [way for way, asks in found.items() if asks]


def _is_visible(variable: str) -> bool:
    name, _, value = variable.partition("=")
    return name == "NVIDIA_VISIBLE_DEVICES" and value not in ("", "void", "none")


def _asks(annotations: Mapping[str, Any]) -> bool:
    name = container_name(annotations)
    for key, value in annotations.items():
        domain = key.partition("/")[0]
        if key.startswith(_PREFIX) and name is not None and not key.startswith(f"{_PREFIX}{name}."):
            continue
        if domain in ("nvidia.com", "nvidia.cdi.k8s.io") or (domain == "cdi.k8s.io" and "nvidia.com/" in str(value)):
            return True
    return False


def container_name(annotations: Mapping[str, Any]) -> str | None:
    """Returns the container's name in its pod; None outside Kubernetes."""
    return next((value for key in NAMES if isinstance(value := annotations.get(key), str) and value), None)


def identity(config: Mapping[str, Any], bundle: str | None) -> str:
    """Returns the engine's name for the container: the last component of its cgroup path, as all engines write it; else
    its bundle. Printable ASCII."""
    group = str((config.get("linux") or {}).get("cgroupsPath") or "")
    last = re.split("[:/]", group.rstrip("/"))[-1].removesuffix(".scope")
    return re.sub("[^!-~]", "?", re.sub("^(libpod|crio|docker|cri-containerd)-", "", last) or bundle or "")[-_ID_MAX:]


def quantity(annotation: str, text: object) -> int:
    """Parses a Kubernetes quantity into bytes, rounding up. Raises UsageError."""
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) and len(text) <= TEXT_MAX else None
    if match is None:
        raise UsageError(
            f"annotation {annotation} is {str(text)[:40]!r}, not a quantity: write for example 8Gi or 512Mi"
        )
    size = Decimal(match[1] + (match[2] or "")) * _SCALE[match[3] or ""]
    if not MIB <= size <= _SIZE_MAX:
        raise UsageError(f"annotation {annotation} is {text!r}, out of range: give at least 1Mi and at most 16Ti")
    return ceil(size)
