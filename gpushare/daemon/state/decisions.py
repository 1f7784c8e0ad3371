"""The latest decisions about each grant, other than those on leases, which the arbiter records itself."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from gpushare.api.share import MemoryRefused
from gpushare.api.why import Decision, What
from gpushare.policy.grants.admission import Choice, Place
from gpushare.text.units import format_size, format_time

PER_GRANT = 16
ENDED_KEPT = 256
REFUSED_KEPT = 32


class Decisions:
    """Decisions of this run of the daemon, about living grants and the latest that have ended."""

    def __init__(self) -> None:
        self._of: dict[str, list[Decision]] = {}
        self._ended: deque[str] = deque()
        self._missing: dict[tuple[str, str], int] = {}
        """The argument of the last `follow`."""

    def add(
        self,
        grant: str,
        what: What,
        rule: str,
        text: str,
        *,
        device: int | None = None,
        other: str | None = None,
        other_tenant: str | None = None,
        **numbers: int,
    ) -> None:
        """`text`: a sentence about `numbers`. `other`: the grant that gained or lost by it."""
        found = Decision(
            at_ns=time.time_ns(),
            what=what,
            rule=rule,
            text=text,
            device=device,
            other=other,
            other_tenant=other_tenant,
            numbers=numbers,
        )
        own = self._of.setdefault(grant, [])
        own.append(found)
        del own[:-PER_GRANT]

    def of(self, grant: str) -> list[Decision]:
        """Returns a grant's decisions, oldest first."""
        return list(self._of.get(grant, ()))

    def ends(self, grant: str) -> None:
        """Notes that a grant has ended: it is forgotten once ENDED_KEPT more have."""
        self._ended.append(grant)
        if len(self._ended) > ENDED_KEPT:
            self._of.pop(self._ended.popleft(), None)

    def admitted(self, grant: str, tenant: str, choices: Sequence[Choice]) -> None:
        """Records why these devices were chosen, and what is guaranteed there."""
        for choice in choices:
            place = choice.place
            rule, why = chosen(choice)
            self.add(
                grant,
                "admitted",
                rule,
                f"admitted on device {place.index}: {share_text(place, tenant)}; {why}",
                device=place.index,
                memory_bytes=place.memory_bytes,
                time_milli=place.time_milli,
                guaranteed_milli=place.guaranteed_milli,
                guarantee_left_milli=choice.spare_milli,
                free_milli=choice.fits[place.index],
            )

    def refused(self, grant: str, device: int, text: str, calls: int, last: MemoryRefused) -> None:
        """Records that calls were refused memory, in place of what was said of this device before. `text`: a sentence
        about `calls`, all of them, and the last."""
        own = self._of.setdefault(grant, [])
        own[:] = [one for one in own if (one.what, one.device) != ("refused", device)]
        self.add(
            grant,
            "refused",
            last.why,
            text,
            device=device,
            calls=calls,
            asked_bytes=last.asked_bytes,
            left_bytes=last.left_bytes,
            memory_bytes=last.limit_bytes,
        )

    def resized(self, grant: str, tenant: str, before: Sequence[Place], after: Sequence[Place]) -> None:
        """Records the places before and after a resize."""
        for old, new in zip(before, after, strict=True):
            self.add(
                grant,
                "resized",
                "admission",
                f"resized on device {new.index} to {share_text(new, tenant)}; before: {share_text(old, tenant)}",
                device=new.index,
                memory_bytes=new.memory_bytes,
                time_milli=new.time_milli,
                guaranteed_milli=new.guaranteed_milli,
            )

    def follow(self, missing: Mapping[tuple[str, str], int], places: Callable[[str], Sequence[Place]]) -> None:
        """Records guarantees that have changed. `missing`: by grant and device, milli of the reserved guarantee that
        are not there. `places`: returns a grant's places, none once it has ended."""
        for key in sorted(missing.keys() | self._missing.keys()):
            less = missing.get(key, 0)
            if less != self._missing.get(key, 0):
                for place in places(key[0]):
                    if place.device == key[1]:
                        self._guarantee(key[0], place, less)
        self._missing = dict(missing)

    def _guarantee(self, grant: str, place: Place, less: int) -> None:
        reserved, now = format_time(place.guaranteed_milli), format_time(place.guaranteed_milli - less)
        why = "there is less than its tenant was promised" if less else "all that was promised is there again"
        self.add(
            grant,
            "guarantee",
            "degraded" if less else "restored",
            f"guaranteed {now} of device {place.index} from now on, {reserved} are reserved: {why}",
            device=place.index,
            guaranteed_milli=place.guaranteed_milli - less,
            reserved_milli=place.guaranteed_milli,
        )


def share_text(place: Place, tenant: str) -> str:
    """A share in words."""
    memory, asked, guaranteed = format_size(place.memory_bytes), place.time_milli, place.guaranteed_milli
    if not asked:
        return f"{memory} of memory, and the time that others leave idle"
    part = "all of it" if guaranteed == asked else format_time(guaranteed) if guaranteed else "none of it"
    return f"{memory} of memory and {format_time(asked)} of its time, {part} out of the guarantee of {tenant}"


FARTHEST = {
    "nvlink": "NVLink between all of them",
    "internal": "on one board",
    "single": "at one PCIe switch",
    "multiple": "PCIe switches between them",
    "hostbridge": "at one PCIe host bridge",
    "node": "on one NUMA node",
    "system": "on several NUMA nodes",
}
"""In words, the largest distance between a grant's devices."""


def chosen(choice: Choice) -> tuple[str, str]:
    """Returns the rule that chose the place, and a sentence about it."""
    fits, index, by = choice.fits, choice.place.index, choice.chosen
    if choice.near is not None and len(fits) > 1:
        return "nearest", f"of {len(fits)} devices that fit these are nearest to each other: {FARTHEST[choice.near]}"
    if len(fits) == 1:
        refused = f" ({'; '.join(choice.refused)})" if choice.refused else ""
        return "only fit", f"it fits on no other{refused}" if refused else "there was no other to choose from"
    if by is not None and by.passed:
        passed, left = ", ".join(map(str, by.passed)), len(fits) - len(by.passed)
        most = "" if left == 1 else f", of the other {left} it has most free"
        return "whole devices", f"{' and '.join(by.owners)} may ask for {_devices(by.passed)} {passed} as a whole{most}"
    if by.placement == "spread" if by is not None else not choice.place.time_milli:
        return "most free", f"of {len(fits)} devices that fit it has most free"
    others = min(free for number, free in fits.items() if number != index)
    less = "less" if fits[index] < others else "no more"
    why = f"of {len(fits)} devices that fit it leaves {less} free than the others"
    if by is not None and by.owners:
        why += f"; {' and '.join(by.owners)} may ask for each of them as a whole"
    return "best fit", why


def _devices(indices: Sequence[int]) -> str:
    return "device" if len(indices) == 1 else "devices"
