"""The phases of the demo, in order, and their measurements."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.demo.books import Books, Page, shares_of_demand, shares_of_wall
from gpushare.demo.container import Container
from gpushare.demo.interrupts import uninterrupted
from gpushare.demo.node import Node
from gpushare.demo.verdict import PIECE_BYTES, Facts, Tenant
from gpushare.errors import FailedError
from gpushare.text.units import format_time

OWNER = Tenant("research", 750, 8 << 30)
BORROWER = Tenant("class", 250, 4 << 30)
HELD = {OWNER.name: "6GiB", BORROWER.name: "2GiB"}
TOO_MUCH = "6GiB"

KERNEL_NS = 500_000
SETTLE_SECONDS = 1.0  # excluded after each change: the guarantee is a share over whole seconds
TICK_SECONDS = 0.5
RECLAIM_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Tick:
    """The contents of the live table."""

    phase: str
    seconds: float
    shares: dict[str, int]
    page: Page
    grants: dict[str, Any]


class Story:
    """`say` is called with each step before the first measurement and after the last, `watch` about twice a second
    between them."""

    def __init__(
        self, node: Node, where: Path, phase_seconds: float, say: Callable[[str], None], watch: Callable[[Tick], None]
    ) -> None:
        self.facts = Facts(OWNER, BORROWER)
        self._node, self._say, self._watch, self._phase_seconds = node, say, watch, phase_seconds
        runtime_root = where / "runc"
        self._owner = Container(OWNER.name, where, runtime_root, node.socket)
        self._borrower = Container(BORROWER.name, where, runtime_root, node.socket)
        self._began = time.monotonic()
        self._grants: dict[str, str] = {}
        self._books: Books | None = None
        self._last: Page | None = None

    def play(self, simulated: bool) -> Facts:
        """Runs all phases and returns the measurements. Always ends its containers. Raises GpushareError."""
        try:
            self._start(simulated)
            self._both()
            self._owner_idle()
            self._owner_back()
            self._over_limit()
            self._sum_up()
        finally:
            self._end()
        return self.facts

    def _start(self, simulated: bool) -> None:
        for container, tenant in ((self._owner, OWNER), (self._borrower, BORROWER)):
            self._say(f"starting container {tenant.name}")
            self._node.client.set_tenant(tenant.name, {"time": tenant.time_milli})
            container.start(_annotations(tenant))
            self._say(f"{tenant.name} takes {HELD[tenant.name]} of device memory")
            container.ask(f"fill {HELD[tenant.name]} {PIECE_BYTES}")
            self._grants[tenant.name] = container.grant
            self.facts.pids[tenant.name] = self._node.client.grant(container.grant)["pid"] or 0
        self._books = Books(self._node.client, simulated, self._grants, self.facts.pids)

    def _both(self) -> None:
        self._owner.ask(f"run {KERNEL_NS}")
        self._borrower.ask(f"run {KERNEL_NS}")
        self._measure("both", shares_of_demand)

    def _owner_idle(self) -> None:
        self._owner.ask("idle")
        self._measure("owner_idle", shares_of_wall)

    def _owner_back(self) -> None:
        seen = self._node.events(0)[1]
        self._owner.ask(f"run {KERNEL_NS}")
        self.facts.reclaim_ms = self._first_lease(seen)
        self._measure("owner_back", shares_of_demand)
        self.facts.alive_after_reclaim = self._borrower.running()

    def _over_limit(self) -> None:
        self.facts.owner_bytes_before = self._read().readings[OWNER.name].bytes
        answer = self._borrower.ask(f"fill {TOO_MUCH} {PIECE_BYTES}")
        if not answer["ok"]:
            self.facts.refused_at_bytes = self._read().readings[BORROWER.name].bytes
            self.facts.refused_with = answer["error"]
            self.facts.refused_with_name = answer["name"]
        self._measure("over_limit", shares_of_demand)
        self.facts.owner_bytes_after = self._read().readings[OWNER.name].bytes

    def _sum_up(self) -> None:
        page = self._read()
        self.facts.peak_bytes = {tenant: reading.peak_bytes for tenant, reading in page.readings.items()}
        self.facts.kills = sum(not container.running() for container in (self._owner, self._borrower))

    @uninterrupted()
    def _end(self) -> None:
        with contextlib.ExitStack() as each:  # even if an earlier one failed
            for container in (self._borrower, self._owner):
                each.callback(container.end)
        if self._grants:
            self._node.wait_released(list(self._grants.values()))

    def _measure(self, phase: str, shares: Callable[[Page, Page], dict[str, int]]) -> None:
        self._pass(phase, SETTLE_SECONDS)
        began, before = time.monotonic(), self._read()
        self._pass(phase, self._phase_seconds)
        after = self._read()
        self.facts.seconds[phase] = time.monotonic() - began
        self.facts.shares[phase] = shares(before, after)

    def _pass(self, phase: str, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, TICK_SECONDS))
            for container in (self._owner, self._borrower):
                container.check()
            page, last = self._read(), self._last
            self._last = page
            if last is not None:
                self._watch(
                    Tick(phase, time.monotonic() - self._began, shares_of_wall(last, page), page, self._states())
                )

    def _states(self) -> dict[str, Any]:
        return {tenant: self._node.client.grant(grant_id)["devices"][0] for tenant, grant_id in self._grants.items()}

    def _read(self) -> Page:
        assert self._books is not None
        return self._books.read()

    def _first_lease(self, after: int) -> float:
        """ms from the owner's wake to its lease, as recorded by the arbiter."""
        deadline = time.monotonic() + RECLAIM_SECONDS
        while time.monotonic() < deadline:
            events, after = self._node.events(after)
            for event in events:
                if event["kind"] == "lease" and event["grant"] == self._grants[OWNER.name]:
                    return float(event["value_ns"]) / 1e6
            time.sleep(0.01)
        raise FailedError(f"{OWNER.name} did not get the device back within {RECLAIM_SECONDS:.0f} s")


def _annotations(tenant: Tenant) -> dict[str, str]:
    wanted = {
        "tenant": tenant.name,
        "memory": str(tenant.memory_bytes),
        "time": format_time(tenant.time_milli),
        "device": "0",
        "class": "training",
    }
    return {f"gpushare.dev/{name}": value for name, value in wanted.items()}
