"""The node's devices as a ResourceSlice. Pure.

Quantities are in Kubernetes' text form. `time` is in milli of a device (1000: all of it), to avoid fractions.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from gpushare.adapters.kubernetes import DRIVER
from gpushare.policy.grants.admission import SMALLEST_MILLI, WORKING_BYTES
from gpushare.text.units import MIB, PAGE

Json = dict[str, Any]
Shown = Mapping[str, Any]
"""A device or a grant, as the daemon shows it."""

SHARES = 64
"""Maximum concurrent grants on a device. The usage pages and the arbiter allow more, but a device has no room for the
contexts of more."""

# Attribute in the node API -> attribute in the slice. Those of `resource.kubernetes.io` are Kubernetes' standard ones,
# by which devices of different vendors are placed near each other.
_TEXTS = {
    "architecture": "architecture",
    "pcie_root": "resource.kubernetes.io/pcieRoot",
    "nvlink_domain": "nvlinkDomain",
}
# The same for versions; includes the names that other versions of the daemon use.
_VERSIONS = {
    "compute_capability": "cudaComputeCapability",
    "cuda_compute_capability": "cudaComputeCapability",
    "driver_version": "driverVersion",
    "cuda_version": "cudaDriverVersion",
    "cuda_driver_version": "cudaDriverVersion",
}
_NUMBERS = {"numa_node": "numaNode"}
ON_LOAN = "memoryOnLoanMiB"
"""Attribute. Not a capacity: that is what the scheduler promises to claims, and this goes back when its owners wake."""
_ON_LOAN_STEP = 1 << 30
_TEXT_MAX = 64  # characters of an attribute's value


def device_name(device_id: str) -> str:
    """Returns a device's name in slices and claims: its id as a DNS label."""
    return "".join(char if char.isalnum() else "-" for char in device_id.lower())[:63].strip("-")


def _is_number(text: str) -> bool:
    """Whether the API server accepts it as a number: it refuses the whole slice for one bad value."""
    return text.isascii() and text.isdecimal() and len(text) < 10


def version(text: str) -> str | None:
    """Returns it as a semantic version, three numbers without leading zeros; None if it is not a version."""
    parts = text.split(".")
    if not 1 <= len(parts) <= 3 or not all(_is_number(part) for part in parts):
        return None
    return ".".join(str(int(part)) for part in (*parts, "0", "0")[:3])


def attributes(device: Shown) -> Json:
    """Returns the attributes that claims select by."""
    known: Mapping[str, str] = device["attributes"]
    found: Json = {
        "uuid": {"string": device["id"][:_TEXT_MAX]},
        "productName": {"string": (known.get("product") or device["name"])[:_TEXT_MAX]},
        "index": {"int": device["index"]},
        "backend": {"string": device["backend"]},
    }
    if device["pci_bus_id"]:
        domain, _, rest = device["pci_bus_id"].lower().partition(":")
        # NVML writes the domain with eight digits, Kubernetes and the kernel with four.
        found["resource.kubernetes.io/pciBusID"] = {"string": f"{domain[-4:]}:{rest}"[:_TEXT_MAX]}
    for name, word in _TEXTS.items():
        if known.get(name):
            found[word] = {"string": known[name][:_TEXT_MAX]}
    for name, word in _VERSIONS.items():
        if (as_version := version(known.get(name, ""))) is not None:
            found[word] = {"version": as_version}
    for name, word in _NUMBERS.items():
        if _is_number(known.get(name, "")):
            found[word] = {"int": int(known[name])}
    found[ON_LOAN] = {"int": on_loan(device) // MIB}
    return found


def on_loan(device: Shown) -> int:
    """Returns the bytes that a claim with `borrowMemory` can have of others: what suspended grants have left, and what
    grants hold that do nothing. In coarse steps, since each change of the slice is a write to the API server."""
    found = device.get("memory_asleep_bytes", 0) + device.get("memory_idle_bytes", 0)
    return int(found // _ON_LOAN_STEP * _ON_LOAN_STEP)


def free(device: Shown, others: Sequence[Shown]) -> tuple[int, int]:
    """Returns the bytes and milli of a device that claims may have: all except what is reserved and what `others`, the
    grants that are not claims', hold."""
    memory = device["capacity"]["memory"] - device["reserved"]["memory"]
    time = device["capacity"]["time"]
    for grant in others:
        for part in grant["devices"]:
            if part["id"] == device["id"]:
                memory -= part["memory_limit_bytes"]
                time -= part["time_milli"]
    return max(0, memory) // PAGE * PAGE, max(0, time)


def taints(device: Shown) -> list[Json]:
    """Returns the taints that keep new pods off the device. Running pods stay: their owners decide, by the health shown
    in the pods' status."""
    if device["health"] != "healthy":
        return [{"key": f"{DRIVER}/unhealthy", "effect": "NoSchedule"}]
    if device.get("state", "ready") != "ready":
        return [{"key": f"{DRIVER}/{device['state']}", "effect": "NoSchedule"}]
    return []


def unreachable(shown: Iterable[Json]) -> list[Json]:
    """Returns the devices of a slice tainted because the daemon does not answer: nothing new is placed on them."""
    taint = {"key": f"{DRIVER}/unreachable", "effect": "NoSchedule"}
    return [
        {**one, "taints": [*(old for old in one.get("taints") or () if old["key"] != taint["key"]), taint]}
        for one in shown
    ]


def capacity(device: Shown, others: Sequence[Shown]) -> Json | None:
    """Returns the capacity that claims consume. A claim that requests no amount gets all of the device. None: too
    little is left for a claim."""
    memory, time = free(device, others)
    smallest = -(-(device["context_bytes"] + WORKING_BYTES) // PAGE) * PAGE
    if memory < smallest or time < SMALLEST_MILLI:
        return None
    return {
        "memory": {
            "value": _mebibytes(memory),
            "requestPolicy": {
                "default": _mebibytes(memory),
                "validRange": {"min": _mebibytes(smallest), "max": _mebibytes(memory), "step": _mebibytes(PAGE)},
            },
        },
        "time": {
            "value": str(time),
            "requestPolicy": {
                "default": str(time),
                "validRange": {"min": str(SMALLEST_MILLI), "max": str(time), "step": "1"},
            },
        },
        "shares": {"value": str(SHARES), "requestPolicy": {"default": "1", "validValues": ["1"]}},
    }


def _mebibytes(size: int) -> str:
    return f"{size // MIB}Mi"


def devices(found: Iterable[Shown], others: Sequence[Shown]) -> list[Json]:
    """Returns the `devices` of the node's slice. `others`: as in `free`."""
    out: list[Json] = []
    for device in found:
        parts = capacity(device, others)
        if parts is None:
            continue
        one = {
            "name": device_name(device["id"]),
            "allowMultipleAllocations": True,
            "attributes": attributes(device),
            "capacity": parts,
        }
        if why := taints(device):
            one["taints"] = why
        out.append(one)
    return out


def same(one: Sequence[Json], other: Sequence[Json]) -> bool:
    """Whether both are equivalent. The API server normalises quantities and adds the time when a taint was added."""
    return len(one) == len(other) and all(a == b or _plain(a) == _plain(b) for a, b in zip(one, other, strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _amounts(part) if key == "capacity" else _plain(part)
            for key, part in value.items()
            if key != "timeAdded"
        }
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _amounts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _amounts(part) for key, part in value.items()}
    return [_amounts(part) for part in value] if isinstance(value, list) else amount(value)


@functools.lru_cache(maxsize=1024)
def amount(text: str) -> Decimal:
    """Parses a Kubernetes quantity. Raises ValueError."""
    found = Decimal(parse_quantity(text))
    if not found.is_finite():
        raise ValueError(f"{text!r} is no number")
    return found


def slice_name(node: str) -> str:
    """Returns the slice's name; there is one slice per node."""
    return f"{node}-{DRIVER}"


def resource_slice(node: str, node_uid: str | None, generation: int, shown: Sequence[Json]) -> Json:
    """Returns the whole object. `node_uid`: the Node's, with which the slice is deleted. `generation`: the pool's,
    increased at each change."""
    metadata: Json = {"name": slice_name(node)}
    if node_uid is not None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(shown),
        },
    }
