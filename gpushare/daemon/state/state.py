"""What the daemon knows: one object, changed by the event loop only. Grants survive in the ledger as GrantRecord."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from gpushare.api.tenants import Tenant
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.books import Instant
from gpushare.daemon.state.decisions import REFUSED_KEPT, Decisions
from gpushare.daemon.state.drains import Drains
from gpushare.daemon.state.history import History
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.promises import Fault, Promises
from gpushare.daemon.state.records import GrantRecord, decode
from gpushare.daemon.state.tenants import Tenants
from gpushare.daemon.state.watch import Watch
from gpushare.daemon.timing import Timing
from gpushare.enforce.walls import Table
from gpushare.errors import NotFoundError
from gpushare.ledger.ledger import Ledger
from gpushare.node.devices import Device
from gpushare.paths import Layout
from gpushare.policy.grants.admission import SMALLEST_MILLI, Place
from gpushare.policy.grants.lifecycle import Phase
from gpushare.policy.grants.spread import PLACEMENT, Placement
from gpushare.policy.loans.recall import Policy, Recalls
from gpushare.policy.quota import standing as quota
from gpushare.policy.residency.pool import TenantLimit


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was refused, and why."""

    at_ns: int
    asked: Asked
    text: str


class State:
    """`smallest_milli`: the smallest guarantee that the arbiter can serve. `placement`: the node's. `faults`: by id of
    the device. `host_pool_bytes`: size of the host pool, set once that is made; 0: there is none.
    `idle_after_default_ns`: the node's, where neither a grant nor its tenant has one; 0: never. `refused`: the latest.
    `measured`: how often what grants had was measured. `standing`: what the standing of tenants was worked out from,
    and that standing; `tenants_shown`: the same of their views. `notices`: yield what a grant's owner has to know
    now."""

    def __init__(
        self,
        layout: Layout,
        devices: list[Device],
        tenants: Tenants,
        ledger: Ledger,
        watch: Watch,
        smallest_milli: int = SMALLEST_MILLI,
        history: History | None = None,
        reclaim_policy: Policy | None = None,
        placement: Placement = PLACEMENT,
        timing: Timing | None = None,
    ) -> None:
        self.timing = timing or Timing()
        self.smallest_milli = smallest_milli
        self.placement = placement
        self.history = history or History()
        self.reclaim_policy = reclaim_policy or Policy()
        self.recalls = Recalls()
        self.notices: list[Callable[[Live], Iterator[str]]] = []
        self.faults: dict[str, Fault] = {}
        self.host_pool_bytes = 0
        self.idle_after_default_ns = 0
        self.measured = 0
        self.standing: tuple[tuple[object, ...], Mapping[str, quota.Now]] | None = None
        self.tenants_shown: tuple[tuple[object, ...], list[Tenant]] | None = None
        self.layout = layout
        self.devices = devices
        self.tenants = tenants
        self.ledger = ledger
        self.watch = watch
        self.drains = Drains(layout.state)
        self.promises = Promises(devices, tenants, self.faults, self.drains)
        self.decisions = Decisions()
        self.walls = Table()
        self.refused: deque[Refusal] = deque(maxlen=REFUSED_KEPT)
        self._grants: dict[str, Live] = {}
        self._keys: dict[tuple[int, str], Live] = {}

    def __iter__(self) -> Iterator[Live]:
        return iter(list(self._grants.values()))

    def __contains__(self, grant_id: str) -> bool:
        return grant_id in self._grants

    def live(self, grant_id: str) -> Live:
        """The grant. Raises NotFoundError, whose text is whether it has ended or never existed."""
        found = self._grants.get(grant_id)
        if found is not None:
            return found
        ended = self.ended(grant_id)
        if ended is not None:
            raise NotFoundError(f"grant {grant_id} has ended ({ended.phase}: {ended.life.reason}): create another")
        raise NotFoundError(f"no grant {grant_id[:80]!r}: `gpushare grant list` shows what there is")

    def host_limits(self, grant_id: str) -> list[TenantLimit]:
        """How much of the host pool the grant's tenant may have, and each above it; none for an unknown grant."""
        found = self._grants.get(grant_id)
        return self.tenants.host_limits(found.record.tenant) if found is not None else []

    def idle_after_ns(self, live: Live) -> int:
        """After how long without work memory that the grant lends counts as idle: its own, else its tenant's or of the
        nearest tenant above, else the node's; 0: never."""
        own = live.asked.idle_after_ns
        return self.tenant_idle_after_ns(live.record.tenant) if own is None else own

    def tenant_idle_after_ns(self, name: str) -> int:
        """The same for a tenant's grants that have none of their own."""
        found = self.tenants.idle_after_ns(name)
        return self.idle_after_default_ns if found is None else found

    def ended(self, grant_id: str) -> GrantRecord | None:
        """The record of a grant that has ended, None where the ledger has none."""
        return self.ledger.ended_grant(grant_id, decode)

    def by_key(self, uid: int, key: str) -> Live | None:
        """The living grant that this user asked for under this key."""
        return self._keys.get((uid, key))

    def add(self, live: Live) -> None:
        """Adds a grant."""
        record = live.record
        self._grants[live.id] = live
        if record.key is not None:
            self._keys.setdefault((record.uid, record.key), live)
        self.promises.put(live.id, live.asked, record.places)
        if record.phase is Phase.ACTIVE:
            self.promises.begin_turn(live.id)

    def move(self, live: Live, places: list[Place]) -> None:
        """Gives a grant other places than it had."""
        live.record.places = places
        self.promises.put(live.id, live.asked, places)

    def remove(self, live: Live) -> None:
        """Removes a grant that has ended; the ledger keeps it."""
        if self._grants.pop(live.id, None) is None:
            return
        record = live.record
        if record.key is not None and self._keys.get((record.uid, record.key)) is live:
            del self._keys[record.uid, record.key]
        self.promises.drop(live.id)
        self.decisions.ends(live.id)

    def save(self, record: GrantRecord) -> None:
        """Writes the record to the ledger, where it outlives a killed daemon."""
        state = msgspec.json.encode(record).decode()
        row = (
            record.id,
            record.key,
            record.tenant,
            record.uid,
            str(record.phase),
            state,
            record.created_ns,
            record.ended_ns,
        )
        self.ledger.save(row)


def now_ns() -> int:
    """Wall time, as in the ledger and on the wire."""
    return time.time_ns()


def boot_ns() -> int:
    """Time since the machine was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def instant() -> Instant:
    """Now, on both clocks."""
    return Instant(time.time_ns(), time.monotonic_ns())
