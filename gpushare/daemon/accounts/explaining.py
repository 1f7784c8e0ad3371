"""Explains the decisions about a grant, which grants hold devices without computing, and which tenants wait while
others have too much."""

from collections.abc import Collection, Sequence

from msgspec import to_builtins

from gpushare.api import why
from gpushare.daemon.accounts import attachments, lease_story
from gpushare.daemon.accounts.moves import Moves
from gpushare.daemon.accounts.receipts import Receipts
from gpushare.daemon.state import placement
from gpushare.daemon.state.books import DeviceBook, Sample
from gpushare.daemon.state.decisions import share_text
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.promises import Promises
from gpushare.daemon.state.records import GrantRecord
from gpushare.daemon.state.state import Refusal, State
from gpushare.errors import GpushareError
from gpushare.policy.grants.admission import Place
from gpushare.policy.quota.capacity import Standing
from gpushare.policy.quota.shares import DEVICE_MILLI, Share
from gpushare.policy.residency.states import Where
from gpushare.policy.usage import unfair
from gpushare.policy.usage.unfair import Behind, Stand, Use
from gpushare.text import links
from gpushare.text.overview import guarantee
from gpushare.text.units import format_size, format_time, milli_of

DECISIONS = 20
"""Decisions on leases in an answer, unless the request gives a number."""
DECISIONS_MAX = 200
IDLE_SECONDS = 30
_HOLDERS_MAX = 50
_ATTACHMENTS_MAX = 10
"""Latest ended attachments in the story of a grant."""
_REFUSED_MAX = 8
"""Refused requests that are tried again as if a holder were gone."""
_REFUSED_NS = 600_000_000_000


class Explaining:
    """Reads, and changes nothing."""

    def __init__(self, state: State, receipts: Receipts, moves: Moves) -> None:
        self._state, self._receipts, self._moves = state, receipts, moves
        self._idle: dict[tuple[str, int], int] = {}
        """By grant and device, for how many ns it has had no work."""

    def follow(self, samples: Sequence[Sample], working: Collection[str], wall_ns: int) -> None:
        """Once a second. `working`: grants that had work in the last `wall_ns`."""
        idle = [(one.grant_id, one.device_index) for one in samples if one.grant_id not in working]
        self._idle = {key: self._idle.get(key, 0) + wall_ns for key in idle}

    async def grant(self, grant_id: str, limit: int) -> why.Explanation:
        """Explains a grant, also one that has ended. Raises NotFoundError."""
        state = self._state
        ended = None if grant_id in state else state.ended(grant_id)
        record = ended or state.live(grant_id).record
        events = await self._receipts.latest_of(grant_id, 2 * limit)  # two events often make one decision
        leases = lease_story.decisions(grant_id, events)[-limit:] if limit else []
        own = state.decisions.of(grant_id)
        if not any(decision.what == "admitted" for decision in own):
            own = [*_admitted(record), *own]
        if ended is not None:
            at, rule = record.ended_ns or 0, str(record.phase)
            own = [*own, why.Decision(at_ns=at, what="ended", rule=rule, text=f"ended: {record.life.reason}")]
        own = [*own, *self._attachments(grant_id)]
        return why.Explanation(
            grant=record.id,
            tenant=record.tenant,
            phase="suspended" if record.is_suspended else record.phase.value,
            now=_now(state.live(grant_id), self._moves, placement.standing(state)) if grant_id in state else [],
            decisions=sorted([*own, *leases], key=lambda decision: decision.at_ns),
        )

    def _attachments(self, grant_id: str) -> list[why.Decision]:
        living = self._state.live(grant_id).attachments.values() if grant_id in self._state else ()
        ended = attachments.views(self._state.ledger.ended_attachments(_ATTACHMENTS_MAX, grant=grant_id))
        return [decision for one in (*living, *ended) for decision in attachments.decisions(one)]

    def standing(self, idle_ns: int) -> why.Standing:
        """Answers both questions. `idle_ns`: a grant that had work within this time is not idle."""
        return why.Standing(idle_holders=self._idle_holders(idle_ns), waiting=self._waiting())

    # Who holds devices that do not compute?

    def _idle_holders(self, idle_ns: int) -> list[why.IdleHolder]:
        rows: list[tuple[Live, Place, DeviceBook, int]] = []
        used: dict[int, int] = {}
        for live in self._state:
            for place in live.record.places:
                if (book := live.books.get(place.index)) is not None:
                    used[place.index] = used.get(place.index, 0) + book.had.used_milli
                    idle = self._idle.get((live.id, place.index), 0)
                    if idle >= max(1, idle_ns):
                        rows.append((live, place, book, idle))
        rows.sort(key=lambda row: (-row[1].memory_bytes, -row[3], row[0].id))
        refused = self._still_refused()
        return [
            self._holder(live, place, book, idle, max(0, DEVICE_MILLI - used[place.index]), refused)
            for live, place, book, idle in rows[:_HOLDERS_MAX]
        ]

    def _holder(
        self, live: Live, place: Place, book: DeviceBook, idle_ns: int, idle_milli: int, refused: list[Refusal]
    ) -> why.IdleHolder:
        blocked = self._without(live, refused)
        held = book.window.memory_bytes
        unused = f"nobody used {format_time(idle_milli)} of the device" if idle_milli else "others used the device"
        text = (
            f"{live.id} of {live.record.tenant} has had no work for {_span(idle_ns)} and holds"
            f" {format_size(held)} of device {place.index}, {format_size(place.memory_bytes)} are kept for it;"
            f" in the last second {unused}"
        )
        if book.had.lent_milli:
            text += f", {format_time(book.had.lent_milli)} of it out of this grant's guarantee and extra"
        if blocked:
            text += "; without it there would be room for " + ", ".join(dict.fromkeys(one.text for one in blocked))
        return why.IdleHolder(
            grant=live.id,
            tenant=live.record.tenant,
            device=place.index,
            memory_bytes=held,
            memory_limit_bytes=place.memory_bytes,
            guaranteed_milli=place.guaranteed_milli,
            lent_milli=book.had.lent_milli,
            idle_ns=idle_ns,
            device_idle_milli=idle_milli,
            in_the_way=blocked,
            text=text,
        )

    def _still_refused(self) -> list[Refusal]:
        """The latest requests that admission would still refuse, without repeats."""
        state, found = self._state, list[Refusal]()
        since = max((one.at_ns for one in state.refused), default=0) - _REFUSED_NS
        for one in reversed(state.refused):
            if one.at_ns < since or len(found) == _REFUSED_MAX:
                break
            if all(one.asked != other.asked for other in found) and not self._fits(state.promises, one):
                found.append(one)
        return found

    def _without(self, live: Live, refused: list[Refusal]) -> list[why.Refused]:
        """Those of `refused` that admission would accept if the grant were not there."""
        if not refused:
            return []
        promises = self._state.promises.copy()
        promises.drop(live.id)
        return [_refused(one) for one in refused if self._fits(promises, one)]

    def _fits(self, promises: Promises, refusal: Refusal) -> bool:
        try:
            placement.place(self._state, refusal.asked, promises=promises)
        except GpushareError:
            return False
        return True

    # Who waits while who borrows more than is due?

    def _waiting(self) -> list[why.Waiting]:
        state = self._state
        uses = [
            Use(
                live.id,
                live.record.tenant,
                place.device,
                book.had.used_milli,
                book.had.waited_milli,
                place.limit_milli,
                book.entitled_milli,
            )
            for live in state
            for place in live.record.places
            if (book := live.books.get(place.index)) is not None
        ]
        working = len(state.devices) - len(state.faults)
        return [
            _waiting(row) for row in unfair.behind(state.promises.now.policies, uses, working, state.history.weights)
        ]


def _admitted(record: GrantRecord) -> list[why.Decision]:
    """Decisions rebuilt from the record of a grant that was admitted by an earlier run of the daemon, or long ago."""
    return [
        why.Decision(
            at_ns=record.created_ns,
            what="admitted",
            rule="other",
            text=f"admitted on device {place.index}: {share_text(place, record.tenant)}",
            device=place.index,
            numbers={
                "memory_bytes": place.memory_bytes,
                "time_milli": place.time_milli,
                "guaranteed_milli": place.guaranteed_milli,
            },
        )
        for place in record.places
    ]


def _now(live: Live, moves: Moves, standing: Standing) -> list[str]:
    """The grant's present state, in a sentence per device and attachment. `standing`: of all grants."""
    shares: list[Share | None] = [*live.shares] or [None] * len(live.record.places)
    found = []
    for place, share in zip(live.record.places, shares, strict=True):
        book = live.books.get(place.index)
        if book is None or share is None:
            found.append(f"device {place.index}: nothing of it runs yet")
            continue
        had, served = book.had, share.guarantee_milli
        kept = min(served, standing.kept.get((live.id, place.device), place.guaranteed_milli))
        text = f"device {place.index}: {guarantee(kept, served - kept)}; in the last second it got"
        text += f" {format_time(had.used_milli)}"
        text += f" ({format_time(had.borrowed_milli)} of that borrowed)" if had.borrowed_milli else ""
        text += f", lent {format_time(had.lent_milli)}" if had.lent_milli else ""
        text += f", waited {format_time(had.waited_milli)}" if had.waited_milli else ""
        if place.hosted_bytes or live.record.residency.where is Where.RESUMING:
            text += "; " + _away(live, moves.meanwhile(live))
        found.append(text)
    return found + [f"attached {links.living(to_builtins(one))}" for one in live.attachments.values()]


def _away(live: Live, meanwhile: str) -> str:
    now = live.record.residency
    if now.where is Where.RESUMING:
        return "its memory comes back from host memory" + (f": {now.waits}" if now.waits else "")
    text = f"{format_size(now.hosted_bytes)} of its memory are in host memory{meanwhile}"
    if now.hold:
        return f"{text} until somebody resumes it"
    if now.back:
        return f"{text} and are to come back: {now.waits}" if now.waits else f"{text} and come back"
    return f"{text} until it needs them"


def _refused(one: Refusal) -> why.Refused:
    request = one.asked.request
    asked = format_size(request.memory) if isinstance(request.memory, int) else request.memory
    time = milli_of(request.time)
    return why.Refused(
        at_ns=one.at_ns,
        tenant=request.tenant,
        memory=request.memory,
        time_milli=time,
        text=f"{asked} and {format_time(time)} for {request.tenant}",
    )


def _waiting(row: Behind) -> why.Waiting:
    who = row.who
    rule: why.Due = "guarantee" if row.below_guarantee else "fair share"
    text = (
        f"{who.tenant} waits with {format_time(who.used_milli)}, and is entitled to {format_time(who.entitled_milli)}"
        f" (guaranteed {format_time(who.guarantee_milli)}; rule {rule})"
    )
    over = ", ".join(
        f"{one.tenant} has {format_time(one.used_milli)} and is entitled to {format_time(one.entitled_milli)}"
        for one in row.over
    )
    text += f", while {over}" if over else "; nobody on its devices has more than is due"
    return why.Waiting(
        tenant=who.tenant,
        used_milli=who.used_milli,
        entitled_milli=who.entitled_milli,
        guarantee_milli=who.guarantee_milli,
        waited_milli=who.waited_milli,
        rule=rule,
        grants=list(who.grants),
        over=[_over(one) for one in row.over],
        text=text,
    )


def _over(one: Stand) -> why.Over:
    return why.Over(
        tenant=one.tenant,
        used_milli=one.used_milli,
        entitled_milli=one.entitled_milli,
        guarantee_milli=one.guarantee_milli,
        grants=list(one.grants),
    )


def _span(ns: int) -> str:
    seconds = ns // 1_000_000_000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
