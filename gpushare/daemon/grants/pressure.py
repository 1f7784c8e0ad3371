"""Watches on each device whether borrowers stand in each other's way, and says what is done about it:
gpushare.policy.residency.pressure decides. Called on the event loop only."""

import logging
from collections.abc import Callable, Collection, Iterable

from gpushare.api.types import Name
from gpushare.daemon.grants.loans import on_loan
from gpushare.daemon.residency import reports
from gpushare.daemon.residency.reports import ORDINAL
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.state import State
from gpushare.node.devices import Device
from gpushare.policy.residency.pressure import Measure, Pressure
from gpushare.policy.residency.room import SWAP_SHARE, TRAINING_SHARE, Link
from gpushare.policy.residency.states import Where
from gpushare.text.units import format_size

log = logging.getLogger(__name__)

_SAID = {
    Measure.NONE: "turns are as long as moving memory asks for",
    Measure.LONGER_TURNS: "turns are longer",
    Measure.NO_NEW_LOANS: "nobody new is given memory that has to be moved away for it",
    Measure.PARK: "the borrower of the lowest tier stays in host memory until others are idle",
}


class Pressures:
    """`links`: by id of the device. `publish`: puts a device into the watch stream, with the name of what happened."""

    def __init__(self, state: State, publish: Callable[[Device, Name], object], links: dict[str, Link]) -> None:
        self._state, self._publish, self._links = state, publish, links
        self._pressure: dict[str, Pressure] = {}
        self._parked: dict[str, str] = {}
        """By device: a grant that takes no turns."""
        self._last_ns: int | None = None

    def takes_loans(self, device: str) -> bool:
        """Whether memory is moved away there for new requests."""
        return device not in self._pressure or self._pressure[device].level.measure < Measure.NO_NEW_LOANS

    def is_parked(self, live: Live) -> bool:
        """Whether a grant comes back only to room that others do not use."""
        return self._parked.get(live.record.places[ORDINAL].device) == live.id

    def looked(self, now_ns: int, wanted: Collection[str]) -> None:
        """Time has passed. `wanted`: the devices whose room borrowers wait for."""
        passed = now_ns - self._last_ns if self._last_ns is not None else 0
        self._last_ns = now_ns
        for device in {*wanted, *self._pressure}:
            there = [live for live in self._state if live.record.places[ORDINAL].device == device]
            of_training = all(one.asked.request.class_ == "training" for one in there if on_loan(one))
            pressure = self._pressure.setdefault(device, Pressure(TRAINING_SHARE if of_training else SWAP_SHARE))
            stalled = device in wanted and not any(map(_works, there))
            if pressure.passed(passed, stalled=stalled):
                self._changed(device, pressure, there)
            elif device not in wanted and pressure.level.measure is Measure.NONE and pressure.last == 0:
                del self._pressure[device]  # nobody has waited there for a whole window

    def _changed(self, device: str, pressure: Pressure, there: Iterable[Live]) -> None:
        level = pressure.level
        self._links[device].factor = level.factor
        borrowers = sorted((live for live in there if live.record.places[ORDINAL].borrowed_bytes), key=self._rank)
        self._parked.pop(device, None)
        if level.measure is Measure.PARK and borrowers:
            self._parked[device] = borrowers[0].id
        [shown] = (one for one in self._state.devices if one.id == device)
        sizes = " + ".join(format_size(live.record.places[ORDINAL].memory_bytes) for live in borrowers)
        text = (
            f"work waited for memory, and nothing on device {shown.index} could run, for"
            f" {float(pressure.last or 0):.1%} of the last minute: borrowers have {sizes or 'nothing'}, and it has"
            f" {format_size(shown.memory_bytes)}: {_SAID[level.measure]}"
        )
        log.warning("%s", text)
        for live in borrowers:
            self._state.decisions.add(live.id, "moved", "other", text, device=shown.index)
        self._publish(shown, "MemoryPressure")

    def _rank(self, live: Live) -> tuple[object, ...]:
        """Lowest first."""
        tenant = self._state.promises.now.tenants.get(live.record.tenant)
        weight, tier = (tenant.weight, tenant.tier) if tenant is not None else (0, 0)
        size = live.record.places[ORDINAL].borrowed_bytes
        return weight > 0, tier, live.asked.request.priority, -size, live.id


def _works(live: Live) -> bool:
    if live.record.residency.where is not Where.RESIDENT:
        return False
    return any(one.inflight or one.waiting for one in reports.said(live))
