"""Installs walls against workloads that bypass the interposer: those that this node has, at each workload.

Walls are tested once, when the daemon starts. A wall that fails then is left out, which grants show; if one that held
cannot be installed later, the grant that it was for ends.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from gpushare.api.node import Enforce, NodeWall, Wall
from gpushare.daemon.guard.exclusion import Exclusion
from gpushare.daemon.guard.tracepoint import Tracepoint
from gpushare.daemon.host import peer
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.records import GrantRecord, WorkloadRecord
from gpushare.daemon.state.state import State
from gpushare.daemon.workloads.workloads import Held
from gpushare.enforce import devices
from gpushare.enforce.cgroup import Cgroup, Hierarchies, has_alone
from gpushare.enforce.trial import Driver, Trial
from gpushare.enforce.walls import Keeps, Table
from gpushare.errors import FailedError, RefusedError
from gpushare.inject.node import Node
from gpushare.node.devices import Backend
from gpushare.paths import SIM_DIR_ENV
from gpushare.policy.audit.audit import SLACK_BYTES

log = logging.getLogger(__name__)

_KEPT: dict[Keeps, str] = {
    "processes": "its processes",
    "devices": "its devices",
    "memory": "its memory",
    "time": "its time",
    "evaders": "those that evade it from going on",
    "others": "others from its devices",
}
_MEND = 'see `gpushare doctor`; enforce = "best" in gpushare.toml goes on without'


class Walls:
    """`enforce`: as gpushare.toml says."""

    def __init__(
        self,
        state: State,
        hardware: Hardware,
        backend: Backend,
        inject: Node,
        enforce: Enforce,
        tracepoint: Tracepoint,
        exclusion: Exclusion,
        *,
        stops: bool = True,
    ) -> None:
        """`stops`: whether the audit stops evaders, or only reports them."""
        self._state, self._hardware, self._backend, self._inject = state, hardware, backend, inject
        self.enforce = enforce
        self._tracepoint, self._exclusion, self._stops = tracepoint, exclusion, stops
        self._table = state.walls
        self._guard: devices.Guard | None = None
        self._listed: dict[tuple[int, int], Path] = {}
        """v1 devices cgroups, by pid and start time of the workload's first process, as long as they exist."""

    def start(self) -> None:
        """Tests all walls. Mounts and permissions are taken to stay as they are until the daemon ends."""
        trial = Trial(self._state.layout.cgroups, self._drivers(), exclusive=self._exclusion.asked, stops=self._stops)
        self._table.try_all(trial.walls())
        self._guard = trial.guard
        if self.enforce == "required" and (missing := self._missing()):
            log.warning("no grant will be bound: %s", missing)

    def _drivers(self) -> list[Driver]:
        """One for each device that works."""
        if (sim := self._inject.sim_dir) is not None:
            library, environment = self._inject.sim_lib_dir / "libcuda.so.1", {SIM_DIR_ENV: str(sim)}
        else:
            found = [file for file in self._inject.driver_files if file.name == "libcuda.so.1"]
            library, environment = (found or [Path("libcuda.so.1")])[0], {}
        return [
            Driver(
                functools.partial(self._backend.limit_memory, device.index),
                functools.partial(self._pids, device.index),
                library,
                environment | {"CUDA_VISIBLE_DEVICES": device.id},
                device.context_bytes,
            )
            for device in self._state.devices
            if device.id not in self._state.faults
        ]

    def _pids(self, index: int) -> set[int]:
        return {row.pid for row in self._backend.processes(index)}

    def facts(self) -> list[NodeWall]:
        """The walls of the node."""
        return [
            NodeWall(name=one.name, keeps=one.keeps, holds=one.holds, why=one.why, lost=one.lost)
            for one in self._table.standing
        ]

    def _missing(self) -> str:
        return "; ".join(f"nothing keeps {_KEPT[one.keeps]}, since {one.why}" for one in self._table.unkept())

    def check_node(self) -> None:
        """Called before a grant is bound. Raises RefusedError where a wall is required and missing."""
        if self.enforce == "required" and (missing := self._missing()):
            raise RefusedError(f"this node binds no grant (enforce is required): {missing}; {_MEND}")

    def check_open(self) -> None:
        """Called before a grant is opened to all processes of a user, whom no wall holds. Raises RefusedError."""
        if self.enforce == "required":
            raise RefusedError(
                "this node opens no grant to all of a user's processes (enforce is required): bind each by its pid"
            )

    def open_to(self, record: GrantRecord) -> None:
        """Called when a grant was opened to all processes of its user: lets them open its devices. Raises
        FailedError."""
        self._exclusion.open_to(record)

    def put_up(self, record: GrantRecord, held: Held, workload: WorkloadRecord) -> None:
        """Installs all walls for a workload that is about to start; notes in `workload` which of them do not hold it.
        Raises FailedError for one that cannot be installed, or is required and does not hold."""
        self._exclusion.admit(record, held.cgroup)
        workload.loose = held.why
        workload.unguarded = self._devices(record, held, workload) or held.why
        workload.uncharged = self._tracepoint.hold(record, held.cgroup) or held.why
        workload.unlimited = self._memory(record, held) or held.why
        own = workload.loose or workload.unguarded or (workload.unlimited if not self._table.why("memory") else "")
        if self.enforce == "required" and (why := own):
            raise FailedError(f"nothing but the interposer would hold it (enforce is required): {why}; {_MEND}")

    def _devices(self, record: GrantRecord, held: Held, workload: WorkloadRecord) -> str:
        guarded, granted = self._hardware.numbers(record)
        if self._guard is None:
            return self._table.why("devices")
        if not guarded:
            return "simulated devices have no nodes that could be denied"
        if held.cgroup is None:
            return held.why or "it has no cgroup of its own"
        group = self._group(held, workload.pid)
        self._guard.hold(group, guarded, granted)
        if not self._guard.v2:
            self._listed[workload.pid, workload.started] = group
        return ""

    def renew(self) -> None:
        """Called each second: restores the lists of the v1 devices controller, which engines and systemd write as
        well."""
        if not isinstance(self._guard, devices.Controller):
            return
        self._guard.forget_gone()
        self._listed = {first: group for first, group in self._listed.items() if group.exists()}
        for live in self._state:
            guarded, granted = self._hardware.numbers(live.record)
            for row in live.record.workloads:
                if row.unguarded or not guarded or (group := self._listing(row)) is None:
                    continue
                try:
                    self._guard.renew(group, guarded, granted)
                except FailedError as error:
                    if group.exists():
                        log.warning("grant %s: its devices are not held any more: %s", live.id, error)
                        row.unguarded = str(error)

    def _listing(self, row: WorkloadRecord) -> Path | None:
        """The v1 devices cgroup that was guarded when the workload started, wherever its processes are now. After a
        restart of the daemon it is the linked one, or one that the first process has to itself; None without either."""
        first = row.pid, row.started
        if first in self._listed:
            return self._listed[first]
        link = self._state.layout.cgroups / f"{row.link}{devices.SUFFIX}"
        try:
            found = link.readlink() if row.link else devices.of_controller(row.pid, Hierarchies.of())
        except (OSError, FailedError):
            return None
        if found is None or (not row.link and not has_alone(Cgroup(found, v2=False), row.pid)):
            return None
        # Checked last: if the pid is another process's by now, the result above is not this workload's.
        if peer.start_time(row.pid) != row.started:
            return None
        self._listed[first] = found
        return found

    def _memory(self, record: GrantRecord, held: Held) -> str:
        if why := self._table.why("memory"):
            return why
        if held.cgroup is None:
            return held.why or "it has no cgroup of its own"
        self._limit(record, held.cgroup.path)
        return ""

    def _limit(self, record: GrantRecord, group: Path) -> None:
        for place in record.places:
            # What remains of a suspended grant may take a little more than the books say.
            most = min(place.memory_bytes, place.here_bytes + (SLACK_BYTES if place.hosted_bytes else 0))
            self._backend.limit_memory(place.index, group, most)

    def resize(self, record: GrantRecord) -> None:
        """Moves the memory walls of the grant's workloads to its present places. A wall that cannot be moved is
        reported in the log and in `walls`: the grant goes on."""
        for row in record.workloads:
            if row.cgroup is None or row.unlimited:
                continue
            try:
                self._limit(record, Path(row.cgroup[0]))
            except FailedError as error:
                row.unlimited = f"it could not be moved when the grant was resized: {error}"
                log.warning("grant %s: the driver's limit stays: %s", record.id, error)

    def _group(self, held: Held, pid: int) -> Path:
        """Returns the cgroup of the guard's kind that holds the workload and nothing else, and makes it if needed.
        Raises FailedError."""
        assert held.cgroup is not None
        assert self._guard is not None
        if self._guard.v2:
            return held.cgroup.path
        where = Hierarchies.of()
        found = devices.of_controller(pid, where)
        if found is None:
            raise FailedError(f"process {pid} is in no cgroup of the v1 devices controller")
        if not held.link:
            if not has_alone(Cgroup(found, v2=False), pid):
                raise FailedError(f"the engine has made no cgroup of the v1 devices controller for process {pid} alone")
            return found
        link = self._state.layout.cgroups / f"{held.link}{devices.SUFFIX}"
        group = Cgroup(found / held.cgroup.path.name, v2=False)
        link.symlink_to(group.path)
        group.make()
        group.add(pid)
        return group.path


def walls_of(record: GrantRecord, table: Table) -> list[Wall]:
    """The walls of a grant: a wall holds if it does for each of its workloads. Empty before anything runs in it."""
    if not record.workloads and not record.open:
        return []
    own: dict[str, Callable[[WorkloadRecord], str]] = {
        "cgroup": lambda row: row.loose,
        "devices": lambda row: row.unguarded,
        "tracepoint": lambda row: row.uncharged,
        "memory": lambda row: row.unlimited,
    }
    opened = f"all processes of uid {record.run_uid} may join it" if record.open else ""
    shown = []
    for one in table.standing:
        why = opened or _first(record.workloads, own.get(one.name)) or one.why
        if one.name == "memory" and not why and len(record.workloads) > 1:
            why = f"each of its {len(record.workloads)} workloads can take all of it, as each has a cgroup of its own"
        shown.append(Wall(name=one.name, holds=not why, why=why))
    return shown


def _first(rows: Sequence[WorkloadRecord], why: Callable[[WorkloadRecord], str] | None) -> str:
    return next(filter(None, map(why, rows)), "") if why is not None else ""
