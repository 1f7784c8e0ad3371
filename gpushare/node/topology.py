"""Distances between devices, as NVML reports them, in the terms of gpushare.policy.grants.distance."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare.policy.grants.distance import Links

# nvmlGpuTopologyLevel_t
_LEVELS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
_PCI_DEVICES = Path("/sys/bus/pci/devices")


def linked(nvml: Any, handles: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Returns for each device id the distances to others, except those that NVML does not report. `handles`: by id."""
    found: dict[str, dict[str, str]] = {device: {} for device in handles}
    ids = list(handles)
    for at, one in enumerate(ids):
        for other in ids[at + 1 :]:
            if (level := _level(nvml, handles[one], handles[other])) is not None:
                found[one][other] = found[other][one] = level
    return found


def _level(nvml: Any, one: Any, other: Any) -> str | None:
    try:
        # OK also if the NVLinks go through switches, where the devices do not list each other as link peers.
        if nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
            return "nvlink"
    except (nvml.NVMLError, AttributeError):
        pass
    try:
        return _LEVELS.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    except (nvml.NVMLError, AttributeError):
        return None


def nvlink_domain(device: str, links: Mapping[str, Links]) -> str | None:
    """Returns the name of the group of devices that NVLinks join, directly or through others: the first device's id.
    None: no NVLink to another device."""
    domain, left = {device}, [device]
    while left:
        near = {other for other, level in links.get(left.pop(), {}).items() if level == "nvlink"} - domain
        domain |= near
        left += near
    return next(one for one in links if one in domain) if len(domain) > 1 else None


def _pci(bus_id: str) -> Path:
    # NVML writes the domain with eight digits, the kernel with four.
    domain, _, rest = bus_id.partition(":")
    return _PCI_DEVICES / f"{domain[-4:]}:{rest}"


def pcie_root(bus_id: str) -> str | None:
    """Returns the root complex of a PCI device, as the kernel and Kubernetes name it: `pci0000:3a`."""
    try:
        place = _pci(bus_id).resolve(strict=True)
    except OSError:
        return None
    return next((part for part in place.parts if part.startswith("pci")), None)


def numa_node(bus_id: str) -> str | None:
    """Returns the NUMA node of a PCI device. NVML reports it only for devices that are a node themselves."""
    try:
        node = (_pci(bus_id) / "numa_node").read_text().strip()
    except OSError:
        return None
    return node if node.isdecimal() else None  # -1: the machine has no nodes
