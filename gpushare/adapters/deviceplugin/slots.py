"""Pure functions of slots: which there are, which to prefer, what they are worth, and which grants must end."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpushare.errors import RefusedError, UsageError
from gpushare.policy.quota.shares import DEVICE_MILLI
from gpushare.text.units import PAGE

Json: TypeAlias = Any

KEYS = "kubernetes/slots/"
"""Prefix of the key of every grant of slots."""
NAME_MAX = 63  # kubelet's limit on the characters of a slot's name
SLOTS_MAX = 100
"""Per device. A grant's key contains its slot numbers, and keys are limited in length."""

UNLISTED_SECONDS = 30.0
"""Maximum time from the making of a grant until kubelet first lists its pod."""

SET_MAX = 32
"""Containers of one pod that use slots again."""
_POOLS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Slot:
    """One part of a device. `numa`: the device's NUMA node, if known."""

    name: str
    healthy: bool
    numa: int | None


@dataclass(frozen=True, slots=True)
class Sizes:
    """How devices are divided. `count`: slots per device."""

    count: int

    def of(self, device: Json, slots: int) -> tuple[int, int]:
        """Returns the bytes and milli of this number of slots; all slots together are the whole device."""
        capacity = device["capacity"]
        memory = capacity["memory"] * slots // self.count
        return memory - memory % PAGE, DEVICE_MILLI * slots // self.count

    def share(self, slots: int) -> Json:
        """Returns the same as fields of a GrantRequest for a device that is not chosen yet."""
        return {"memory": f"{100 * slots / self.count:.6f}%", "time": DEVICE_MILLI * slots // self.count}


def slot_name(device_id: str, number: int) -> str:
    """Returns a slot's name. Raises UsageError if it is too long for kubelet."""
    name = f"{device_id}.{number}"
    if len(name) > NAME_MAX:
        raise UsageError(f"{name} is longer than {NAME_MAX} characters, which Kubernetes gives a device's name")
    return name


def slots(devices: Iterable[Json], grants: Iterable[Json], sizes: Sizes, keys: str = KEYS) -> list[Slot]:
    """Returns all slots of the node. Unhealthy are those of a device that does not work or is drained, and as many of a
    device's slots as no longer fit alongside grants that are not this plugin's."""
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
    """Returns the numbers of unused slots for which a grant would be refused."""
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
    # Rounded up: a slot that fits only in part is lost.
    over = max(-(-memory // max(one_memory, 1)), -(-time // max(one_time, 1)))
    free = [number for number in reversed(range(sizes.count)) if number not in used]
    return free[:over]


def chosen(names: Sequence[str], devices: Iterable[Json], sizes: Sizes) -> tuple[Json, frozenset[int]]:
    """Returns the device and the numbers of these slots. Raises RefusedError if they are of several devices, UsageError
    if one is unknown."""
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
    """Returns the key of the grant for some slots of a device. `nonce`: the allocation's, since a later pod may get the
    same slots."""
    return f"{key_prefix(device_id, keys)}{sum(1 << number for number in those):x}/{nonce}"


def key_prefix(device_id: str, keys: str = KEYS) -> str:
    """Returns the prefix of the keys of all grants for slots of a device."""
    return f"{keys}{device_id}/"


def is_slots(grant: Json, keys: str = KEYS) -> bool:
    """Whether it is a grant of the plugin whose keys begin with `keys`."""
    return (grant["key"] or "").startswith(keys)


def numbers(grant: Json) -> set[int]:
    """Returns the slot numbers of a grant of ours; empty if its key is malformed."""
    try:
        mask = int(grant["key"].split("/")[-2], 16)
    except (ValueError, IndexError):
        return set()
    return {number for number in range(SLOTS_MAX) if mask >> number & 1}


def names(grant: Json) -> set[str]:
    """Returns the names of the slots of a grant of ours."""
    return {f"{part['id']}.{number}" for part in grant["devices"] for number in numbers(grant)}


def overlapping(grants: Iterable[Json], wanted: Collection[str], keys: str = KEYS) -> list[str]:
    """Returns the ids of grants that have any of these slots. Where a scheduler gives out only slots that nobody has,
    those who had them are gone."""
    return [grant["id"] for grant in grants if is_slots(grant, keys) and names(grant) & set(wanted)]


def sets(grants: Iterable[Json], keys: str = KEYS) -> dict[str, list[Json]]:
    """Returns the plugin's grants by set: those of one pod that run in turn, oldest first."""
    out: dict[str, list[Json]] = {}
    for grant in sorted(grants, key=lambda grant: int(grant["created_ns"])):
        if is_slots(grant, keys):
            turn = grant.get("in_turn")
            out.setdefault(turn["set"] if turn is not None else grant["id"], []).append(grant)
    return out


def of_set(grants: Iterable[Json]) -> frozenset[str]:
    """Returns the names of all slots of these grants."""
    return frozenset[str]().union(*map(names, grants))


def may_continue(grants: Sequence[Json], wanted: Collection[str]) -> bool:
    """Whether kubelet may have given `wanted` to one more container of the pod that has this set of grants; if not, the
    pod is gone.

    kubelet allocates for all containers of a pod before it starts any of them. The slots of an init container may be
    used again by the pod's later containers, those of another container may not; and a container gets slots that no
    other has only after all that may be used again (kubelet's devicemanager, since Kubernetes 1.12)."""
    if any(grant["phase"] != "reserved" for grant in grants):
        return False
    used = frozenset[str]()
    pools = {used}  # what may be left to use again, whichever of the containers are init containers
    for grant in grants:
        own = frozenset(names(grant))
        possible = [pool for pool in pools if _follows(own, pool, used)]
        pools = {pool | own for pool in possible} | {pool - own for pool in possible}
        used |= own
        if len(pools) > _POOLS_MAX:
            return True
    return any(_follows(frozenset(wanted), pool, used) for pool in pools)


def _follows(own: frozenset[str], pool: frozenset[str], used: frozenset[str]) -> bool:
    """Whether kubelet gives `own` to a container when `pool` may be used again of what the pod has `used`."""
    return (own <= pool or pool <= own) and used.isdisjoint(own - pool)


def over(
    grants: Iterable[Json], listed: Collection[str], seen: Collection[str], ages: Mapping[str, float], *, trusted: bool
) -> list[str]:
    """Returns the ids of idle grants whose pods are gone. `listed`: slots that kubelet lists for pods, for as long as
    they are there; not those of init containers that end. `seen`: grants of whose slots it has listed some before.
    Others may belong to pods that are not listed yet, or to init containers whose slots no other container has: they
    end with their set, or after UNLISTED_SECONDS, if kubelet is `trusted` to know all its pods. `ages`: monotonic
    seconds since each was seen."""
    out = []
    for own in sets(grants).values():
        ids = [grant["id"] for grant in own]
        known = any(one in seen for one in ids) or (trusted and all(ages[one] >= UNLISTED_SECONDS for one in ids))
        all_over = known and all(map(is_idle, own)) and of_set(own).isdisjoint(listed)
        gone = [grant["id"] for grant in own if is_idle(grant) and names(grant).isdisjoint(listed)]
        out += ids if all_over else [one for one in gone if one in seen]
    return out


def is_idle(grant: Json) -> bool:
    """Whether nothing runs in the grant."""
    return grant["phase"] in ("reserved", "bound")


def preferred(available: Sequence[str], must: Sequence[str], size: int, first: str | None = None) -> list[str]:
    """Returns `size` of the available slots, including `must`: all of one device if possible, which is `first` or, if
    that does not have them, the one with the fewest available, so that others stay whole."""
    by_device: dict[str, list[str]] = {}
    for name in available:
        by_device.setdefault(_device(name), []).append(name)
    of_must = {_device(name) for name in must}
    fits = [
        (device != first, len(there), device)
        for device, there in by_device.items()
        if len({*there, *must}) >= size and of_must <= {device}
    ]
    # If no device fits, the allocation will be refused, so that any order does.
    order = [min(fits)[2]] if fits else [device for _, device in sorted((len(b), a) for a, b in by_device.items())]
    rest = [name for device in order for name in sorted(by_device[device], key=_number) if name not in must]
    return [*must, *rest][:size]


def _device(name: str) -> str:
    return name.rpartition(".")[0]


def _number(name: str) -> int:
    last = name.rpartition(".")[2]
    return int(last) if last.isdecimal() else 0


def listed(pods: Iterable[Mapping[str, Any]], resource: str) -> set[str]:
    """Returns the slots that pods have, from the answer of kubelet's PodResourcesLister."""
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
    """A reservation of slots while a grant is made for them. Compared by identity."""

    names: tuple[str, ...]


class Asked:
    """Reservations in progress, by slot. Of two for the same slot the later one is valid: a slot is allocated again
    only after the first allocation was abandoned."""

    def __init__(self) -> None:
        self._latest: dict[str, Reservation] = {}

    def begin(self, names: Collection[str]) -> Reservation:
        """Begins a reservation."""
        mine = Reservation(tuple(names))
        self._latest.update(dict.fromkeys(mine.names, mine))
        return mine

    def check(self, mine: Reservation, *, waits: bool) -> None:
        """Raises RefusedError if the reservation is abandoned. `waits`: whether the caller still waits."""
        if not waits or any(self._latest.get(name) is not mine for name in mine.names):
            raise RefusedError("nobody waits for these slots any more, or they were given out again: ask again")

    def end(self, mine: Reservation) -> None:
        """Ends a reservation, successful or not."""
        for name in mine.names:
            if self._latest.get(name) is mine:
                del self._latest[name]
