"""The accounts of the host pool: what each grant has reserved, and what its processes have drawn of that.

A byte of the pool is free, reserved for a grant, or used. Used are those of segments that a process has, and of those
that it gave back and that are not empty yet: these are nobody's, and not free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpushare.errors import RefusedError
from gpushare.text.units import format_size

_SEGMENTS_MOST = 8192
"""Of one grant, as a bound on the work of its end."""


@dataclass(frozen=True, slots=True)
class TenantLimit:
    """How much of the pool a tenant may have, with those below it; None: as much as there is."""

    tenant: str
    most: int | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes of the pool by state."""

    free: int
    reserved: int
    used: int


@dataclass(slots=True, eq=False)
class Segment:
    """A part of the pool that one process has. `adopted`: since before the daemon was started again, and all that the
    process has; there is no file of it to empty."""

    grant: str
    slot: int
    generation: int
    size: int
    adopted: bool = False


@dataclass(slots=True)
class _Account:
    """One grant's: segments by slot and generation of the process that has them, their number and bytes. `tenants`: its
    own and all above it."""

    reserved: int = 0
    segments: dict[tuple[int, int], set[Segment]] = field(default_factory=dict)
    count: int = 0
    used: int = 0
    tenants: tuple[str, ...] = ()

    @property
    def taken(self) -> int:
        """More is used than reserved of what processes had before a restart, or still have after `release`."""
        return max(self.reserved, self.used)

    def add(self, segment: Segment) -> None:
        self.segments.setdefault((segment.slot, segment.generation), set()).add(segment)
        self.count += 1
        self.used += segment.size

    def has(self, segment: Segment) -> bool:
        return segment in self.segments.get((segment.slot, segment.generation), ())

    def remove(self, segment: Segment) -> None:
        own = self.segments[segment.slot, segment.generation]
        own.remove(segment)
        if not own:
            del self.segments[segment.slot, segment.generation]
        self.count -= 1
        self.used -= segment.size


class PoolBook:
    """Decides on reservations and draws. A method that raises has changed nothing."""

    def __init__(self, size: int, segments_most: int) -> None:
        """`segments_most`: of how many files the pool may consist, each of which takes a descriptor."""
        self.size = size
        self._segments_most = segments_most
        self._accounts: dict[str, _Account] = {}
        self._leaving: set[Segment] = set()
        self._leaving_bytes = 0

    def counts(self) -> Counts:
        """What is free, reserved and not drawn, and used."""
        used = self._used()
        reserved = sum(account.taken - account.used for account in self._accounts.values())
        return Counts(max(0, self.size - used - reserved), reserved, used)

    def _used(self) -> int:
        return sum(account.used for account in self._accounts.values()) + self._leaving_bytes

    @property
    def segment_count(self) -> int:
        """Pieces of all grants, with those that are not empty yet."""
        return sum(account.count for account in self._accounts.values()) + len(self._leaving)

    def reserved(self, grant: str) -> int:
        """The grant's reservation."""
        account = self._accounts.get(grant)
        return account.reserved if account is not None else 0

    def reserve(self, grant: str, size: int, limits: Sequence[TenantLimit] = (), *, kept: int = 0) -> None:
        """Makes the grant's reservation exactly `size`. `limits`: its tenant's, and of those above it. `kept`: bytes
        that count as free and are not. Raises RefusedError."""
        account = self._accounts.get(grant) or _Account()
        more = max(size, account.used) - account.taken
        free = max(0, self.counts().free - kept)
        if more > free:
            raise RefusedError(
                f"the host pool has {format_size(free)} free of {format_size(self.size)}, and {format_size(more)} more"
                f" are needed: {_advice(self.size)}"
            )
        for limit in limits:
            has = account.taken + self._others(limit.tenant, account)
            if limit.most is not None and more > 0 and has + more > limit.most:
                raise RefusedError(
                    f"tenant {limit.tenant} has {format_size(has)} of the {format_size(limit.most)} of host memory that"
                    f" it may have, and {format_size(more)} more are needed: let another of its grants come back to its"
                    " device first, or raise host_memory in tenants.toml"
                )
        account.reserved, account.tenants = size, tuple(limit.tenant for limit in limits)
        self._accounts[grant] = account
        self._tidy(grant)

    def _others(self, tenant: str, but: _Account) -> int:
        return sum(one.taken for one in self._accounts.values() if tenant in one.tenants and one is not but)

    def release(self, grant: str) -> None:
        """Ends the grant's reservation. What its processes have stays theirs, and used."""
        if grant in self._accounts:
            self._accounts[grant].reserved = 0
            self._tidy(grant)

    def draw(self, grant: str, slot: int, generation: int, size: int) -> Segment:
        """Takes a segment for one of the grant's processes from its reservation. Raises RefusedError."""
        account = self._accounts.get(grant) or _Account()
        left = max(0, account.reserved - account.used)
        if size > left:
            raise RefusedError(f"the grant has {format_size(left)} of the host pool left, not {format_size(size)}")
        # No single grant takes the descriptors of all others, nor has so many that taking them back takes long.
        if self.segment_count >= self._segments_most or account.count >= min(_SEGMENTS_MOST, self._segments_most // 4):
            raise RefusedError("the host pool is in too many pieces: take fewer and larger ones")
        segment = Segment(grant, slot, generation, size)
        account.add(segment)
        return segment

    def adopt(self, grant: str, slot: int, generation: int, size: int, limits: Sequence[TenantLimit] = ()) -> None:
        """Counts what a process has had since before the daemon was started again. `limits`: as for `reserve`, which
        nothing is refused by."""
        account = self._accounts.setdefault(grant, _Account(tenants=tuple(limit.tenant for limit in limits)))
        account.add(Segment(grant, slot, generation, size, adopted=True))

    def segments(self, grant: str, slot: int | None = None, generation: int | None = None) -> Iterator[Segment]:
        """Those of a grant, or of one of its processes."""
        account = self._accounts.get(grant)
        if account is None:
            return
        if slot is None:
            yield from [segment for own in account.segments.values() for segment in own]
        else:
            yield from list(account.segments.get((slot, generation or 0), ()))

    def give_back(self, segment: Segment) -> None:
        """Counts a segment as nobody's. It is used until it is `emptied`, unless it was adopted. One that was given
        back before is left as it is."""
        account = self._accounts.get(segment.grant)
        if account is None or not account.has(segment):
            return
        account.remove(segment)
        if not segment.adopted:
            self._leaving.add(segment)
            self._leaving_bytes += segment.size
        self._tidy(segment.grant)

    def has(self, segment: Segment) -> bool:
        """Whether it is still some process's."""
        account = self._accounts.get(segment.grant)
        return account is not None and account.has(segment)

    def emptied(self, segment: Segment) -> None:
        """Counts a segment that was given back as free."""
        if segment in self._leaving:
            self._leaving.remove(segment)
            self._leaving_bytes -= segment.size

    @property
    def overdrawn(self) -> bool:
        """Whether segments would take more than there is while those that were given back are not empty."""
        return bool(self._leaving) and self._used() > self.size

    def _tidy(self, grant: str) -> None:
        account = self._accounts[grant]
        if not account.reserved and not account.segments:
            del self._accounts[grant]


def _advice(size: int) -> str:
    if not size:
        return "give it memory with host_pool in the section [memory] of gpushare.toml"
    return "wait until other grants are back on their devices, or raise host_pool in gpushare.toml"
