"""Which slots there are, which to prefer, what some of them are worth, and whose grants are over. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpushare.errors import RefusedError, UsageError
from gpushare.policy.shares import DEVICE_MILLI

Json: TypeAlias = Any

KEYS = "kubernetes/slots/"
"""Begins the key of every grant of slots."""
NAME_MAX = 63  # characters of a slot's name, of kubelet
SLOTS_MAX = 100
"""Per device. The numbers of a grant's slots are in its key, which has an end."""

UNLISTED_SECONDS = 30.0
"""For which a grant may be older than kubelet's first word of its pod."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """One part of a device. `numa`: of the device, where known."""

    name: str
    healthy: bool
    numa: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How devices are cut. `count`: slots of each device."""

    count: int

    def of(self, device: Json, slots: int) -> tuple[int, int]:
        """Bytes and milli that so many slots of it are worth: all of them are the whole device."""
        capacity = device["capacity"]
        memory = capacity["memory"] * slots // self.count
        return memory - memory % _MIB, DEVICE_MILLI * slots // self.count


def slot_name(device_id: str, number: int) -> str:
    """Raises UsageError for a device whose name is too long to have slots."""
    name = f"{device_id}.{number}"
    if len(name) > NAME_MAX:
        raise UsageError(f"{name} is longer than {NAME_MAX} characters, which Kubernetes gives a device's name")
    return name


def slots(devices: Iterable[Json], grants: Iterable[Json], sizes: Sizes, keys: str = KEYS) -> list[Slot]:
    """All slots of the node. Unhealthy: those of a device that does not work or is drained, and as many of a device
    as no longer fit beside what others than this plugin have of it."""
    grants = list(grants)
    out = []
    for device in devices:
        works = device["health"] == "healthy" and device.get("state", "ready") == "ready"
        lost = set(_lost(device, grants, sizes, keys)) if works else set(range(sizes.count))
        numa = device["attributes"].get("numa_node")
        where = int(numa) if numa is not None and numa.isdecimal() else None
        out += [Slot(slot_name(device["id"], number), number not in lost, where) for number in range(sizes.count)]
    return out


def _lost(device: Json, grants: Iterable[Json], sizes: Sizes, keys: str) -> list[int]:
    """Numbers of slots that are nobody's here and would be refused."""
    memory, time, used = 0, 0, set()
    for grant in grants:
        for part in grant["devices"]:
            if part["id"] != device["id"]:
                continue
            if is_slots(grant, keys):
                used |= numbers(grant)
            else:
                memory += part["memory_limit_bytes"]
                time += part["time_milli"]
    one_memory, one_time = sizes.of(device, 1)
    # The last slots are not worth less than the first, but all together are no more than the device.
    over = max(-(-memory // max(one_memory, 1)), -(-time // max(one_time, 1)))
    free = [number for number in reversed(range(sizes.count)) if number not in used]
    return free[:over]


def chosen(names: Sequence[str], devices: Iterable[Json], sizes: Sizes) -> tuple[Json, frozenset[int]]:
    """The device and the numbers of these slots. Raises RefusedError where they are of several devices, UsageError
    where one is unknown."""
    known = {slot_name(one["id"], number): (one, number) for one in devices for number in range(sizes.count)}
    found = []
    for name in names:
        if name not in known:
            raise UsageError(f"slot {name[:80]!r} is unknown: this node's are DEVICE.0 to DEVICE.{sizes.count - 1}")
        found.append(known[name])
    ids = {device["id"] for device, _ in found}
    if len(ids) != 1:
        raise RefusedError(
            f"the container's {len(names)} slots are of {len(ids)} devices ({', '.join(sorted(ids)) or 'none'}): a"
            f" share is of one device, which has {sizes.count} slots: ask for fewer, or wait until one has as many free"
        )
    return found[0][0], frozenset(number for _, number in found)


def key(device_id: str, those: Collection[int], nonce: str, keys: str = KEYS) -> str:
    """Of the grant for some slots of a device. `nonce`: of the allocation, since the next pod may get the same."""
    return f"{key_prefix(device_id, keys)}{sum(1 << number for number in those):x}/{nonce}"


def key_prefix(device_id: str, keys: str = KEYS) -> str:
    """Begins the keys of all grants for slots of a device."""
    return f"{keys}{device_id}/"


def is_slots(grant: Json, keys: str = KEYS) -> bool:
    """Whether it is a grant of this plugin, or of the one with other `keys`."""
    return (grant["key"] or "").startswith(keys)


def numbers(grant: Json) -> set[int]:
    """Those of a grant of ours; none where its key makes no sense."""
    try:
        mask = int(grant["key"].split("/")[-2], 16)
    except (ValueError, IndexError):
        return set()
    return {number for number in range(SLOTS_MAX) if mask >> number & 1}


def names(grant: Json) -> set[str]:
    """The slots' names of a grant of ours."""
    return {f"{part['id']}.{number}" for part in grant["devices"] for number in numbers(grant)}


def overlapping(grants: Iterable[Json], wanted: Collection[str], keys: str = KEYS) -> list[str]:
    """Ids of grants that have some of these slots. kubelet gives out what no pod has, so those pods are gone."""
    return [grant["id"] for grant in grants if is_slots(grant, keys) and names(grant) & set(wanted)]


def over(
    grants: Iterable[Json], listed: Collection[str], seen: Collection[str], ages: Mapping[str, float], *, trusted: bool
) -> list[str]:
    """Ids of grants that nothing runs in and no pod has any more. `listed`: slots that kubelet says pods have. `seen`:
    grants of which it has said so before. `ages`: seconds that the plugin has known each, by a clock that nobody sets.
    The others may be of pods that are only about to be listed, and of pods that
    it does not know again yet where it is not `trusted`."""
    out = []
    for grant in grants:
        old = trusted and ages[grant["id"]] >= UNLISTED_SECONDS
        if is_slots(grant) and is_idle(grant) and not names(grant) & set(listed) and (old or grant["id"] in seen):
            out.append(grant["id"])
    return out


def is_idle(grant: Json) -> bool:
    """Whether nothing runs in it."""
    return grant["phase"] in ("reserved", "bound")


def preferred(available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    """`size` of the available slots, `must` among them: all of one device where one has as many, and of those the one
    with the fewest left, so that devices stay whole for who needs one."""
    by_device: dict[str, list[str]] = {}
    for name in available:
        by_device.setdefault(_device(name), []).append(name)
    of_must = {_device(name) for name in must}
    fits = [
        (len(there), device)
        for device, there in by_device.items()
        if len({*there, *must}) >= size and of_must <= {device}
    ]
    # Where none fits, allocation will refuse: the fullest first, which is as good as any.
    order = [min(fits)[1]] if fits else [device for _, device in sorted((len(b), a) for a, b in by_device.items())]
    rest = [name for device in order for name in sorted(by_device[device], key=_number) if name not in must]
    return [*must, *rest][:size]


def _device(name: str) -> str:
    return name.rpartition(".")[0]


def _number(name: str) -> int:
    last = name.rpartition(".")[2]
    return int(last) if last.isdecimal() else 0


def listed(pods: Iterable[Mapping[str, Any]], resource: str) -> set[str]:
    """The slots that pods have, of the answer of kubelet's PodResourcesLister."""
    return {
        slot
        for pod in pods
        for container in pod["containers"]
        for device in container["devices"]
        if device["resource"] == resource
        for slot in device["ids"]
    }


@dataclass(frozen=True, slots=True, eq=False)
class Reservation:
    """Of slots, while a grant is made for them. Equal to itself alone."""

    names: tuple[str, ...]


class Asked:
    """Reservations that are under way, by their slots: of two for the same slot the later one counts, since a slot is
    given out again only when the first one has been given up."""

    def __init__(self) -> None:
        self._latest: dict[str, Reservation] = {}

    def begin(self, names: Collection[str]) -> Reservation:
        """One more."""
        mine = Reservation(tuple(names))
        self._latest.update(dict.fromkeys(mine.names, mine))
        return mine

    def check(self, mine: Reservation, *, waits: bool) -> None:
        """Raises RefusedError where nobody wants it any more. `waits`: who asked for it does."""
        if not waits or any(self._latest.get(name) is not mine for name in mine.names):
            raise RefusedError("nobody waits for these slots any more, or they were given out again: ask again")

    def end(self, mine: Reservation) -> None:
        """It is answered."""
        for name in mine.names:
            if self._latest.get(name) is mine:
                del self._latest[name]
