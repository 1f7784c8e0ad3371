"""A snapshot of which processes use the devices, as the driver reports."""

import asyncio
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.daemon.host import logs, peer
from gpushare.enforce import cgroup
from gpushare.errors import GpushareError
from gpushare.node.devices import Backend, Device
from gpushare.policy.audit.audit import Program


@dataclass(frozen=True, slots=True)
class Unknown:
    """A process on a device that the daemon does not know. `group`: its cgroup; None: the root, or not seen."""

    program: Program
    uid: int
    group: Path | None
    device: int
    memory_bytes: int | None
    busy_ns: int


@dataclass(slots=True)
class Snapshot:
    """What one snapshot found. `at_ns`: monotonic. `listed`: pids by device, for devices that answered."""

    at_ns: int
    unknown: list[Unknown] = field(default_factory=list)
    listed: dict[int, set[int]] = field(default_factory=dict)
    held: dict[tuple[int, int], int] = field(default_factory=dict)
    """Bytes by device and pid, as far as the driver reports them, without the bytes of a context that it never
    lists."""
    twice: dict[int, int] = field(default_factory=dict)
    """Bytes by device that the driver counts for more than one process, for devices that `DriverSnapshots.compare` was
    asked about."""
    used: dict[tuple[int, int], int] = field(default_factory=dict)
    """Device time by device and pid, ns."""


class DriverSnapshots:
    """Asks one backend."""

    def __init__(self, backend: Backend, devices: Sequence[Device]) -> None:
        self._backend, self._devices = backend, devices
        self._seldom = logs.Seldom()

    def take(self, devices: int, known: frozenset[int]) -> Snapshot:
        """Asks the driver; runs in a thread. `devices`: their number; `known`: pids of processes that have joined."""
        snapshot = Snapshot(time.monotonic_ns())
        for device in range(devices):
            try:
                rows = self._backend.processes(device)
            except GpushareError as error:
                self._seldom.warning(f"audit {device}", "device %d is not audited: %s", device, error)
                continue
            snapshot.listed[device] = {row.pid for row in rows}
            for row in rows:
                snapshot.used[device, row.pid] = row.busy_ns
                if row.memory_bytes is not None:
                    snapshot.held[device, row.pid] = row.memory_bytes
                if row.pid in known or row.pid == os.getpid():
                    continue
                found = _examine(row.pid)
                if found is not None:
                    program, uid, group = found
                    snapshot.unknown.append(Unknown(program, uid, group, device, row.memory_bytes, row.busy_ns))
        return snapshot

    async def compare(self, snapshot: Snapshot, devices: Collection[int]) -> None:
        """Sets `snapshot.twice`. A driver may count memory that processes share for each of them, so that its counts
        exceed what is in use. Asked only where it matters: the answer takes as long as a snapshot."""
        for device in devices:
            if device not in snapshot.twice:
                facts = self._devices[device]
                used = await asyncio.to_thread(self._used, device)
                sizes = [snapshot.held.get((device, pid), 0) + facts.unlisted_bytes for pid in snapshot.listed[device]]
                snapshot.twice[device] = max(0, sum(sizes) + facts.reserved_bytes - used) if used else 0

    def _used(self, device: int) -> int:
        """Bytes in use; runs in a thread. 0 where the driver does not report it: then nothing is known to be counted
        twice."""
        try:
            return self._backend.memory_used(device)
        except GpushareError:
            return 0


def _examine(pid: int) -> tuple[Program, int, Path | None] | None:
    """Examines a process. Returns None if it is ending, executes another program at this moment, or is gone. Reads only
    files that a process cannot make slow."""
    now = peer.status(pid)
    if now is None or now.ending or (not now.image.known and os.geteuid() == 0):
        return None
    try:
        group = cgroup.of_process(pid)
        uid = Path(f"/proc/{pid}").stat().st_uid
    except (GpushareError, OSError):
        return None
    return Program(pid, now.started, (now.image.code, now.image.stack)), uid, group.path if group is not None else None
