"""Which devices a request may have: those that it names, or those that its selector matches. Pure."""

from collections.abc import Collection
from typing import Protocol, TypeVar

from gpushare.errors import NotFoundError, RefusedError
from gpushare.policy.grants import selector as selectors

Name = str | int
"""Of a device: its id or index."""


class Device(Protocol):
    """A device of the node. `fault`: why it takes no new grants; empty: it does."""

    @property
    def id(self) -> str: ...  # noqa: D102 - see the class
    @property
    def index(self) -> int: ...  # noqa: D102
    @property
    def fault(self) -> str: ...  # noqa: D102
    @property
    def facts(self) -> selectors.Facts: ...  # noqa: D102


D = TypeVar("D", bound=Device)


def names(device: Name | tuple[Name, ...]) -> tuple[Name, ...]:
    """One name or several, as several."""
    return device if isinstance(device, tuple) else (device,)


def candidates(
    device: Name | tuple[Name, ...] | None, selector: selectors.Node | None, devices: Collection[D]
) -> list[D]:
    """The devices that take new grants and are named; `device` None: all that do. Raises RefusedError where there is
    none, or one that is named takes none, and NotFoundError for a name that no device has."""
    if selector is not None:
        known = len(devices)
        devices = [one for one in devices if selectors.matches(selector, one.facts)]
        if not devices:
            raise RefusedError(f"none of this node's {known} devices is one that was selected: see `gpushare labels`")
    if device is None:
        usable = [one for one in devices if not one.fault]
        if not usable:
            faults = "; ".join(f"device {one.index}: {one.fault}" for one in devices)
            raise RefusedError(f"no device of this node is healthy: {faults}")
        return usable
    return [_one(name, devices) for name in names(device)]


def _one(name: Name, devices: Collection[D]) -> D:
    for device in devices:
        if name in (device.id, device.index):
            if device.fault:
                raise RefusedError(f"device {device.index} ({device.id}) takes no new grants: {device.fault}")
            return device
    known = ", ".join(f"{device.index} ({device.id})" for device in devices)
    raise NotFoundError(f"there is no device {name!r}: known are {known}")
