"""Who acts, in this order, when something has become of a grant.

What the grant itself goes through at its end is a list of instructions (gpushare/policy/grants/lifecycle.py) that
`Transitions` carries out: the arbiter serves it no more and its last numbers go to the ledger (`Serving.stop`), what
runs in it is killed, its files are removed, its record is written. Then `ended` is called.
"""

from dataclasses import dataclass
from typing import Protocol

from gpushare.binding.wire import Yield
from gpushare.daemon.guard.audit import Audit
from gpushare.daemon.guard.exclusion import Exclusion
from gpushare.daemon.guard.tracepoint import Tracepoint
from gpushare.daemon.guard.walls import Walls
from gpushare.daemon.residency import saying
from gpushare.daemon.residency.pool import HostPool
from gpushare.daemon.residency.residency import Residency
from gpushare.daemon.state.live import Live


class Freed(Protocol):
    """Acts on what a grant had and has no more."""

    def freed(self, live: Live) -> None:
        """Called with a grant that has ended or has other places."""


class Attached(Protocol):
    """Acts on what becomes of grants that other machines use."""

    def ends(self, live: Live, *, by_itself: bool) -> None:
        """Called with a grant that is about to end, before anything is done to its processes. `by_itself`: they have
        ended."""

    def changed(self, live: Live) -> None:
        """Called with a grant that was published."""


@dataclass(frozen=True, slots=True)
class Followers:
    """`evictions`, `preparing`, `devices` and `remote` use transitions themselves, and are therefore not named by
    class."""

    audit: Audit
    walls: Walls
    tracepoint: Tracepoint
    exclusion: Exclusion
    evictions: Freed
    preparing: Freed
    devices: Freed
    pool: HostPool
    residency: Residency
    remote: Attached

    def admit(self, live: Live) -> None:
        """A grant is about to begin. Raises RefusedError where it cannot: then nothing has happened."""
        self.residency.admit(live)

    def placed(self) -> None:
        """A grant has been given places, and nothing of it is written yet."""
        self.residency.placed()

    def processes(self, live: Live) -> None:
        """Processes of a grant have joined or ended, or say that they have moved memory."""
        self.residency.looked(live)

    def said(self, live: Live, what: Yield) -> None:
        """Programs of a grant have said something of its memory. Raises CannotMoveError where nothing becomes of it."""
        saying.said(self.residency, live, what)

    def ending(self) -> None:
        """The processes of a grant have ended, and the grant may end: what is known of them is reported first."""
        self.tracepoint.listen()

    def changed(self, live: Live) -> None:
        """A grant was published to watchers: workloads have started or ended, or its phase is another."""
        self.audit.changed(live)
        self.exclusion.changed(live)
        self.remote.changed(live)

    def ends(self, live: Live, *, by_itself: bool) -> None:
        """A grant is about to end. `by_itself`: its processes have ended."""
        self.remote.ends(live, by_itself=by_itself)

    def moved(self, live: Live) -> None:
        """A grant has other places."""
        self.walls.resize(live.record)
        self._freed(live)

    def ended(self, live: Live) -> None:
        """A grant has ended, and the state has it no more."""
        self.pool.end(live.id)  # what it had in the host pool is emptied
        self._freed(live)

    def _freed(self, live: Live) -> None:
        self.evictions.freed(live)  # who waits for its memory is asked again
        self.preparing.freed(live)  # its gang may lose this part
        self.devices.freed(live)  # its devices may be drained now
        self.residency.freed(live)  # memory that has left may come back
        self.tracepoint.changed(live)  # its cgroups are charged no more, or up to another limit
        self.exclusion.changed(live)  # its processes cannot open devices any more
