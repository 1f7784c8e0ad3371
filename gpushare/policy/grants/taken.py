"""What the grants of a node have taken of its devices and of their tenants' guarantees, as admission counts it."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from gpushare.policy.quota.shares import DEVICE_MILLI


@dataclass(frozen=True, slots=True)
class Holding:
    """One admitted grant on one device. `memory_bytes`: what it takes of the device now. `away_bytes`: what it has in
    host memory and is to get back here. `reserved_milli`: what `guaranteed_milli` is when all devices work and its
    tenant has all it was promised, None: the same."""

    grant: str
    tenant: str
    device: str
    memory_bytes: int
    time_milli: int
    guaranteed_milli: int
    limit_milli: int = DEVICE_MILLI
    gang: str | None = None
    reserved_milli: int | None = None
    away_bytes: int = 0

    @property
    def reserved(self) -> int:
        """Milli that are kept for it when all devices work."""
        return self.guaranteed_milli if self.reserved_milli is None else self.reserved_milli


@dataclass(slots=True)
class Sum:
    """Sums of the holdings on one device, or of one tenant."""

    memory_bytes: int = 0
    time_milli: int = 0
    guaranteed_milli: int = 0
    reserved_milli: int = 0
    away_bytes: int = 0

    def count(self, holding: Holding, sign: int) -> None:
        """`sign`: 1 adds the holding, -1 removes it."""
        self.memory_bytes += sign * holding.memory_bytes
        self.time_milli += sign * holding.time_milli
        self.guaranteed_milli += sign * holding.guaranteed_milli
        self.reserved_milli += sign * holding.reserved
        self.away_bytes += sign * holding.away_bytes

    def lent(self, memory: int, capacity: int) -> int:
        """How much of `memory` would be in room that grants on the device are to get back. `capacity`: of the
        device."""
        free = capacity - self.memory_bytes - self.away_bytes
        return min(memory, max(0, memory - free)) if self.away_bytes else 0


_NOTHING = Sum()


class Taken:
    """All holdings, with the sums that admission asks for: adding a grant costs the same however many there are."""

    def __init__(self, holdings: Iterable[Holding] = ()) -> None:
        self._on: dict[str, dict[str, Holding]] = {}
        self._devices: dict[str, Sum] = {}
        self._tenants: dict[str, Sum] = {}
        self._memory: dict[tuple[str, str], int] = {}
        self._away: dict[tuple[str, str], int] = {}
        """Both by tenant and device."""
        self._places: dict[str, int] = {}
        """Number of holdings by grant."""
        for holding in holdings:
            self.put(holding)

    def copy(self) -> "Taken":
        """An independent copy."""
        other = Taken()
        other._on = {device: dict(here) for device, here in self._on.items()}
        other._devices = {name: replace(own) for name, own in self._devices.items()}
        other._tenants = {name: replace(own) for name, own in self._tenants.items()}
        other._memory, other._away, other._places = dict(self._memory), dict(self._away), dict(self._places)
        return other

    def __iter__(self) -> Iterator[Holding]:
        for here in self._on.values():
            yield from here.values()

    def put(self, holding: Holding) -> None:
        """Adds or replaces a holding."""
        here = self._on.setdefault(holding.device, {})
        if (old := here.get(holding.grant)) is not None:
            self._count(old, -1)
        here[holding.grant] = holding
        self._count(holding, 1)

    def drop(self, grant: str, device: str) -> None:
        """Removes a holding."""
        self._count(self._on[device].pop(grant), -1)

    def holders(self, device: str) -> Collection[str]:
        """The grants on the device."""
        return self._on.get(device, {}).keys()

    def get(self, grant: str, device: str) -> Holding:
        """A holding that exists."""
        return self._on[device][grant]

    def _count(self, holding: Holding, sign: int) -> None:
        self._devices.setdefault(holding.device, Sum()).count(holding, sign)
        self._tenants.setdefault(holding.tenant, Sum()).count(holding, sign)
        key = holding.tenant, holding.device
        self._memory[key] = self._memory.get(key, 0) + sign * holding.memory_bytes
        if holding.away_bytes:
            self._away[key] = self._away.get(key, 0) + sign * holding.away_bytes
        places = self._places.get(holding.grant, 0) + sign
        if places:
            self._places[holding.grant] = places
        else:
            del self._places[holding.grant]

    @property
    def grants(self) -> int:
        """Number of grants."""
        return len(self._places)

    def on(self, device: str) -> Sum:
        """Sums of one device."""
        return self._devices.get(device, _NOTHING)

    def of(self, tenant: str) -> Sum:
        """Sums of one tenant."""
        return self._tenants.get(tenant, _NOTHING)

    def memory(self, tenant: str, devices: Collection[str]) -> int:
        """Bytes of one tenant on these devices."""
        return sum(self._memory.get((tenant, device), 0) for device in devices)

    def away(self, tenant: str, devices: Collection[str]) -> int:
        """Bytes that one tenant's grants are to get back on these devices."""
        return sum(self._away.get((tenant, device), 0) for device in devices)

    def of_gang(self, device: str, tenant: str, gang: str) -> str | None:
        """A grant of this gang on the device, None: there is none."""
        here = self._on.get(device, {}).values()
        return next((held.grant for held in here if (held.gang, held.tenant) == (gang, tenant)), None)
