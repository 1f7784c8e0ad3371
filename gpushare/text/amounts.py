"""Device time and money as text. One unit for a whole table, so that its numbers can be compared and added up."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

_SECOND_NS = 10**9
_HOUR_NS = 3600 * _SECOND_NS
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Unit:
    """`ns`: its length. `decimals`: how many are shown."""

    name: str
    ns: int
    decimals: int

    def text(self, ns: int) -> str:
        """Time as text; `-`: none at all."""
        if not ns:
            return NOTHING
        smallest = Decimal(1).scaleb(-self.decimals)
        number = (Decimal(ns) / self.ns).quantize(smallest, ROUND_HALF_UP)
        return f"{number}{self.name}" if number else f"<{smallest}{self.name}"


_SECONDS = Unit("s", _SECOND_NS, 1)
_MINUTES = Unit("min", 60 * _SECOND_NS, 1)
_HOURS = Unit("h", _HOUR_NS, 2)
_LONG = Unit("h", _HOUR_NS, 1)


def unit(numbers: Iterable[int]) -> Unit:
    """The unit in which to show these times, by the longest of them."""
    most = max(numbers, default=0)
    if most < 120 * _SECOND_NS:
        return _SECONDS
    if most < 2 * _HOUR_NS:
        return _MINUTES
    return _HOURS if most < 1000 * _HOUR_NS else _LONG


def money(value: Decimal) -> str:
    """Money as text, to the hundredth; `<0.01`: less than half of one, and not nothing."""
    shown = value.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return f"{shown}" if shown or not value else "<0.01"
