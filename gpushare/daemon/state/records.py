"""What outlives the daemon of a grant: its record, as JSON in the ledger."""

import msgspec
from msgspec import Struct

from gpushare.api.share import MemoryRefused
from gpushare.api.types import Class, GrantRequest
from gpushare.binding.page_words import HostCalls
from gpushare.inject.pod import Pod
from gpushare.ledger.ledger import Ledger
from gpushare.policy.grants.admission import Place
from gpushare.policy.grants.lifecycle import Life, Phase
from gpushare.policy.residency.states import RESIDENT, Residency, Where


class MemberRecord(Struct, kw_only=True):
    """A joined process as the ledger keeps it.

    `started`: its start time in clock ticks since boot, which with the pid identifies it even after the pid is reused.
    `image`: as in peer.Image, of the program that joined; None: not known. `pool_bytes`: what it has of the host pool.
    `refusals`: its counter of calls that were refused memory, as last read from its slot; `host`: what was believed of
    its other counters there.
    """

    pid: int
    started: int
    slot: int
    generation: int
    image: tuple[str, str] | None = None
    pool_bytes: int = 0
    refusals: int = 0
    host: HostCalls = HostCalls()


class HostUse(Struct, kw_only=True):
    """What all processes of a grant asked of its devices from the host, as in gpushare.api.types.Grant. `until_ns`:
    until when `running_ns` counts, monotonic."""

    sync_calls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    running_ns: int = 0
    until_ns: int = 0


class Refusals(Struct, kw_only=True):
    """The calls of a grant that were refused device memory on the device with this ordinal, and the last of them."""

    ordinal: int
    calls: int = 0
    last: MemoryRefused | None = None


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


class ServerRecord(Struct, kw_only=True):
    """The carrier's server that was started in a grant last. `uid`: its own. `host_memory`: as in AttachRequest, in
    bytes."""

    carrier: str
    uid: int
    host_memory: int


class PartOf(Struct, frozen=True, array_like=True):
    """Which part of which gang a grant belongs to on this node."""

    gang: str
    part: str


class GrantRecord(Struct, kw_only=True):
    """What outlives the daemon of a grant's state, as JSON in the ledger.

    `part`: set if it was prepared as part of a gang across nodes. `uid`: its owner's. `run_uid`, `run_gid`: the user
    who runs plain processes in it. `open`: all processes of that user may join, bound or not. Times are wall time.
    `expires_boot_ns`: `life.expires_ns` on the clock since boot, which nobody sets. `residency`: where its movable
    memory is; its deadline is of this run. `container`, `program`: as in gpushare.api.workload, of the latest workload.
    `refused`: one for each device on which calls were refused memory. `server`: None: it was never attached.
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
    container: str = ""
    program: str = ""
    expires_boot_ns: int | None = None
    residency: Residency = RESIDENT
    refused: list[Refusals] = msgspec.field(default_factory=list)
    server: ServerRecord | None = None
    host: HostUse = msgspec.field(default_factory=HostUse)

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

    @property
    def is_suspended(self) -> bool:
        """Whether its programs run, and their movable memory is in host memory."""
        return self.residency.where is Where.SUSPENDED and self.life.phase is Phase.ACTIVE


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
