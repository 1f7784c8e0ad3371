"""Device memory that, by the driver's count, no process has: it is only reported, since nobody can be stopped for
it."""

import asyncio
from collections.abc import Collection, Mapping

from gpushare.api.findings import Finding
from gpushare.daemon.guard.findings import Findings, Key
from gpushare.daemon.state.state import State, now_ns
from gpushare.errors import GpushareError
from gpushare.node.devices import Backend
from gpushare.policy.audit import audit

_LOOK_NS = 1_000_000_000


class Unowned:
    """Belongs to the event loop."""

    def __init__(self, state: State, backend: Backend, findings: Findings) -> None:
        self._state, self._backend, self._findings = state, backend, findings
        self._policy = audit.Unowned()
        self._at_ns = 0

    async def follow(
        self, listed: Mapping[int, Collection[int]], held: Mapping[tuple[int, int], int], at_ns: int
    ) -> None:
        """Looks once a second. `listed`: pids by device; `held`: bytes by device and pid, where the driver says it;
        `at_ns`: monotonic, when it was asked."""
        if at_ns - self._at_ns < _LOOK_NS:
            return
        self._at_ns = at_ns
        said = {index: [held.get((index, pid)) for pid in pids] for index, pids in listed.items()}
        unlisted = [device.unlisted_bytes for device in self._state.devices]
        had = {
            index: sum(filter(None, sizes)) + len(sizes) * unlisted[index]
            for index, sizes in said.items()
            if None not in sizes
        }
        used = await asyncio.to_thread(self._used, list(had))
        extra = {index: used[index] - had[index] - self._state.devices[index].reserved_bytes for index in used}
        found = self._policy.follow(extra, at_ns)
        for index in had:
            key = Key("unowned", "", 0, index)
            if index in found and key not in self._findings and not self._findings.full:
                self._findings.add(key, self._finding(index, found[index]))
            elif extra.get(index, 0) <= audit.UNOWNED_BYTES and key in self._findings:
                self._findings.end(key, "within")

    def _used(self, devices: list[int]) -> dict[int, int]:
        """Bytes in use by device; runs in a thread."""
        used = {}
        for index in devices:
            try:
                used[index] = self._backend.memory_used(index)
            except GpushareError:
                continue
        return used

    def _finding(self, index: int, size: int) -> Finding:
        return Finding(
            seq=0,
            kind="unowned",
            at_ns=now_ns(),
            device=index,
            device_id=self._state.devices[index].id,
            grant=None,
            tenant=None,
            pid=0,
            command="",
            memory_bytes=size,
            busy_ns=0,
            act="told",
        )
