"""Receipts: the arbiter's record of leases and waits, with the names of grants and tenants.

The record is read only on request, so thousands of leases a second cost nothing here.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from gpushare.api import events as event_types
from gpushare.api.share import MemoryRefused
from gpushare.binding.arbiter import EVENTS_KEPT, Arbiter, Spans
from gpushare.binding.arbiter_events import Event, EventKind, Refusals, Wanted
from gpushare.daemon.state import placement
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.errors import GoneError, NotFoundError, UsageError
from gpushare.policy.grants.admission import Place
from gpushare.policy.usage.waits import Waited

LATEST = 4096
"""Events in an answer to a request without `after`."""
AT_ONCE = 8192
"""Most events in one answer: about 2.5 MB, which occupy the event loop for about 25 ms."""
NAMES_KEPT = 4096
"""Names of ended grants that are kept: events in the record may still refer to them."""
_LOOKED_AT_ONCE = 4096
"""Events of the record that are scanned in one turn of the loop."""
_STEP_NS = 10_000_000
"""Wall time has to be set by more than this before the same event is shown at another time. A clock that NTP
slews, at most 500 parts per million, needs 20 s for it; one reading is wrong by far less (`_wall_ahead_ns`)."""
_READ_WITHIN_NS = 100_000
"""Two clocks are read at the same moment if both readings are within this."""

_WAITS_KEPT_SECONDS = 1.0
_OF_WAITS = {EventKind.LEASE, EventKind.LEFT}


@dataclass(frozen=True, slots=True)
class Asked:
    """A reader's query, unchecked. `after` None: the latest events."""

    after: int | None = None
    epoch: int | None = None
    limit: int | None = None
    grant: str | None = None
    tenant: str | None = None
    device: str | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class _Names:
    """A grant that events are about. `guaranteed`: by device, what it had asked for and was granted."""

    grant: str | None = None
    tenant: str | None = None
    guaranteed: Mapping[int, int] = field(default_factory=dict)


_NOBODY = _Names()


class Receipts:
    """Keeps the names of ended grants, so that events about them stay readable."""

    def __init__(self, state: State, arbiter: Arbiter) -> None:
        self._state = state
        self._arbiter = arbiter
        self._ended: dict[int, _Names] = {}
        self._to_wall_ns = 0
        self.history = WaitHistory(state, arbiter)

    def ends(self, live: Live) -> None:
        """Keeps the names of a grant that the arbiter is about to remove."""
        if live.handle is None:
            return
        self.history.ends(live)
        self._ended[live.handle] = self._named(live)
        if len(self._ended) > NAMES_KEPT:
            del self._ended[next(iter(self._ended))]

    def events(self, asked: Asked) -> event_types.LeaseEvents:
        """What /v1/events answers. Raises GoneError, NotFoundError or UsageError."""
        names = self._names()
        wanted = self._wanted(asked, names)
        newest, epoch = self._arbiter.newest_event(), self._state.watch.epoch
        if asked.epoch not in (None, epoch) or (asked.after or 0) > newest:
            raise GoneError(
                f"those events are of an earlier run of the daemon (now epoch {epoch}, {newest} events): "
                "ask without after and epoch"
            )
        after, limit = asked.after or 0, min(AT_ONCE, asked.limit or (LATEST if asked.after is None else AT_ONCE))
        found, after, lost = self._arbiter.events_after(after, limit, wanted, latest=asked.after is None)
        return event_types.LeaseEvents(
            epoch=epoch,
            after=after,
            newest=max(newest, after),
            lost=lost,
            events=[self._shown(event, names) for event in found],
        )

    async def latest_of(self, grant: str, limit: int) -> list[event_types.LeaseEvent]:
        """The latest events about a grant, newest last: its own, and leases taken from others for it. Scans the record
        from its end, and lets others have the loop in between."""
        found: list[event_types.LeaseEvent] = []
        names = self._names()
        wanted = self._wanted(Asked(grant=grant), names)
        end = self._arbiter.newest_event()
        known = wanted is not None and wanted.handles
        oldest = max(0, end - EVENTS_KEPT) if known else end
        while end > oldest and len(found) < limit:
            begin = max(oldest, end - _LOOKED_AT_ONCE)
            here, _, _ = self._arbiter.events_after(begin, _LOOKED_AT_ONCE, wanted, most=end - begin)
            found[:0] = [self._shown(event, names) for event in here if event.sequence <= end][-limit:]
            end = begin
            await asyncio.sleep(0)
        return found[-limit:]

    def _names(self) -> dict[int, _Names]:
        """Names of all grants that events may be about, by handle. Also updates the clock offset that events are shown
        with."""
        to_wall_ns = _wall_ahead_ns()
        if abs(to_wall_ns - self._to_wall_ns) > _STEP_NS:
            self._to_wall_ns = to_wall_ns
        return self._ended | {live.handle: self._named(live) for live in self._state if live.handle is not None}

    def _named(self, live: Live) -> _Names:
        kept, places = placement.standing(self._state).kept, live.record.places
        guaranteed = {place.index: kept.get((live.id, place.device), place.guaranteed_milli) for place in places}
        return _Names(live.id, live.record.tenant, guaranteed)

    async def tenants(self) -> list[event_types.TenantWaits]:
        """Waits by tenant: of living grants from the arbiter's counters, of ended ones from the ledger."""
        sums = {tenant.name: event_types.TenantWaits(tenant=tenant.name) for tenant in self._state.tenants}

        def add(tenant: str, waits: int, wait_ns: int, longest_ns: int, reclaimed: Spans) -> None:
            row = sums.setdefault(tenant, event_types.TenantWaits(tenant=tenant))
            row.waits += waits
            row.wait_ns += wait_ns
            row.wait_max_ns = max(row.wait_max_ns, longest_ns)
            row.reclaims += reclaimed.count
            row.reclaim_ns += reclaimed.total_ns
            row.reclaim_max_ns = max(row.reclaim_max_ns, reclaimed.max_ns)

        counted = []
        for live in self._state:
            if live.handle is None:
                continue
            counted.append(live.id)
            for index, book in live.books.items():
                stats = book.total(self._arbiter.grant_stats(live.handle, index))
                add(live.record.tenant, stats.waited.count, stats.wait_ns, stats.waited.max_ns, stats.reclaimed)
        for tenant, total in (await asyncio.to_thread(self._state.ledger.tenant_totals, counted)).items():
            reclaimed = Spans(total.reclaims, total.reclaim_ns, total.reclaim_max_ns)
            add(tenant, total.waits, total.waited_ns, total.wait_max_ns, reclaimed)
        return list(sums.values())

    def _wanted(self, asked: Asked, names: dict[int, _Names]) -> Wanted | None:
        if asked.grant is asked.tenant is asked.device is asked.kind is None:
            return None
        handles = None
        if asked.grant is not None or asked.tenant is not None:
            handles = frozenset(
                handle
                for handle, name in names.items()
                if asked.grant in (None, name.grant) and asked.tenant in (None, name.tenant)
            )
        return Wanted(handles, self._device(asked.device), _kind(asked.kind))

    def _device(self, text: str | None) -> int | None:
        if text is None:
            return None
        for device in self._state.devices:
            if text in (device.id, str(device.index)):
                return device.index
        raise NotFoundError(f"there is no device {text[:60]!r}: give an index or id as `gpushare devices` shows it")

    def _shown(self, event: Event, names: dict[int, _Names]) -> event_types.LeaseEvent:
        whose, other = names.get(event.grant, _NOBODY), names.get(event.other, _NOBODY)
        about = whose if event.kind is EventKind.LEASE else other
        guaranteed = min(event.guarantee_milli, about.guaranteed.get(event.device, event.guarantee_milli))
        shown = event_types.LeaseEvent(
            seq=event.sequence,
            t_ns=event.t_ns,
            at_ns=event.t_ns + self._to_wall_ns,
            kind=cast(event_types.EventKind, event.kind.name.lower()),
            device=event.device,
            device_id=self._state.devices[event.device].id,
            grant=whose.grant,
            tenant=whose.tenant,
            other=other.grant,
            other_tenant=other.tenant,
            value_ns=event.wait_ns if event.kind in _OF_WAITS else event.reclaim_ns,
            wait_ns=event.wait_ns,
            reclaim_ns=event.reclaim_ns,
            rule=cast(event_types.Rule, event.rule.name.lower()),
            level=event.level.name.lower(),  # type: ignore[arg-type]
            woke=event.woke,
            running=event.running,
            guarantee_milli=guaranteed,
            had_milli=event.had_milli,
            extra_milli=event.guarantee_milli - guaranteed,
        )
        if (lie := event.lie) is not None:
            shown.word, shown.slot, shown.pid, shown.value = lie.word.name.lower(), lie.slot, lie.pid, lie.value
        if (refused := event.refused) is not None:
            shown.value, shown.refused = refused.calls, _refused(refused, shown.at_ns)
        return shown


def _refused(found: Refusals, at_ns: int) -> MemoryRefused:
    return MemoryRefused(
        at_ns=at_ns,
        asked_bytes=found.asked_bytes,
        left_bytes=found.left_bytes,
        limit_bytes=found.limit_bytes,
        why=found.why.name.lower(),  # type: ignore[arg-type]
    )


def _wall_ahead_ns() -> int:
    """Wall time minus monotonic time, wrong by at most `_READ_WITHIN_NS`. Without the second reading of the monotonic
    clock, a thread preempted between the two would show all events at another time."""
    for _ in range(1000):
        before = time.monotonic_ns()
        wall = time.time_ns()
        if time.monotonic_ns() - before < _READ_WITHIN_NS:
            break
    return wall - before


def _kind(text: str | None) -> EventKind | None:
    if text is None:
        return None
    try:
        return EventKind[text.upper()]
    except KeyError:
        raise UsageError(
            f"{text[:40]!r} is no kind of event: {', '.join(kind.name.lower() for kind in EventKind)}"
        ) from None


_Key = tuple[int, bool]
"""A device, and whether the grant borrows there."""


class WaitHistory:
    """How long grants waited for their devices in this run of the daemon: the wait of a new grant is estimated from it.

    Two histograms per device: of grants whose time is guaranteed, and of those that borrow.
    """

    def __init__(self, state: State, arbiter: Arbiter) -> None:
        self._state, self._arbiter = state, arbiter
        self._ended: dict[_Key, Waited] = {}
        self._all: dict[_Key, Waited] = {}
        self._at = -_WAITS_KEPT_SECONDS

    def ends(self, live: Live) -> None:
        """Keeps the waits of a grant that the arbiter is about to forget."""
        self._add(self._ended, live)

    def of(self, places: Iterable[Place]) -> Waited:
        """Waits of all grants of the same kind on these devices, at most a second old: with many grants it takes
        milliseconds to look through them."""
        now = time.monotonic()
        if now - self._at >= _WAITS_KEPT_SECONDS:
            self._at, self._all = now, {}
            for key, waited in self._ended.items():
                self._all.setdefault(key, Waited()).add(waited.buckets, waited.longest_ns)
            for live in self._state:
                self._add(self._all, live)
        found = Waited()
        for place in places:
            if (here := self._all.get((place.index, place.borrows))) is not None:
                found.add(here.buckets, here.longest_ns)
        return found

    def _add(self, to: dict[_Key, Waited], live: Live) -> None:
        if live.handle is None:
            return
        for place in live.record.places:
            waited = self._arbiter.grant_stats(live.handle, place.index).waited
            if waited.count:
                to.setdefault((place.index, place.borrows), Waited()).add(waited.buckets, waited.max_ns)
