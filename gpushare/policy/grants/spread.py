"""Which of the devices that fit a single share gets: packed, the one that leaves least free; spread, the one with most
free. Pure.

A spread share takes no device that another tenant is guaranteed as a whole, as long as a further one fits. Who is
guaranteed so many whole devices may ask for all time, and all memory, of as many on which no time is guaranteed yet.
The tenant that has what no other is guaranteed may count on the time of devices that the guarantees of the others need
not reach, and on memory out of its own guarantee.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from gpushare.policy.grants.taken import Taken
from gpushare.policy.quota.shares import DEVICE_MILLI

Placement = Literal["spread", "pack"]
PLACEMENT: Placement = "spread"
"""Of a node that sets none."""


class Owner(Protocol):
    """A tenant: what it is guaranteed, without those below it, and whether that is what no other is guaranteed."""

    @property
    def guarantee_milli(self) -> int: ...  # noqa: D102 - see the class
    @property
    def memory_bytes(self) -> int: ...  # noqa: D102
    @property
    def rest(self) -> bool: ...  # noqa: D102


class Fit(Protocol):
    """What a share would have on a device that fits."""

    @property
    def device(self) -> str: ...  # noqa: D102 - see the class
    @property
    def index(self) -> int: ...  # noqa: D102
    @property
    def memory_bytes(self) -> int: ...  # noqa: D102
    @property
    def guaranteed_milli(self) -> int: ...  # noqa: D102


F = TypeVar("F", bound=Fit)


@dataclass(frozen=True, slots=True)
class Whole:
    """How many whole devices a tenant is guaranteed and does not have. `memory_bytes`: what it may have of their memory
    together; None: all."""

    tenant: str
    devices: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """The devices on which no time is guaranteed yet. `rooms`: by id, their free bytes. `wholes`: what others than the
    tenant that asks are guaranteed there. `least_bytes`: least memory of a grant."""

    rooms: Mapping[str, int]
    wholes: Sequence[Whole]
    least_bytes: int

    def kept(self, fit: Fit) -> bool:
        """Whether there is still room for all of `wholes` together, and for each on fewer devices, once the share is on
        this device."""
        if fit.device not in self.rooms or not self.wholes:
            return True
        after = {**self.rooms, fit.device: self.rooms[fit.device] - fit.memory_bytes}
        if fit.guaranteed_milli:
            del after[fit.device]
        most, rooms = (sorted(found.values(), reverse=True) for found in (self.rooms, after))
        parts = [(one.devices, one.memory_bytes) for one in self.wholes if one.memory_bytes is not None]
        together = most[: sum(one.devices for one in self.wholes if one.memory_bytes is None)]
        together += [size for count, memory in parts for size in self._each(count, memory)]
        alone = [self._each(fewer, memory) for count, memory in parts for fewer in range(1, count)]
        return all(_fit(wanted, rooms) for wanted in (together, *alone))

    def _each(self, devices: int, memory_bytes: int) -> list[int]:
        """Bytes on each of so many devices; no more than any has."""
        return [max(self.least_bytes, min(max(self.rooms.values()), memory_bytes // devices))] * devices


def _fit(wanted: Iterable[int], rooms: Sequence[int]) -> bool:
    """Whether each wanted amount gets a room of its own. `rooms`: largest first."""
    sizes = sorted(wanted, reverse=True)
    return len(sizes) <= len(rooms) and all(size <= room for size, room in zip(sizes, rooms, strict=False))


def opened(asker: str, memory: Mapping[str, int], least_bytes: int, tenants: Mapping[str, Owner], taken: Taken) -> Open:
    """`asker`: the tenant that asks. `memory`: by id of each device that takes grants, the bytes that it can give."""
    rooms = {
        device: size - taken.on(device).memory_bytes
        for device, size in memory.items()
        if not taken.on(device).guaranteed_milli
    }
    return Open(rooms, _wholes(asker, memory, tenants, taken), least_bytes)


def _wholes(asker: str, devices: Collection[str], tenants: Mapping[str, Owner], taken: Taken) -> list[Whole]:
    found = []
    for name, tenant in tenants.items():
        count = (tenant.guarantee_milli - taken.of(name).guaranteed_milli) // DEVICE_MILLI
        if name == asker or count <= 0:
            continue
        if not tenant.rest:
            found.append(Whole(name, count))
        elif (count := min(count, _rest(name, devices, tenants, taken))) > 0:
            found.append(Whole(name, count, max(0, tenant.memory_bytes - taken.memory(name, devices))))
    return found


def _rest(rest: str, devices: Collection[str], tenants: Mapping[str, Owner], taken: Taken) -> int:
    """Whole devices that are left to the tenant `rest` when each other one has its guarantee on as few devices as hold
    it: its own shares are on some of them already."""
    reached = sum(-(-tenant.guarantee_milli // DEVICE_MILLI) for name, tenant in tenants.items() if name != rest)
    return len(devices) - reached - sum(taken.memory(rest, (device,)) > 0 for device in devices)


@dataclass(frozen=True, slots=True)
class Chosen(Generic[F]):
    """`passed`: the devices, by index, that were passed over because `owners` are guaranteed them as a whole; none with
    `owners`: they are guaranteed all that fit."""

    fit: F
    placement: Placement
    passed: tuple[int, ...] = ()
    owners: tuple[str, ...] = ()


def choose(options: Sequence[tuple[float, F]], placement: Placement, there: Open) -> Chosen[F]:
    """`options`: those that fit, at least one, each with the fraction of its memory and that of its time that would
    stay free, added. A share that would take a guaranteed whole device wherever it fits is packed."""
    owners: tuple[str, ...] = ()
    if placement == "spread":
        owners = tuple(one.tenant for one in there.wholes)
        kept = [option for option in options if there.kept(option[1])]
        if kept:
            fit = min(kept, key=lambda option: (-option[0], option[1].index))[1]
            passed = tuple(sorted(option[1].index for option in options if option not in kept))
            return Chosen(fit, "spread", passed, owners if passed else ())
    return Chosen(min(options, key=lambda option: (option[0], option[1].index))[1], "pack", (), owners)
