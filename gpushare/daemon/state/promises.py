"""What the living grants hold of the devices and of their tenants' guarantees, updated as grants come and go: admitting
one more costs the same however many there are. All is recomputed when tenants or devices change."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.drains import Drain
from gpushare.daemon.state.tenants import Tenants
from gpushare.node.devices import Device, facts
from gpushare.policy.grants import admission, turns
from gpushare.policy.grants.admission import Place
from gpushare.policy.grants.taken import Holding, Taken
from gpushare.policy.grants.turns import Member
from gpushare.policy.quota import capacity as capacity_policy
from gpushare.policy.quota.capacity import Key, Promise, Standing
from gpushare.policy.quota.shares import DEVICE_MILLI, Placed, Workload
from gpushare.policy.quota.tenant import TenantPolicy
from gpushare.tenants.quotas import DEFAULT

WORKLOAD = {"interactive": Workload.INTERACTIVE, "inference": Workload.INFERENCE, "training": Workload.TRAINING}


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a device cannot be used, and since when (wall time)."""

    reason: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class _Now:
    """`devices`, `tenants`, `policies`: as admission and the rules of shares take them."""

    devices: list[admission.Device]
    tenants: dict[str, admission.Tenant]
    policies: dict[str, TenantPolicy]
    standing: Standing
    taken: Taken


SetName = tuple[str, str]
"""A tenant, and its name for grants that run in turn."""


@dataclass(frozen=True, slots=True)
class _InTurn:
    """A grant of a set, as it was asked for and given."""

    asked: Asked
    place: Place

    @property
    def member(self) -> Member:
        """As the rules of turns take it."""
        assert self.asked.request.in_turn is not None
        return Member(frozenset(self.asked.request.in_turn.parts), self.place)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What `_Now` was computed from: the number of tenant changes, and copies of the rest."""

    tenants: int
    faults: Mapping[str, Fault]
    drains: Mapping[str, Drain]
    devices: Sequence[Device]


class Promises:
    """Of grants that run in turn, each part counts once (gpushare/policy/grants/turns.py). `devices`, `faults` and
    `drains` are the daemon's own objects, which the daemon changes."""

    def __init__(
        self,
        devices: Sequence[Device],
        tenants: Tenants,
        faults: Mapping[str, Fault],
        drains: Mapping[str, Drain] | None = None,
    ) -> None:
        self._devices, self._tenants, self._faults = devices, tenants, faults
        self._drains = drains if drains is not None else {}
        self._placed: dict[str, list[Placed]] = {}
        self._holdings: dict[str, list[Holding]] = {}
        """Both by grant; in the second, `guaranteed_milli` is what was reserved."""
        self._turns: dict[SetName, dict[str, _InTurn]] = {}
        """The grants of each set that run in turn; first the one that ran last."""
        self._set_of: dict[str, SetName] = {}
        self._grants: Counter[str] = Counter()
        """Number of grants by tenant."""
        self.changes = 0
        """Number of grants that have come or gone."""
        self._seen = _Seen(-1, {}, {}, [])
        self._now: _Now | None = None

    def copy(self) -> "Promises":
        """A copy to plan with: its changes change nothing here."""
        other = Promises(self._devices, self._tenants, self._faults, self._drains)
        other._placed, other._holdings = dict(self._placed), dict(self._holdings)
        other._turns = {name: dict(own) for name, own in self._turns.items()}
        other._set_of = dict(self._set_of)
        other._grants = self._grants.copy()
        now = self.now
        other._now = replace(now, standing=now.standing.copy(), taken=now.taken.copy())
        other._seen = self._seen
        return other

    def put(self, grant: str, asked: Asked, places: Iterable[Place]) -> None:
        """Adds a grant, or gives it other places."""
        if grant in self._placed:
            self.drop(grant)
        self.changes += 1
        self._grants[asked.tenant] += 1
        if (name := _set(asked)) is None:
            self._count(grant, asked, places)
            return
        [place] = places
        self._set_of[grant] = name
        self._turns.setdefault(name, {})[grant] = _InTurn(asked, place)
        self._recount(name)

    def drop(self, grant: str) -> None:
        """Removes a grant; an unknown one is ignored."""
        self.changes += 1
        if grant in self._placed:
            self._grants[self._placed[grant][0].tenant] -= 1
        self._uncount(grant)
        if (name := self._set_of.pop(grant, None)) is not None:
            del self._turns[name][grant]
            self._recount(name)

    def beside(self, asked: Asked) -> list[tuple[str, Member]]:
        """The grants of the set that is asked for, which run in turn with the one that is asked for."""
        name = _set(asked)
        return [(grant, other.member) for grant, other in self._turns.get(name, {}).items()] if name is not None else []

    def begin_turn(self, grant: str) -> bool:
        """Gives all parts that it has to a grant that is started, and takes them from others of its set. Returns
        whether that changes anything."""
        name = self._set_of.get(grant)
        if name is None or next(iter(own := self._turns[name])) == grant:
            return False
        self._turns[name] = {grant: own.pop(grant), **own}
        self.changes += 1
        self._recount(name)
        return True

    def _recount(self, name: SetName) -> None:
        own = self._turns[name]
        if not own:
            del self._turns[name]
            return
        for grant in own:
            self._uncount(grant)
        places = turns.counted([one.member for one in own.values()])
        for (grant, one), place in zip(own.items(), places, strict=True):
            self._count(grant, one.asked, [place])

    def _count(self, grant: str, asked: Asked, places: Iterable[Place]) -> None:
        now, places = self.now, list(places)
        self._placed[grant] = [_placed(grant, asked, place) for place in places]
        self._holdings[grant] = [_holding(grant, asked, place) for place in places]
        for holding in self._holdings[grant]:
            now.taken.put(holding)
        self._settle(now, now.standing.put(self._placed[grant]))

    def _uncount(self, grant: str) -> None:
        now = self.now
        for holding in self._holdings.pop(grant, ()):
            now.taken.drop(grant, holding.device)
        self._settle(now, now.standing.drop(self._placed.pop(grant, [])))

    def grants(self, tenant: str) -> int:
        """Number of the tenant's grants."""
        return self._grants[tenant]

    def placed(self, grants: Iterable[str]) -> list[Placed]:
        """The places of these grants, each grant's in order, with what is left of their guarantees."""
        kept = self.now.standing.kept
        return [_with_guarantee(row, kept[row.grant, row.device]) for grant in grants for row in self._placed[grant]]

    @property
    def now(self) -> _Now:
        """Everything for the present tenants, devices and grants; recomputed where tenants or devices have changed."""
        seen = self._seen
        if (
            self._now is None
            or seen.tenants != self._tenants.changes
            or seen.faults != self._faults
            or seen.drains != self._drains
            or seen.devices != self._devices
        ):
            self._now = self._work_out()
            self._seen = _Seen(self._tenants.changes, {**self._faults}, {**self._drains}, [*self._devices])
        return self._now

    def _work_out(self) -> _Now:
        working = [device for device in self._devices if device.id not in self._faults]
        memory = sum(device.memory_bytes - device.reserved_bytes for device in working)
        admitted = self._tenants.admission()
        promised = {name: Promise(tenant.guarantee_milli, tenant.memory_bytes) for name, tenant in admitted.items()}
        capacity = Promise(DEVICE_MILLI * len(working), memory)
        placed = [row for rows in self._placed.values() for row in rows]
        standing = capacity_policy.standing(promised, DEFAULT, capacity, placed, {device.id for device in working})
        tenants = {
            name: replace(
                tenant,
                guarantee_milli=standing.have[name].time,
                memory_bytes=standing.have[name].memory,
                promised_milli=tenant.guarantee_milli,
            )
            for name, tenant in admitted.items()
        }
        policies = {name: tenant.policy for name, tenant in tenants.items()}
        taken = Taken(holding for rows in self._holdings.values() for holding in rows)
        now = _Now([self._device(device) for device in self._devices], tenants, policies, standing, taken)
        self._settle(now, standing.kept)
        return now

    def _settle(self, now: _Now, keys: Iterable[Key]) -> None:
        for key in keys:
            holding, kept = now.taken.get(*key), now.standing.kept[key]
            if holding.guaranteed_milli != kept:
                now.taken.put(replace(holding, guaranteed_milli=kept))

    def _device(self, device: Device) -> admission.Device:
        fault, drain = self._faults.get(device.id), self._drains.get(device.id)
        why = drain.fault if drain is not None else ""
        return admission.Device(
            id=device.id,
            index=device.index,
            memory_bytes=device.memory_bytes,
            reserved_bytes=device.reserved_bytes,
            context_bytes=device.context_bytes,
            fault=f"it does not work: {fault.reason}" if fault is not None else why,
            facts=facts(device),
            links=device.links,
        )


def _set(asked: Asked) -> SetName | None:
    return (asked.tenant, asked.request.in_turn.set) if asked.request.in_turn is not None else None


def _placed(grant: str, asked: Asked, place: Place) -> Placed:
    return Placed(
        grant=grant,
        tenant=asked.tenant,
        device=place.device,
        time_milli=place.time_milli,
        guaranteed_milli=place.guaranteed_milli,
        limit_milli=place.limit_milli,
        workload=WORKLOAD[asked.request.class_],
    )


def _with_guarantee(row: Placed, milli: int) -> Placed:
    return row if row.guaranteed_milli == milli else replace(row, guaranteed_milli=milli)


def _holding(grant: str, asked: Asked, place: Place) -> Holding:
    return Holding(
        grant=grant,
        tenant=asked.tenant,
        device=place.device,
        memory_bytes=place.here_bytes,
        time_milli=place.time_milli,
        guaranteed_milli=place.guaranteed_milli,
        limit_milli=place.limit_milli,
        gang=asked.gang_id,
        reserved_milli=place.guaranteed_milli,
        away_bytes=max(0, place.hosted_bytes - place.borrowed_bytes),
    )
