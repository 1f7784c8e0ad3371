"""A device and its tenants in virtual time, driving the pure core of the arbiter (native/arbiter/core.h).

The device runs what was submitted: the lease holder keeps `depth` of work queued while it has some, a revoked holder's
rest runs on beside its successor at an equal part of the device, as hardware time slicing does.
"""

from dataclasses import dataclass
from typing import Any

from gpushare._native import ffi, lib

MS = 1_000_000
NEVER = 2**64 - 1
START = 1000 * MS  # a clock never reads 0
LEASE, REVOKE, HANDOVER, LATE, WAKE, CONTENDED, AGAIN, DRAINED, LEFT = range(1, 10)


def config(**changes):
    settings = ffi.new("struct gs_arbiter_config *")
    lib.gs_arbiter_defaults(settings)
    for name, value in changes.items():
        setattr(settings, name, value)
    return settings


@dataclass
class Tenant:
    """`work`: device time it still wants to submit, None without end. `gap`: it submits one `kernel` at a time and so
    long after the last was done, as a program that the host bounds; 0: it keeps `depth` queued."""

    guarantee: int = 0
    limit: int = 1000
    weight: int = 1
    tier: int = 0
    depth: int = 2 * MS
    kernel: int = MS // 10
    gap: int = 0
    workload: int = 2
    work: float | None = 0
    stopped: bool = False
    live: int = 1
    held: bool = False
    waiting: bool = False
    queued: float = 0
    executed: float = 0
    launches: int = 0
    contended: int | None = None
    woke: int | None = None
    ready: int = 0
    busy_until: int = 0

    @property
    def wants(self):
        return self.work is None or self.work > 0

    def share(self):
        share = ffi.new("struct gs_share *")
        share.guarantee_milli, share.limit_milli = self.guarantee, self.limit
        share.weight, share.tier, share.class_ = self.weight, self.tier, self.workload
        return share


class Model:
    def __init__(self, **changes):
        self.config = config(**changes)
        out = ffi.new("gs_core **")
        self.now = START
        assert lib.gs_core_create(out, self.config, START) == 0
        self.core = ffi.gc(out[0], lib.gs_core_destroy)
        self.next = NEVER
        self.tenants: dict[int, Tenant] = {}
        self.leases: list[tuple[int, int]] = []  # (time, grant)
        self.decisions: list[tuple[int, int, int, int, int]] = []
        self.receipts: list[Any] = []  # of each decision
        self.waits: list[tuple[int, int]] = []  # (grant, wake to lease)
        self.steps = 0
        self._out = ffi.new("struct gs_core_decision[]", lib.GS_CORE_DECISIONS)
        self._next = ffi.new("uint64_t *")
        self._view = ffi.new("struct gs_core_view *")

    # What happens to tenants.

    def add(self, number, **settings):
        tenant = self.tenants[number] = Tenant(**settings)
        lib.gs_core_add(self.core, number, tenant.share(), 0, self.now)
        self.step()
        return tenant

    def remove(self, number):
        del self.tenants[number]
        lib.gs_core_remove(self.core, number, self.now)
        self.step()

    def change(self, number, **settings):
        for name, value in settings.items():
            setattr(self.tenants[number], name, value)
        lib.gs_core_share(self.core, number, self.tenants[number].share(), self.now)
        self.step()

    def want(self, number, work=None):
        tenant = self.tenants[number]
        if not tenant.wants and not tenant.held:
            tenant.woke = self.now
        tenant.work = work
        self.step()

    def stop(self, number, stopped=True):
        """SIGSTOP or SIGCONT: what it queued still runs, nothing else changes in its page."""
        self.tenants[number].stopped = stopped
        if not stopped:  # its threads in the gate ring again
            lib.gs_core_heard(self.core, number)
        self.step()

    # The machine.

    def _running(self):
        return [t for t in self.tenants.values() if t.queued > 0]

    def _until_change(self):
        """ns until some queue runs dry; one that is topped up all the time never does."""
        running = self._running()
        dry = [t.queued * len(running) for t in running if t.gap or not (t.held and t.work is None and not t.stopped)]
        due = [t.ready - self.now for t in self.tenants.values() if t.gap and t.wants and t.ready > self.now]
        return min(dry + due, default=None)

    def _execute(self, dt):
        running = self._running()
        for t in running:
            t.executed += dt / len(running)
            t.queued -= dt / len(running)
            if t.queued < 1:
                t.queued = 0
                t.busy_until = self.now + int(dt)
                t.ready = self.now + int(dt) + t.gap

    def _fill(self):
        """A holder submits up to its depth; what is submitted has left `work`."""
        for t in self.tenants.values():
            if not t.held or t.stopped or not t.wants or t.queued >= t.depth:
                continue
            if t.gap and (t.queued or self.now < t.ready):
                continue
            depth = t.kernel if t.gap else t.depth
            more = depth - t.queued if t.work is None else min(depth - t.queued, t.work)
            if t.work is not None:
                t.work -= more
            t.queued += more
            t.launches += 1

    def view(self, t):
        if not t.stopped:
            t.waiting = t.wants and not t.held and self.now >= t.ready
        view = self._view
        view.waiting, view.live, view.launches = t.waiting, t.live, t.launches
        view.busy_ns = int(t.executed)
        running = max(1, len(self._running()))
        if t.queued:
            t.busy_until = int(self.now + t.queued * running)
        view.busy_until_ns = t.busy_until
        view.drained = int(t.queued <= 0.2 * MS)
        return view

    def step(self):
        while True:
            self._fill()
            for number, tenant in self.tenants.items():
                lib.gs_core_observe(self.core, number, self.view(tenant))
            n = lib.gs_core_step(self.core, self.now, self._out, self._next)
            self.steps += 1
            for d in self._out[0:n]:
                self.decisions.append((self.now, d.action, d.grant, d.other, d.value))
                self.receipts.append(ffi.new("struct gs_receipt *", d.receipt)[0])
                tenant = self.tenants[d.grant]
                if d.action == LEASE:
                    # one that keeps the device full has it for itself
                    with_it = [t for t in self.tenants.values() if t.held]
                    assert not with_it or all(t.gap for t in [*with_it, tenant]), "two leases at once"
                    tenant.held = True
                    self.leases.append((self.now, d.grant))
                    if tenant.woke is not None:
                        self.waits.append((d.grant, self.now - tenant.woke))
                        tenant.woke = None
                elif d.action == REVOKE:
                    assert tenant.held, "revoked without a lease"
                    tenant.held = False
                elif d.action == CONTENDED:
                    tenant.contended = d.value
            self.next = self._next[0]
            if n == 0:
                return
            assert self.next > self.now

    def run(self, duration):
        end = self.now + duration
        while self.now < end:
            self._fill()
            change = self._until_change()
            then = min(end, self.next, NEVER if change is None else self.now + int(change) + 1)
            self._execute(then - self.now)
            self.now = then
            self.step()

    # The books.

    def stats(self, number):
        out = ffi.new("struct gs_core_stats *")
        lib.gs_core_grant_stats(self.core, number, out)
        return out

    def device(self):
        out = ffi.new("struct gs_device_stats *")
        lib.gs_core_device_stats(self.core, out)
        return out

    def shares(self, duration):
        """Parts of `duration` that each tenant was charged and that it executed."""
        charged = {n: self.stats(n).leased_ns for n in self.tenants}
        executed = {n: t.executed for n, t in self.tenants.items()}
        self.run(duration)
        return (
            {n: (self.stats(n).leased_ns - charged[n]) / duration for n in self.tenants},
            {n: (t.executed - executed[n]) / duration for n, t in self.tenants.items()},
        )
