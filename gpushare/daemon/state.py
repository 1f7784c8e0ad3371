"""What the daemon knows: one object, changed by the event loop only. Grants survive in the ledger as GrantRecord."""

import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from gpushare.api.reclaim import Eviction
from gpushare.api.tenants import Tenant
from gpushare.api.types import Class, Grant, GrantRequest
from gpushare.arbiter import GrantStats
from gpushare.daemon.books import DeviceBook, Instant
from gpushare.daemon.decisions import REFUSED_KEPT, Decisions
from gpushare.daemon.drains import Drains
from gpushare.daemon.history import History
from gpushare.daemon.promises import Fault, Promises
from gpushare.daemon.tenant_socket import MemberRecord, TenantSocket
from gpushare.daemon.tenants import Tenants
from gpushare.daemon.watch import Watch
from gpushare.enforce.cgroup import Cgroup
from gpushare.enforce.walls import Table
from gpushare.errors import NotFoundError
from gpushare.inject.pod import Pod
from gpushare.ledger.ledger import Ledger
from gpushare.node.devices import Device
from gpushare.pages import LimitsPage, UsagePage
from gpushare.paths import Layout
from gpushare.policy import quota
from gpushare.policy.admission import SMALLEST_MILLI, Place
from gpushare.policy.lifecycle import Life, Phase
from gpushare.policy.recall import Policy, Recalls
from gpushare.policy.shares import Share
from gpushare.policy.spread import PLACEMENT, Placement


class WorkloadRecord(Struct, kw_only=True):
    """The first process of a container or plain command.

    `started`: as in MemberRecord. `cgroup`: its path, and whether it is a v2 one; None: none of its own.
    """

    pid: int
    started: int
    cgroup: tuple[str, bool] | None
    # As Cgroup.identity: an engine makes the same path again when it restarts a container. 0: not known.
    cgroup_id: int = 0
    # Name of its cgroup's link in Layout.cgroups, where the daemon made the cgroup.
    link: str = ""
    # Why nothing keeps it in a cgroup, to its devices and to its memory, and why no tracepoint counts that memory;
    # empty where that is enforced.
    loose: str = ""
    unguarded: str = ""
    unlimited: str = ""
    uncharged: str = ""


class PartOf(Struct, frozen=True, array_like=True):
    """Which part of which gang a grant belongs to on this node."""

    gang: str
    part: str


class GrantRecord(Struct, kw_only=True):
    """What outlives the daemon of a grant's state, as JSON in the ledger.

    `part`: set if it was prepared as part of a gang across nodes. `uid`: its owner's. `run_uid`, `run_gid`: the user
    who runs plain processes in it. `open`: all processes of that user may join, bound or not. Times are wall time.
    `expires_boot_ns`: `life.expires_ns` on the clock since boot, which nobody sets.
    """

    life: Life
    key: str | None
    request: GrantRequest
    uid: int
    places: list[Place]
    created_ns: int
    run_uid: int
    run_gid: int
    workloads: list[WorkloadRecord] = msgspec.field(default_factory=list)
    members: list[MemberRecord] = msgspec.field(default_factory=list)
    open: bool = False
    ended_ns: int | None = None
    part: PartOf | None = None
    pod: Pod = Pod()
    expires_boot_ns: int | None = None

    @property
    def id(self) -> str:
        """The grant's id, `g-` and 12 hex digits."""
        return self.life.grant

    @property
    def tenant(self) -> str:
        """The name of its tenant."""
        return self.request.tenant

    @property
    def class_(self) -> Class:
        """The kind of work it was asked for."""
        return self.request.class_

    @property
    def phase(self) -> Phase:
        """Its phase."""
        return self.life.phase


@dataclass(slots=True)
class Workload:
    """What the daemon needs to notice a workload's end. `pidfd` is None once the first process has ended."""

    record: WorkloadRecord
    pidfd: int | None
    cgroup: Cgroup | None
    poll: select.epoll | None = None
    events: int | None = None


@dataclass(slots=True)
class Live:
    """A grant that has not ended, with the daemon's resources for it.

    `eviction`: set while it is asked for memory that it has on loan. `limits` to `socket`: set while it is in use.
    `handle`: the arbiter's, while the grant is served. `shares`: those pushed last, one per place. `starter`: pidfd of
    the runtime that is about to start the grant's container. `rv`: number of its last event in the watch stream.
    `shown`: what watchers saw of it then, while nobody has used it. `exceeded`: the last time that one of its processes
    took too much memory of the driver, in words.
    """

    record: GrantRecord
    rv: int = 0
    shown: Grant | None = None
    limits: LimitsPage | None = None
    usage: UsagePage | None = None
    bell: int | None = None
    socket: TenantSocket | None = None
    handle: int | None = None
    starter: int | None = None
    workloads: list[Workload] = field(default_factory=list)
    books: dict[int, DeviceBook] = field(default_factory=dict)
    eviction: Eviction | None = None
    shares: list[Share] = field(default_factory=list)
    exceeded: str = ""

    @property
    def id(self) -> str:
        """The grant's id."""
        return self.record.id

    def uncharged(self, ordinal: int) -> int:
        """Bytes of one of its devices that count against its limit although no process was charged for them."""
        return self.limits.uncharged(ordinal) if self.limits is not None else 0

    def held(self, ordinal: int, stats: GrantStats) -> GrantStats:
        """The grant's counters on one of its devices, including the uncharged bytes."""
        uncharged = self.uncharged(ordinal)
        if not uncharged:
            return stats
        size = stats.memory_bytes + uncharged
        return msgspec.structs.replace(stats, memory_bytes=size, memory_peak_bytes=max(stats.memory_peak_bytes, size))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was refused, and why."""

    at_ns: int
    request: GrantRequest
    text: str


class State:
    """`smallest_milli`: the smallest guarantee that the arbiter can serve. `placement`: the node's. `faults`: by id of
    the device. `refused`: the latest. `measured`: how often what grants had was measured. `standing`: what the standing
    of tenants was worked out from, and that standing; `tenants_shown`: the same of their views. `on_freed`: called with
    each grant that has ended or has other places, `on_changed`: with each that is published to watchers. `notices`:
    yield what a grant's owner has to know now."""

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
    ) -> None:
        self.smallest_milli = smallest_milli
        self.placement = placement
        self.history = history or History()
        self.reclaim_policy = reclaim_policy or Policy()
        self.recalls = Recalls()
        self.on_freed: list[Callable[[Live], None]] = []
        self.on_changed: list[Callable[[Live], None]] = []
        self.notices: list[Callable[[Live], Iterator[str]]] = []
        self.faults: dict[str, Fault] = {}
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
        """The grant. Raises NotFoundError, which says whether it has ended or never existed."""
        found = self._grants.get(grant_id)
        if found is not None:
            return found
        ended = self.ended(grant_id)
        if ended is not None:
            raise NotFoundError(f"grant {grant_id} has ended ({ended.phase}: {ended.life.reason}): create another")
        raise NotFoundError(f"no grant {grant_id[:80]!r}: `gpushare grant list` shows what there is")

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
        self.promises.put(live.id, record.request, record.places)
        if record.phase is Phase.ACTIVE:
            self.promises.begin_turn(live.id)

    def move(self, live: Live, places: list[Place]) -> None:
        """Gives a grant other places than it had."""
        live.record.places = places
        self.promises.put(live.id, live.record.request, places)
        self._freed(live)

    def remove(self, live: Live) -> None:
        """Removes a grant that has ended; the ledger keeps it."""
        if self._grants.pop(live.id, None) is None:
            return
        record = live.record
        if record.key is not None and self._keys.get((record.uid, record.key)) is live:
            del self._keys[record.uid, record.key]
        self.promises.drop(live.id)
        self.decisions.ends(live.id)
        self._freed(live)

    def _freed(self, live: Live) -> None:
        for tell in self.on_freed:
            tell(live)

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


def decode(text: str) -> GrantRecord:
    """A record as `State.save` wrote it. Raises what msgspec raises."""
    return msgspec.json.decode(text, type=GrantRecord)


def open_records(ledger: Ledger) -> list[GrantRecord]:
    """The records of all grants without an end. A row that cannot be used is set aside."""
    found = []
    for grant_id, text in ledger.open_grants():
        try:
            record = decode(text)
        except Exception as error:
            ledger.set_aside(grant_id, str(error))
            continue
        if record.id == grant_id:
            found.append(record)
        else:
            ledger.set_aside(grant_id, f"it has the state of grant {record.id[:40]!r}")
    return found


def now_ns() -> int:
    """Wall time, as in the ledger and on the wire."""
    return time.time_ns()


def boot_ns() -> int:
    """Time since the machine was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def instant() -> Instant:
    """Now, on both clocks."""
    return Instant(time.time_ns(), time.monotonic_ns())
