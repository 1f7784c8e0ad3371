"""The driver's memory counts for the cgroups of grants, where it limits their memory: all that is in use there, whether
or not the driver attributes it to a process."""

import asyncio
from pathlib import Path

from gpushare.daemon.state.state import State
from gpushare.errors import GpushareError
from gpushare.node.devices import Backend

_LOOK_NS = 1_000_000_000


class Counted:
    """Belongs to the event loop."""

    def __init__(self, state: State, backend: Backend) -> None:
        self._state, self._backend = state, backend
        self._at_ns = 0
        self._bytes: dict[tuple[str, int], int] = {}

    async def follow(self, at_ns: int) -> None:
        """Asks the driver, at most once a second. `at_ns`: monotonic."""
        if at_ns - self._at_ns < _LOOK_NS:
            return
        self._at_ns = at_ns
        wanted = [
            (live.id, place.index, Path(row.cgroup[0]))
            for live in self._state
            for row in live.record.workloads
            if row.cgroup is not None and not row.unlimited
            for place in live.record.places
        ]
        self._bytes = await asyncio.to_thread(self._ask, wanted) if wanted else {}

    def _ask(self, wanted: list[tuple[str, int, Path]]) -> dict[tuple[str, int], int]:
        """Asks the driver; runs in a thread."""
        found: dict[tuple[str, int], int] = {}
        for grant, device, group in wanted:
            try:
                size = self._backend.group_memory(device, group)
            except GpushareError:  # the workload has ended
                continue
            found[grant, device] = found.get((grant, device), 0) + size
        return found

    def of(self, grant: str, device: int) -> int:
        """Bytes of all workloads of a grant, at most a second old; 0 where the driver does not report them."""
        return self._bytes.get((grant, device), 0)
