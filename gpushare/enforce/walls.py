"""The table of walls: the mechanisms of this machine that contain a workload that bypasses the interposer. Whether a
wall holds is found out by trying to break it; the configuration of the kernel or the driver is not relied on.

Each `Wall` names what it protects, what is lost without it, and a test that tries to get through.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpushare.errors import FailedError

log = logging.getLogger(__name__)

Name = Literal["cgroup", "devices", "memory", "freezer", "watch", "exclusive", "tracepoint"]
Keeps = Literal["processes", "devices", "memory", "time", "evaders", "others"]


@dataclass(frozen=True, slots=True)
class Wall:
    """`lost`: what a workload can do without the wall. `test`: tries to break it, in bounded time, and returns how it
    was broken; empty if it was not. May raise FailedError or OSError instead."""

    name: Name
    keeps: Keeps
    lost: str
    test: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Standing:
    """A wall that was tried. `why`: why it does not hold; empty if it does."""

    name: Name
    keeps: Keeps
    lost: str
    why: str

    @property
    def holds(self) -> bool:
        """Whether it could not be broken."""
        return not self.why


@dataclass(slots=True)
class Table:
    """The walls in the order in which they were tried."""

    standing: list[Standing] = field(default_factory=list)

    def try_all(self, walls: Sequence[Wall]) -> None:
        """Tries them one after the other, and logs which are lost."""
        for wall in walls:
            self.add(wall.name, wall.keeps, wall.lost, _tried(wall))

    def add(self, name: Name, keeps: Keeps, lost: str, why: str) -> None:
        """Records a wall's result in place of an earlier one, and logs it."""
        self.standing = [one for one in self.standing if one.name != name]
        self.standing.append(Standing(name, keeps, lost, why))
        if why:
            log.warning("the wall %r does not hold: %s. Without it %s", name, why, lost)
        else:
            log.info("the wall %r holds", name)

    def why(self, name: Name) -> str:
        """Returns why a wall does not hold; empty if it does."""
        return next((one.why for one in self.standing if one.name == name), "it is not built for this node")

    def unkept(self) -> list[Standing]:
        """Returns the failed walls whose protection no other wall provides."""
        kept = {one.keeps for one in self.standing if one.holds}
        return [one for one in self.standing if one.keeps not in kept]


def _tried(wall: Wall) -> str:
    try:
        return wall.test()
    except (FailedError, OSError) as error:
        return str(error)
