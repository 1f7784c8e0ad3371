"""A grant that has not ended, with what the daemon holds for it."""

import hashlib
import select
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gpushare.api.engines import PlacedMount
from gpushare.api.remote import Attachment
from gpushare.api.share import Eviction
from gpushare.binding.arbiter import GrantStats
from gpushare.binding.pages import LimitsPage, UsagePage
from gpushare.daemon.host.peer import Image
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.books import DeviceBook
from gpushare.daemon.state.records import GrantRecord, MemberRecord, WorkloadRecord
from gpushare.enforce.cgroup import Cgroup
from gpushare.policy.quota.shares import Share


class Members(Protocol):
    """The grant's socket, over which its processes join (daemon/workloads/tenant_socket.py)."""

    @property
    def records(self) -> list[MemberRecord]:
        """The present members, for the ledger."""

    def adopt(self, records: list[MemberRecord]) -> None:
        """After a restart: adopts the members that live."""

    def close(self) -> None:
        """Stops listening and watching; the processes are left alone."""


@dataclass(slots=True)
class Workload:
    """What the daemon needs to notice a workload's end. `pidfd` is None once the first process has ended."""

    record: WorkloadRecord
    pidfd: int | None
    cgroup: Cgroup | None
    poll: select.epoll | None = None
    events: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a container has to see of its share, worked out when its config was made. `digest`: of that config. `root`,
    `mounts`: as in OciPlaceAnswer."""

    bundle: str
    digest: bytes
    root: str
    mounts: list[PlacedMount]

    @classmethod
    def of(cls, bundle: str, config: bytes, root: str, mounts: list[PlacedMount]) -> "Prepared":
        """For the container that is made of this config."""
        return cls(bundle, hashlib.sha256(config).digest(), root, mounts)

    def is_of(self, bundle: str, config: bytes) -> bool:
        """Whether this is of a container with this very config."""
        return (self.bundle, self.digest) == (bundle, hashlib.sha256(config).digest())


@dataclass(slots=True)
class Seen:
    """When a grant's first process was last looked at (workloads/programs.py), in monotonic seconds; its pid and start
    time then, and what it ran: `image` as peer.Image; None: not known."""

    at: float = 0.0
    process: tuple[int, int] = (0, 0)
    image: Image | None = None


@dataclass(slots=True)
class Live:
    """A grant that has not ended, with the daemon's resources for it.

    `asked`: what its request asks for. `eviction`: set while it is asked for memory that it has on loan. `limits` to
    `socket`: set while it is in use. `handle`: the arbiter's, while the grant is served. `shares`: those pushed last,
    one per place. `starter`: pidfd of the runtime that is about to start the grant's container. `rv`: number of its
    last event in the watch stream. `prepared`: of the container that the runtime wrapper is starting. `exceeded`: the
    last time that one of its processes took too much memory of the driver, in words. `said_idle_work`: what they
    had submitted (reports.work) when they last said that they are idle (`gpushare yield`); None: never, or they have
    said since that they are back. `receipt`: what its last move gave or cost it, in words. `attachments`: the living
    ones, by id; `origins`: the machines that had one since its periods last ended. `starting`: a carrier's server is
    being started in it, whose end is not the grant's.
    """

    record: GrantRecord
    asked: Asked
    rv: int = 0
    limits: LimitsPage | None = None
    usage: UsagePage | None = None
    bell: int | None = None
    socket: Members | None = None
    handle: int | None = None
    starter: int | None = None
    prepared: Prepared | None = None
    workloads: list[Workload] = field(default_factory=list)
    books: dict[int, DeviceBook] = field(default_factory=dict)
    eviction: Eviction | None = None
    shares: list[Share] = field(default_factory=list)
    exceeded: str = ""
    said_idle_work: int | None = None
    receipt: str = ""
    seen: Seen = field(default_factory=Seen)
    attachments: dict[str, Attachment] = field(default_factory=dict)
    starting: bool = False
    origins: frozenset[str] = frozenset()

    def attach(self, attachment: Attachment) -> None:
        """Adds an attachment, or puts it in the place of its earlier state."""
        self.attachments[attachment.id] = attachment
        self.origins |= self.present

    @property
    def present(self) -> frozenset[str]:
        """The machines that have an attachment now; one without a name by its address."""
        return frozenset(filter(None, (one.origin or one.address for one in self.attachments.values())))

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
