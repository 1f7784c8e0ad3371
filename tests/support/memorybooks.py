"""Memory in use according to a grant's page and according to the simulated device. The simulator is the reference."""

import struct

from handmade import MEMORY, SLOT_BYTES, SLOT_DEVICE_BYTES, SLOTS, Grant, Simulator


def charged(grant: Grant, device: int = 0) -> int:
    """memory_bytes of all slots."""
    return sum(
        struct.unpack_from("<Q", grant.usage, 64 + i * SLOT_BYTES + 64 + SLOT_DEVICE_BYTES * device)[0]
        for i in range(SLOTS)
    )


def truth(sim: Simulator, device: int = 0) -> int:
    return sum(row["bytes"] for row in sim.books()["devices"][device]["processes"])


def peak(sim: Simulator, device: int = 0) -> int:
    """The peak of memory allocated on the device."""
    return int(sim.books()["devices"][device]["peak_bytes"])


def set_limit(grant: Grant, limit: int, device: int = 0) -> None:
    struct.pack_into("<Q", grant.limits, 128 + 128 * device + MEMORY, limit)


def agreed(grant: Grant, sim: Simulator, device: int = 0) -> int:
    """The bytes in use. Asserts that page and simulator agree, and that the simulator's peak never exceeded the
    limit."""
    page, books = charged(grant, device), truth(sim, device)
    assert page == books, f"charged {page}, the simulator says {books}"
    limit = struct.unpack_from("<Q", grant.limits, 128 + 128 * device + MEMORY)[0]
    assert peak(sim, device) <= limit, f"the books said {peak(sim, device)} once, the limit is {limit}"
    return page
