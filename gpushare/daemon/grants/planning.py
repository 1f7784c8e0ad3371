"""Plans grants: asks the rules of admission without an effect."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gpushare.api import plan as plan_types
from gpushare.api.types import GrantRequest
from gpushare.daemon.accounts.receipts import WaitHistory
from gpushare.daemon.grants.grants import Grants, key_taken
from gpushare.daemon.grants.resources import Resources
from gpushare.daemon.grants.room import Room
from gpushare.daemon.host.peer import Peer
from gpushare.daemon.residency import reports
from gpushare.daemon.state import placement
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.decisions import chosen
from gpushare.daemon.state.state import State
from gpushare.errors import GpushareError, RefusedError
from gpushare.policy.grants.admission import Choice, Place
from gpushare.policy.quota.losses import Claim, losses
from gpushare.policy.quota.shares import DEVICE_MILLI, Placed, shares
from gpushare.policy.quota.tenant import TenantPolicy

_IN_A_TURN = 4
"""Requests of a list that are planned before others get the loop."""


class Planner:
    """Changes nothing: several requests are planned on a copy of what is promised."""

    def __init__(self, state: State, grants: Grants, resources: Resources, history: WaitHistory, room: Room) -> None:
        self._state, self._grants, self._resources, self._history = state, grants, resources, history
        self._room = room

    async def plan(
        self, peer: Peer, requests: Sequence[GrantRequest], is_member: Callable[[Peer, str], Awaitable[bool]]
    ) -> list[plan_types.Plan]:
        """One plan for each request, as if those before it that fit had been admitted. Raises what `Grants.create` does
        for a request that is invalid, or that this peer may not make; a refusal is returned as a plan."""
        members = {tenant: await is_member(peer, tenant) for tenant in dict.fromkeys(one.tenant for one in requests)}
        draft = _Draft(
            self._state,
            self._grants,
            self._resources,
            self._history,
            self._room,
            peer,
            several=len(requests) > 1,
        )
        found = []
        for number, request in enumerate(requests):
            if number and number % _IN_A_TURN == 0:
                await asyncio.sleep(0)
            try:
                found.append(draft.plan(number, request, member=members[request.tenant]))
            except GpushareError as error:
                raise type(error)(f"grants[{number}]: {error}" if len(requests) > 1 else str(error)) from None
        return found


class _Draft:
    """What one call has planned so far."""

    def __init__(
        self,
        state: State,
        grants: Grants,
        resources: Resources,
        history: WaitHistory,
        room: Room,
        peer: Peer,
        *,
        several: bool,
    ) -> None:
        self._state, self._grants, self._resources, self._history = state, grants, resources, history
        self._room = room
        self._peer = peer
        self._promises = state.promises.copy() if several else state.promises
        self._several = several
        self._keys: dict[str, tuple[int, GrantRequest, plan_types.Plan]] = {}
        self._planned: dict[str, list[_Beside]] = {}
        """By device: earlier requests of the list that fit."""

    def plan(self, number: int, request: GrantRequest, *, member: bool) -> plan_types.Plan:
        state, asked = self._state, Asked.of(request, self._state.reclaim_policy)
        try:
            if (known := self._known(request)) is not None:
                return known
            state.tenants.named_by(self._peer, request.tenant, member=member)
            choices: list[Choice] = []
            places = placement.place(state, asked, choices, self._promises)
        except RefusedError as refusal:
            if type(refusal) is not RefusedError:
                raise
            found = plan_types.Plan(fits=False, reasons=[str(refusal)])
            if self._several:
                return found
            found.moved, found.making_room_seconds = self._moved(asked)
            if not found.moved:
                found.victims = self._room.victims(asked)
            return found
        self._resources.check_parts()
        found = self._fits(f"grants[{number}]", request, places, choices)
        if self._several:
            self._promises.put(f"grants[{number}]", asked, places)
        if request.key is not None:
            self._keys[request.key] = number, request, found
        return found

    def _moved(self, asked: Asked) -> tuple[list[plan_types.Moved], float | None]:
        grants, ns = self._room.planned(asked)
        found = [
            plan_types.Moved(grant=live.id, tenant=live.record.tenant, memory_bytes=reports.sums(live).movable_bytes)
            for live in grants
        ]
        return found, ns / 1e9 if found else None

    def _known(self, request: GrantRequest) -> plan_types.Plan | None:
        if request.key is not None and request.key in self._keys:
            number, first, found = self._keys[request.key]
            if first != request:
                raise key_taken(request.key, f"grants[{number}]")
            return found
        if (live := self._grants.known(self._peer, request)) is None:
            return None
        places = live.record.places
        return plan_types.Plan(fits=True, devices=_devices(places), class_=_class(places), grant=live.id)

    def _fits(
        self, name: str, request: GrantRequest, places: list[Place], choices: Sequence[Choice]
    ) -> plan_types.Plan:
        waited = self._history.of(places)
        p50, p99 = waited.quantile_ms(0.5), waited.quantile_ms(0.99)
        return plan_types.Plan(
            fits=True,
            devices=_devices(places, choices),
            class_=_class(places),
            wait_ms=None
            if p50 is None or p99 is None
            else plan_types.ExpectedWait(p50=p50, p99=p99, waits=waited.count),
            victims=[victim for place in places for victim in self._victims(name, request, place)],
        )

    # Who would lose what it borrows.

    def _victims(self, name: str, request: GrantRequest, place: Place) -> list[plan_types.Victim]:
        here = [*self._active(place), *self._planned.get(place.device, [])]
        new = _Beside(
            Placed(name, request.tenant, place.device, place.time_milli, place.guaranteed_milli, place.limit_milli),
            place.guaranteed_milli,
            place.time_milli or place.limit_milli,
        )
        if self._several:
            self._planned.setdefault(place.device, []).append(new)
        if sum(one.wants_milli for one in (*here, new)) <= DEVICE_MILLI:
            return []
        *others, own = self._claims([*here, new])
        return [
            plan_types.Victim(
                grant=loss.grant,
                tenant=loss.tenant,
                device=place.device,
                index=place.index,
                rule=loss.rule,
                time_milli=loss.milli,
            )
            for loss in losses(own, others)
        ]

    def _active(self, place: Place) -> list["_Beside"]:
        """The grants that used or wanted the device in the last second."""
        state, found = self._state, []
        for grant in state.promises.now.taken.holders(place.device):
            live = state.live(grant)
            book = live.books.get(place.index)
            if book is None or not live.shares or not (wants := book.had.used_milli + book.had.waited_milli):
                continue
            for row, share in zip(state.promises.placed([grant]), live.shares, strict=True):
                if row.device == place.device:
                    found.append(_Beside(row, share.guarantee_milli, min(wants, share.limit_milli)))
        return found

    def _claims(self, rows: list["_Beside"]) -> list[Claim]:
        """The rows as claims, with the weights and tiers that they would have alongside each other."""
        policies = self._promises.now.policies
        # A tenant that was removed from the file gets nothing of what is lent.
        known = {row.placed.tenant: TenantPolicy(row.placed.tenant, 0, weight=0) for row in rows} | policies
        found = shares(known, [row.placed for row in rows], weights=self._state.history.weights)
        return [
            Claim(
                grant=row.placed.grant,
                tenant=row.placed.tenant,
                guarantee_milli=row.guarantee_milli,
                wants_milli=row.wants_milli,
                weight=found[row.placed.grant, row.placed.device].weight,
                tier=found[row.placed.grant, row.placed.device].tier,
            )
            for row in rows
        ]


@dataclass(frozen=True, slots=True)
class _Beside:
    """A grant on the device: what it is served with there, and what it would use if all were free."""

    placed: Placed
    guarantee_milli: int
    wants_milli: int


def _devices(places: Sequence[Place], choices: Sequence[Choice] = ()) -> list[plan_types.PlanDevice]:
    whys = [chosen(choice) for choice in choices] or [("", "")] * len(places)
    return [
        plan_types.PlanDevice(
            id=place.device,
            index=place.index,
            memory_bytes=place.memory_bytes,
            time_milli=place.time_milli,
            guaranteed_milli=place.guaranteed_milli,
            memory_asked_bytes=place.asked_bytes or place.memory_bytes,
            rule=rule,
            why=why,
        )
        for place, (rule, why) in zip(places, whys, strict=True)
    ]


def _class(places: Sequence[Place]) -> plan_types.Class:
    return "borrow" if any(place.borrows for place in places) else "guaranteed"
