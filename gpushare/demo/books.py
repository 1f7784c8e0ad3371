"""Measures how much of the device each tenant got.

On a simulated device these are the simulator's own numbers, independent of the interposer and the daemon; on a real
device, the numbers that the daemon metered.
"""

import time
from dataclasses import dataclass
from typing import Any

from gpushare.client import Client


@dataclass(frozen=True, slots=True)
class Reading:
    """One tenant's usage: device time since its start, current bytes and peak bytes."""

    busy_ns: int
    bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Page:
    """All tenants at one instant of the device's clock."""

    wall_ns: int
    readings: dict[str, Reading]


class Books:
    """The usage of each tenant: as counted by the simulator or, on a real device, by the daemon."""

    def __init__(self, client: Client, simulated: bool, grants: dict[str, str], pids: dict[str, int]) -> None:
        """`grants` and `pids`: by tenant."""
        self._client, self._simulated, self._grants, self._pids = client, simulated, grants, pids

    def read(self) -> Page:
        """The current counts. Raises GpushareError."""
        return self._simulator() if self._simulated else self._daemon()

    def _simulator(self) -> Page:
        device = self._client.sim_stats()["devices"][0]
        by_pid: dict[int, Any] = {process["pid"]: process for process in device["processes"]}
        readings = {}
        for tenant, pid in self._pids.items():
            found = by_pid.get(pid, {"busy_ns": 0, "bytes": 0, "peak_bytes": 0})
            readings[tenant] = Reading(found["busy_ns"], found["bytes"], found["peak_bytes"])
        return Page(device["wall_ns"], readings)

    def _daemon(self) -> Page:
        readings = {}
        for tenant, grant_id in self._grants.items():
            found = self._client.grant(grant_id)["devices"][0]
            readings[tenant] = Reading(found["busy_ns"], found["memory_bytes"], found["memory_peak_bytes"])
        return Page(time.monotonic_ns(), readings)


def shares_of_demand(before: Page, after: Page) -> dict[str, int]:
    """Milli of the device time that all tenants got together: the guaranteed value while all of them have work."""
    busy = _busy(before, after)
    return _milli(busy, sum(busy.values()))


def shares_of_wall(before: Page, after: Page) -> dict[str, int]:
    """Milli of the elapsed time: the relevant value while a tenant is idle."""
    return _milli(_busy(before, after), after.wall_ns - before.wall_ns)


def _busy(before: Page, after: Page) -> dict[str, int]:
    return {name: reading.busy_ns - before.readings[name].busy_ns for name, reading in after.readings.items()}


def _milli(busy: dict[str, int], whole: int) -> dict[str, int]:
    return {tenant: round(1000 * part / whole) if whole > 0 else 0 for tenant, part in busy.items()}
