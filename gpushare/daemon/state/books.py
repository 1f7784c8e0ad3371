"""What each grant got: the arbiter's counters, made continuous over restarts of the daemon, and the ledger's
periods."""

from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from gpushare.api.share import GrantDevice
from gpushare.binding.arbiter import GrantStats
from gpushare.ledger import entries
from gpushare.ledger.entries import Period, Totals
from gpushare.policy.quota import lending
from gpushare.policy.quota.lending import Had

_STEP_NS = 100_000_000
"""The clock was set if wall time differs from monotonic time by more than this in one period; NTP's slewing (0.05 %)
stays below it."""


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment on both clocks. Wall time says when, and can be set; monotonic time measures how long, and stops while
    the machine is suspended, as its devices do."""

    wall_ns: int
    mono_ns: int


@dataclass(slots=True)
class DeviceBook:
    """One grant on one device.

    `carried`: sums that earlier runs of the daemon wrote. `base`: the arbiter's counters when this run adopted the
    grant, which include work from before. `written`: the counters at the end of the last period, at `written_at`.
    `window`: the counters one second ago. `had`: what the grant had of the device in that second, and `busy_milli` for
    how much of it the device worked for the grant. `entitled_milli`: what it should get now. `shown`: the values that
    the last view was made of, and that view, which is never changed.
    """

    carried: Totals
    base: GrantStats
    written_at: Instant
    written: GrantStats = field(init=False)
    window: GrantStats = field(init=False)
    share_got_milli: int = 0
    busy_milli: int = 0
    entitled_milli: int = 0
    had: Had = field(default=Had())
    shown: tuple[tuple[object, ...], GrantDevice] | None = field(default=None, compare=False, repr=False)
    _first: bool = field(init=False)
    """Whether it has nothing from before this run."""

    def __post_init__(self) -> None:
        self.written = self.window = base = self.base
        counted = base.leased_ns, base.borrowed_ns, base.busy_ns, base.wait_ns, base.waited.count
        reclaimed = base.reclaimed.count, base.reclaimed.total_ns
        self._first = self.carried == Totals() and not any((*counted, *reclaimed))

    def total(self, stats: GrantStats) -> GrantStats:
        """The counters over the grant's whole life. Leases, wakes, revokes and histograms cover this run only."""
        if self._first and stats.waited.total_ns == stats.wait_ns:
            return stats
        return replace(
            stats,
            leased_ns=self.carried.used_ns + stats.leased_ns - self.base.leased_ns,
            borrowed_ns=self.carried.borrowed_ns + stats.borrowed_ns - self.base.borrowed_ns,
            busy_ns=self.carried.busy_ns + stats.busy_ns - self.base.busy_ns,
            wait_ns=self.carried.waited_ns + stats.wait_ns - self.base.wait_ns,
            memory_peak_bytes=max(self.carried.memory_peak_bytes, stats.memory_peak_bytes),
            waited=replace(
                stats.waited,
                count=self.carried.waits + stats.waited.count - self.base.waited.count,
                total_ns=self.carried.waited_ns + stats.wait_ns - self.base.wait_ns,
                max_ns=max(self.carried.wait_max_ns, stats.waited.max_ns),
            ),
            reclaimed=replace(
                stats.reclaimed,
                count=self.carried.reclaims + stats.reclaimed.count - self.base.reclaimed.count,
                total_ns=self.carried.reclaim_ns + stats.reclaimed.total_ns - self.base.reclaimed.total_ns,
                max_ns=max(self.carried.reclaim_max_ns, stats.reclaimed.max_ns),
            ),
        )


class Sample(Struct, frozen=True):
    """One grant on one device when a period ends. `guarantee_milli`: what is reserved for it, `served_milli`: what it
    is served with, including part of its tenant's unreserved guarantee. `scavenges`: its tenant has weight 0.
    `hosted_bytes`: of its memory, what is in host memory. `origin`: as a Period's."""

    grant_id: str
    tenant: str
    device_id: str
    device_index: int
    guarantee_milli: int
    book: DeviceBook
    stats: GrantStats
    served_milli: int = 0
    scavenges: bool = False
    hosted_bytes: int = 0
    origin: str = ""


def active(samples: list[Sample]) -> frozenset[str]:
    """Grants that have work, or had some since the last window."""
    return frozenset(
        sample.grant_id
        for sample in samples
        if sample.stats.runnable or sample.stats.busy_ns > sample.book.window.busy_ns
    )


def shares_got(samples: list[Sample], wall_ns: int) -> None:
    """Sets what each grant had of its device since the last window, `wall_ns` ago, and its share of the work done; and
    begins a new window."""
    spans = [_span(sample) for sample in samples]
    found = lending.had(spans, wall_ns)
    busy: dict[int, int] = {}
    for sample in samples:
        busy[sample.device_index] = busy.get(sample.device_index, 0) + _busy(sample)
    for sample in samples:
        whole = busy[sample.device_index]
        sample.book.share_got_milli = _busy(sample) * 1000 // whole if whole else 0
        sample.book.busy_milli = min(1000, _busy(sample) * 1000 // wall_ns) if wall_ns > 0 else 0
        sample.book.had = found.get((sample.grant_id, sample.device_id), Had())
    for sample in samples:
        sample.book.window = sample.stats


def _busy(sample: Sample) -> int:
    return max(0, sample.stats.busy_ns - sample.book.window.busy_ns)


def _span(sample: Sample) -> lending.Span:
    stats, window = sample.stats, sample.book.window
    return lending.Span(
        grant=sample.grant_id,
        device=sample.device_id,
        guarantee_milli=sample.served_milli,
        leased_ns=max(0, stats.leased_ns - window.leased_ns),
        borrowed_ns=max(0, stats.borrowed_ns - window.borrowed_ns),
        waited_ns=max(0, stats.wait_ns - window.wait_ns),
    )


def begin(since: Instant, to: Instant) -> int:
    """Wall time at which a period begins: the end of the last one or, where the clock was set since, the period's own
    end less its monotonic length."""
    elapsed = to.mono_ns - since.mono_ns
    stepped = abs(to.wall_ns - since.wall_ns - elapsed) > _STEP_NS or to.wall_ns < since.wall_ns
    return to.wall_ns - elapsed if stepped else since.wall_ns


def periods(samples: list[Sample], to: Instant) -> list[Period]:
    """Returns rows for the ledger, and begins new periods.

    What grants borrowed on a device was lent by the others on it, in proportion to what each left of its guarantee and
    extra. The part of a device that no grant is served with counts as a lender too.
    """
    there: dict[str, _Lending] = {}
    parts = []
    for sample in samples:
        part = _Part(sample, to)
        parts.append(part)
        there.setdefault(sample.device_id, _Lending()).count(part)
    rows = [_row(part, there[part.sample.device_id], to.wall_ns) for part in parts]
    for sample in samples:
        sample.book.written, sample.book.written_at = sample.stats, to
    return rows


class _Part:
    """Values of a period that are needed before its row can be made: what a grant lent depends on all other grants of
    the device."""

    __slots__ = (
        *("borrowed_ns", "extra_ns", "from_ns", "granted_ns"),
        *("sample", "served_ns", "unused_ns", "used_ns", "wall_ns"),
    )

    def __init__(self, sample: Sample, to: Instant) -> None:
        stats, written = sample.stats, sample.book.written
        self.sample = sample
        self.from_ns = begin(sample.book.written_at, to)
        self.wall_ns = to.wall_ns - self.from_ns
        self.granted_ns = self.wall_ns * sample.guarantee_milli // 1000
        self.served_ns = self.wall_ns * max(sample.guarantee_milli, sample.served_milli) // 1000
        self.used_ns = max(0, stats.leased_ns - written.leased_ns)
        self.borrowed_ns = max(0, stats.borrowed_ns - written.borrowed_ns)
        owned_ns = max(0, self.used_ns - self.borrowed_ns)
        self.unused_ns = max(0, self.served_ns - owned_ns)
        # No more than it may have of that: one that has none, and was served early, is charged what it asked for.
        self.extra_ns = max(0, min(owned_ns, self.served_ns) - self.granted_ns)


def _row(part: _Part, there: "_Lending", to_ns: int) -> Period:
    sample = part.sample
    stats, written = sample.stats, sample.book.written
    return Period(
        grant_id=sample.grant_id,
        tenant=sample.tenant,
        device=sample.device_id,
        from_ns=part.from_ns,
        to_ns=to_ns,
        granted_ns=part.granted_ns,
        used_ns=part.used_ns,
        busy_ns=max(0, stats.busy_ns - written.busy_ns),
        borrowed_ns=part.borrowed_ns,
        lent_ns=there.lent(part),
        waited_ns=max(0, stats.wait_ns - written.wait_ns),
        memory_bytes=stats.memory_bytes,
        memory_peak_bytes=stats.memory_peak_bytes,
        waits=stats.waited.count - written.waited.count,
        wait_max_ns=stats.waited.max_ns,
        reclaims=stats.reclaimed.count - written.reclaimed.count,
        reclaim_ns=stats.reclaimed.total_ns - written.reclaimed.total_ns,
        reclaim_max_ns=stats.reclaimed.max_ns,
        scavenged_ns=part.borrowed_ns if sample.scavenges else 0,
        waited_owed_ns=max(0, stats.wait_owed_ns - written.wait_owed_ns),
        waited_limit_ns=max(0, stats.wait_limit_ns - written.wait_limit_ns),
        launches=max(0, stats.launches - written.launches),
        extra_ns=part.extra_ns,
        origin=sample.origin,
        memory_mib_ms=(max(0, stats.memory_bytes - sample.hosted_bytes) >> 20) * (part.wall_ns // 1_000_000),
    )


@dataclass(slots=True)
class _Lending:
    """Sums of one device's parts."""

    served_ns: int = 0
    borrowed_ns: int = 0
    unused_ns: int = 0

    def count(self, part: _Part) -> None:
        self.served_ns += part.served_ns
        self.borrowed_ns += part.borrowed_ns
        self.unused_ns += part.unused_ns

    def lent(self, part: _Part) -> int:
        unowned = max(0, part.wall_ns - self.served_ns)
        return lending.lent(part.unused_ns, unowned + self.unused_ns, self.borrowed_ns - part.borrowed_ns)


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """What a device's time was used for, from the arbiter's start until `at`."""

    at: Instant
    leased_ns: int = 0
    switch_ns: int = 0
    idle_with_waiters_ns: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of all served grants and of the devices, by index, at one moment."""

    at: Instant
    samples: list[Sample]
    times: dict[int, DeviceTime]


def unused(device: str, before: DeviceTime, now: DeviceTime) -> list[Period]:
    """Rows for the time of a device that no grant used: with the rows of its grants they add up to its wall time."""
    from_ns, to_ns = begin(before.at, now.at), now.at.wall_ns
    switching = max(0, now.switch_ns - before.switch_ns)
    idle = max(0, now.at.mono_ns - before.at.mono_ns - max(0, now.leased_ns - before.leased_ns) - switching)
    waited = max(0, now.idle_with_waiters_ns - before.idle_with_waiters_ns)
    rows = [unowned(entries.IDLE, device, from_ns, to_ns, idle, waited)]
    if switching:
        rows.append(unowned(entries.SWITCHING, device, from_ns, to_ns, switching))
    return rows


def unowned(what: str, device: str, from_ns: int, to_ns: int, ns: int, waited_ns: int = 0) -> Period:
    """A row for time of a device that no grant had. `waited_ns`: how much of it passed while grants waited."""
    return Period(
        grant_id=what,
        tenant=what,
        device=device,
        from_ns=from_ns,
        to_ns=to_ns,
        granted_ns=0,
        used_ns=ns,
        busy_ns=0,
        borrowed_ns=0,
        lent_ns=0,
        waited_ns=waited_ns,
        memory_bytes=0,
        memory_peak_bytes=0,
    )


def joined(first: Period | None, then: Period) -> Period | None:
    """Two rows of one grant and device as one; None where the second does not begin when the first ends, since the
    clock was set between them, or where other machines used it."""
    if first is None:
        return then
    if (first.to_ns, first.origin) != (then.from_ns, then.origin):
        return None
    return entries.joined(first, then)
