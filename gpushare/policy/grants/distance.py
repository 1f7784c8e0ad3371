"""How near devices are to each other, and which of them a grant of several gets. Pure.

A set's distance is that of its two devices that are farthest from each other, since work that all of them share runs at
the pace of the slowest link; among sets equal in that, the one with the smallest sum over all pairs is nearest.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

LEVELS: Final = ("nvlink", "internal", "single", "multiple", "hostbridge", "node", "system")
"""Nearest first. After NVLink those of NVML's nvmlGpuTopologyLevel_t: two on one board, one PCIe switch, several, one
host bridge, one NUMA node, and anything farther."""
SYSTEM: Final = LEVELS[-1]

_RANK: Final = {name: rank for rank, name in enumerate(LEVELS)}

Links = Mapping[str, str]
"""Of one device: the level of each other one by its id. A missing one counts as farthest."""


def rank(links: Links, other: str) -> int:
    """The level's place in LEVELS."""
    return _RANK.get(links.get(other, SYSTEM), len(LEVELS) - 1)


def farthest(chosen: Sequence[str], links: Mapping[str, Links]) -> str | None:
    """The level of the set's farthest pair; None where there is no pair."""
    ranks = [rank(links[one], other) for at, one in enumerate(chosen) for other in chosen[at + 1 :]]
    return LEVELS[max(ranks)] if ranks else None


def all_alike(links: Mapping[str, Links]) -> bool:
    """Whether all pairs of these devices are equally far from each other."""
    return len({rank(row, other) for one, row in links.items() for other in links if other != one}) < 2


def nearest(
    order: Sequence[str], count: int, links: Mapping[str, Links], allowed: Callable[[Sequence[str]], bool]
) -> tuple[str, ...] | None:
    """The nearest set of `count` devices that is allowed; None: no such set is. `order`: the devices, most preferred
    first; among equally near sets the first in this order wins."""
    if count > len(order):
        return None
    # A device that came back knows of the others before they know of it.
    matrix = [[min(rank(links[a], b), rank(links[b], a)) for b in order] for a in order]
    # Of each device, the summed rank of its n nearest others, by n.
    near = [list(itertools.accumulate(sorted(row[:at] + row[at + 1 :]), initial=0)) for at, row in enumerate(matrix)]
    best, found = (len(LEVELS), 0), None

    def extend(chosen: list[int], worst: int, total: int, costs: list[int]) -> None:
        """`costs`: by index, what each would add to the total."""
        nonlocal best, found
        left = count - len(chosen)
        if left == 0:
            names = tuple(order[index] for index in chosen)
            if allowed(names):
                best, found = (worst, total), names
            return
        first = chosen[-1] + 1 if chosen else 0
        # Lower bound of what those still to be chosen cost. Pairs among them are counted twice.
        least = sorted(2 * costs[index] + near[index][left - 1] for index in range(first, len(order)))[:left]
        if (worst, total + -(-sum(least) // 2)) >= best:
            return
        for index in range(first, len(order) - left + 1):
            row = matrix[index]
            now = max(worst, *(row[other] for other in chosen)) if chosen else worst
            if (now, total + costs[index]) < best:
                extend([*chosen, index], now, total + costs[index], [a + b for a, b in zip(costs, row, strict=True)])

    extend([], 0, 0, [0] * len(order))
    return found
