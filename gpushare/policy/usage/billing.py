"""What used device time and memory cost. Pure, in decimals: a bill adds up to the last digit."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

HOUR_NS = 3600 * 10**9
_GIB_HOUR = 3600 << 30


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of an hour of one device, by how it came to be used, and of a GiB for an hour, of its memory and of host
    memory that it was moved to."""

    currency: str
    guaranteed: Decimal = Decimal(0)
    extra: Decimal = Decimal(0)
    borrowed: Decimal = Decimal(0)
    scavenged: Decimal = Decimal(0)
    memory_gib: Decimal = Decimal(0)
    hosted_gib: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Charge:
    """One line of a bill: `quantity` `unit`s of `what`, at `price` each."""

    what: str
    quantity: Decimal
    unit: str
    price: Decimal

    @property
    def cost(self) -> Decimal:
        """Not rounded."""
        return self.quantity * self.price


def charges(row: Mapping[str, int], prices: Prices) -> list[Charge]:
    """Charges for one row of usage, one for each kind that is not zero. Nobody pays for a copy or for a wait."""
    kinds = (
        ("guaranteed", "guaranteed_ns", HOUR_NS, "GPU hours", prices.guaranteed),
        ("extra", "extra_ns", HOUR_NS, "GPU hours", prices.extra),
        ("borrowed", "borrowed_ns", HOUR_NS, "GPU hours", prices.borrowed),
        ("scavenged", "scavenged_ns", HOUR_NS, "GPU hours", prices.scavenged),
        ("memory", "memory_byte_s", _GIB_HOUR, "GiB hours", prices.memory_gib),
        ("hosted", "hosted_byte_s", _GIB_HOUR, "GiB hours", prices.hosted_gib),
    )
    return [
        Charge(what, Decimal(row[name]) / one, unit, price)
        for what, name, one, unit, price in kinds
        if row.get(name, 0) > 0
    ]


def cost(row: Mapping[str, int], prices: Prices) -> Decimal:
    """Cost of one row of usage."""
    return sum((charge.cost for charge in charges(row, prices)), Decimal(0))
