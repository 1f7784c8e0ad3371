"""Ends the ledger's periods of all served grants: reads the arbiter's counters and writes rows to the ledger."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpushare.binding.arbiter import Arbiter, GrantStats
from gpushare.daemon.accounts.attachments import Attachments
from gpushare.daemon.accounts.moves import Moves
from gpushare.daemon.state import placement
from gpushare.daemon.state.books import DeviceTime, Instant, Reading, Sample, joined, periods, unowned, unused
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State, instant
from gpushare.inject.pod import Pod
from gpushare.ledger.entries import GAP, Move, Period, origins
from gpushare.ledger.usage import Sums

KEPT_SECONDS = 120.0
"""Two scrapes at Prometheus' default interval, one minute."""
KEPT = 256
"""Rows, one per grant and device. They bound a scrape, however many grants come and go."""


@dataclass(frozen=True, slots=True)
class Last:
    """A grant's counters on a device when it ended. `at`: monotonic seconds."""

    at: float
    grant: str
    tenant: str
    pod: Pod
    device: str
    stats: GrantStats
    memory_refusals: int = 0


class LastCounters:
    """The counters of ended grants, kept long enough to be scraped. Rows in which nothing happened are not kept."""

    def __init__(self) -> None:
        self._rows: dict[str, deque[Last]] = {}
        """By tenant, the oldest first."""

    def add(self, last: Last) -> None:
        """Adds a row for a grant that is about to end."""
        stats = last.stats
        if not (stats.leased_ns or stats.busy_ns or stats.wait_ns or last.memory_refusals):
            return
        self._rows.setdefault(last.tenant, deque()).append(last)
        if sum(map(len, self._rows.values())) > KEPT:
            # A tenant that makes many grants loses its own rows, not those of others.
            max(self._rows.values(), key=len).popleft()

    def rows(self, now: float) -> list[Last]:
        """The rows that are kept at `now`, monotonic seconds."""
        for rows in self._rows.values():
            while rows and rows[0].at + KEPT_SECONDS <= now:
                rows.popleft()
        self._rows = {tenant: rows for tenant, rows in self._rows.items() if rows}
        return [row for rows in self._rows.values() for row in rows]


class Accounts:
    """Reads the counters of every served grant and ends the ledger's periods."""

    def __init__(self, state: State, arbiter: Arbiter) -> None:
        self._state, self._arbiter = state, arbiter
        self.moves = Moves(state)
        self.attachments = Attachments(state.ledger)
        self._unwritten: dict[tuple[str, str], Period] = {}
        """By grant and device: the row of a period that ended because another grant ended, not yet written."""
        self._leased: dict[int, int] = {}
        """By device: ns leased to all grants together when its periods last ended."""
        self.sums: dict[str, Sums] = {}
        """By tenant: sums over all periods that ended in this run of the daemon."""
        self.busy_ns: dict[str, int] = {}
        """By device: metered work over the same periods."""
        self.last = LastCounters()
        self._times: dict[int, DeviceTime] = {}
        """By device: its counters at `begin` or the last `write`."""

    def begin(self) -> None:
        """Records for each device how long no daemon was running, and begins its first period."""
        now, gap = instant(), self._state.ledger.gap_ns
        for device in self._state.devices:
            self._times[device.index] = self._time(device.index, now)
        if gap:
            rows = (unowned(GAP, device.id, now.wall_ns - gap, now.wall_ns, gap) for device in self._state.devices)
            self._state.ledger.add(rows)

    def _time(self, device: int, at: Instant) -> DeviceTime:
        stats = self._arbiter.device_stats(device)
        return DeviceTime(at, stats.leased_ns, stats.switch_ns, stats.idle_with_waiters_ns)

    def samples(self, of: Live | None = None, devices: Collection[int] = ()) -> list[Sample]:
        """Returns one sample per served grant and device, with the present counters. `of`: only this grant's samples,
        and those of other grants on `devices`."""
        found = []
        kept, policies = placement.standing(self._state).kept, self._state.promises.now.policies
        for live in self._state if of is None or devices else [of]:
            if live.handle is None:
                continue
            origin = origins(live.origins) if live.origins else ""
            for ordinal, place in enumerate(live.record.places):
                book = live.books.get(place.index)
                if book is not None and (of is None or of is live or place.index in devices):
                    stats = live.held(ordinal, self._arbiter.grant_stats(live.handle, place.index))
                    guarantee = kept[live.id, place.device]
                    served = live.shares[ordinal].guarantee_milli if live.shares else guarantee
                    tenant = live.record.tenant
                    scavenges = policies[tenant].weight == 0 if tenant in policies else False
                    here = live.id, tenant, place.device, place.index
                    hosted = live.record.residency.hosted_bytes
                    found.append(Sample(*here, guarantee, book, stats, served, scavenges, hosted, origin))
        return found

    def ends(self, live: Live) -> None:
        """Writes the last period of a grant that is about to end. What it lent depends on the counters of the other
        grants on its devices. Their periods end too, but their rows are kept and joined to the next ones: a row for
        each of them whenever a grant ends would be too many. Where nothing was leased on a device since its last
        period, nothing was lent."""
        lent = {place.index for place in live.record.places if self._leased_more(place.index)}
        samples, now = self.samples(live, lent), instant()
        for sample in samples:
            if sample.grant_id == live.id:
                stats = sample.book.total(sample.stats)
                seconds, pod = now.mono_ns / 1e9, live.record.pod
                refused = sum(
                    one.calls
                    for one in live.record.refused
                    if live.record.places[one.ordinal].device == sample.device_id
                )
                self.last.add(Last(seconds, live.id, sample.tenant, pod, sample.device_id, stats, refused))
        self._add(self._periods(samples, now), moves=self.moves.rows(now, live), only=live.id)

    def read(self) -> Reading:
        """Returns all counters as they are now."""
        now = instant()
        samples = self.samples()
        return Reading(now, samples, {device.index: self._time(device.index, now) for device in self._state.devices})

    def write(self, reading: Reading) -> None:
        """Ends the current period of every served grant and begins the next. No grant may have ended since `reading`,
        which must be the latest."""
        rest = []
        for device in self._state.devices:
            time = reading.times[device.index]
            self._leased[device.index] = time.leased_ns
            if (before := self._times.get(device.index)) is not None:
                self._times[device.index] = time
                rest += unused(device.id, before, time)
        self._add(self._periods(reading.samples, reading.at), rest, self.moves.rows(reading.at))

    def _periods(self, samples: list[Sample], to: Instant) -> list[Period]:
        for sample in samples:
            if sample.origin and sample.grant_id in self._state:
                live = self._state.live(sample.grant_id)
                live.origins = live.present
        return periods(samples, to)

    def _leased_more(self, device: int) -> bool:
        """Whether anybody had a lease on the device since the last call or `write`."""
        before, now = self._leased.get(device), self._arbiter.device_stats(device).leased_ns
        self._leased[device] = now
        return now != before

    def _add(
        self,
        rows: list[Period],
        rest: Sequence[Period] = (),
        moves: Sequence[Move] = (),
        only: str | None = None,
    ) -> None:
        """Adds `rows` to the ledger together with `rest` and `moves`, so that no reader sees one without the other.
        `only`: the grant whose rows are written now; rows of others are kept."""
        written = list(rest)
        for row in rows:
            self.sums.setdefault(row.tenant, Sums()).count(row)
            self.busy_ns[row.device] = self.busy_ns.get(row.device, 0) + row.busy_ns
            key = row.grant_id, row.device
            first = self._unwritten.pop(key, None)
            whole = joined(first, row)
            if first is not None and whole is None:
                written.append(first)
            if only in (None, row.grant_id):
                written.append(whole or row)
            else:
                self._unwritten[key] = whole or row
        for move in moves:
            self.sums.setdefault(move.tenant, Sums()).count(move)
        self._state.ledger.add(written, moves)
