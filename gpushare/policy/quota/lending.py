"""What each grant had of its device in a span of time: guaranteed, borrowed, lent, and how long it waited. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.policy.quota.shares import DEVICE_MILLI

Key = tuple[str, str]
"""A grant and one of its devices."""


@dataclass(frozen=True, slots=True)
class Span:
    """One grant on one device. `guarantee_milli`: what it was served with. `leased_ns`: device time that it was
    charged, `borrowed_ns`: the part of that which no guarantee paid for, `waited_ns`: wall time without a lease."""

    grant: str
    device: str
    guarantee_milli: int
    leased_ns: int
    borrowed_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class Had:
    """Milli of the device's time. `borrowed_milli` is part of `used_milli`; `lent_milli`: the part of the guarantee
    that it left and others used; `waited_milli`: of the wall time."""

    used_milli: int = 0
    borrowed_milli: int = 0
    lent_milli: int = 0
    waited_milli: int = 0


NOTHING = Had()


def lent(unused: int, unused_by_all: int, borrowed_by_others: int) -> int:
    """How much of its `unused` time one grant lent: what others borrowed on a device was lent by all who left something
    unused there, in proportion to that."""
    return min(borrowed_by_others * unused // unused_by_all, unused) if unused_by_all else 0


def had(spans: Iterable[Span], wall_ns: int) -> dict[Key, Had]:
    """What each grant had. `spans`: of all grants of the devices, over the same `wall_ns`. Time that is guaranteed to
    nobody counts as lent too."""
    if wall_ns <= 0:
        return {}
    by_device: dict[str, list[Span]] = {}
    for span in spans:
        by_device.setdefault(span.device, []).append(span)
    found: dict[Key, Had] = {}
    for device, here in by_device.items():
        if not any(span.leased_ns or span.borrowed_ns or span.waited_ns for span in here):
            found |= {(span.grant, device): NOTHING for span in here}
            continue
        unused = {span.grant: _unused(span, wall_ns) for span in here}
        guaranteed = sum(span.guarantee_milli for span in here)
        promised_to_none = wall_ns * max(0, DEVICE_MILLI - guaranteed) // DEVICE_MILLI
        unused_by_all = promised_to_none + sum(unused.values())
        borrowed = sum(span.borrowed_ns for span in here)
        for span in here:
            found[span.grant, device] = Had(
                used_milli=_milli(span.leased_ns, wall_ns),
                borrowed_milli=_milli(min(span.borrowed_ns, span.leased_ns), wall_ns),
                lent_milli=_milli(lent(unused[span.grant], unused_by_all, borrowed - span.borrowed_ns), wall_ns),
                waited_milli=_milli(span.waited_ns, wall_ns),
            )
    return found


def _unused(span: Span, wall_ns: int) -> int:
    """Guaranteed time that was not used. A grant that used its guarantee or more lent nothing, whatever its leases were
    given for."""
    return max(0, wall_ns * span.guarantee_milli // DEVICE_MILLI - span.leased_ns)


def _milli(ns: int, wall_ns: int) -> int:
    """Rounded to the nearest milli, at most the whole."""
    return min(DEVICE_MILLI, (ns * DEVICE_MILLI + wall_ns // 2) // wall_ns)
