"""What residency needs of others that use it themselves."""

from typing import Protocol

from gpushare.api.types import Name
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.watch import Change
from gpushare.policy.grants.admission import Place


class Pool(Protocol):
    """The host pool (daemon/residency/pool.py)."""

    @property
    def size_bytes(self) -> int:
        """All of it; 0: this node has none."""

    @property
    def free_bytes(self) -> int:
        """What is reserved for nobody."""

    def reserve(self, grant: str, size: int) -> None:
        """Makes the grant's reservation exactly this. Raises RefusedError where there is too little."""

    def release(self, grant: str) -> None:
        """Gives all of it back."""


class Transitions(Protocol):
    """What becomes of grants (daemon/grants/transitions.py)."""

    def move(self, live: Live, places: list[Place]) -> None:
        """Gives a grant other places than it had."""

    def publish(self, live: Live, change: Change, name: Name = "") -> None:
        """Puts the grant, as it is now, into the watch stream."""


class Recall(Protocol):
    """Makes room (daemon/grants/room.py)."""

    def hinders(self, live: Live) -> tuple[str, bool]:
        """Called, again and again, with a suspended grant that wants its room back. Returns what it waits for, in
        words; empty: there is room. And whether others are still leaving it."""

    def leaves_ns(self, live: Live) -> int:
        """How long the memory of a grant takes to leave at most, once it does."""

    def moved(self, live: Live, size: int, ns: int) -> None:
        """Called with a grant of which `size` bytes have come back to its device in `ns`."""

    def is_back(self, live: Live) -> None:
        """Called with a grant that wants no room back any more."""
