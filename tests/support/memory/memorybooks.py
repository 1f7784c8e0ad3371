"""Memory in use according to a grant's page and according to the simulated device. The simulator is the reference."""

from pages.handmade import Grant, Simulator


def truth(sim: Simulator, device: int = 0) -> int:
    return sum(row["bytes"] for row in sim.books()["devices"][device]["processes"])


def peak(sim: Simulator, device: int = 0) -> int:
    """The peak of memory allocated on the device."""
    return int(sim.books()["devices"][device]["peak_bytes"])


def agreed(grant: Grant, sim: Simulator, device: int = 0) -> int:
    """The bytes in use. Asserts that page and simulator agree, and that the simulator's peak never exceeded the
    limit."""
    page, books = grant.charged(device), truth(sim, device)
    assert page == books, f"charged {page}, the simulator says {books}"
    limit = grant.limits.device[device].memory_bytes
    assert peak(sim, device) <= limit, f"the books said {peak(sim, device)} once, the limit is {limit}"
    return page
