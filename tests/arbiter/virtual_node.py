"""Several virtual devices under one clock, with gangs over them (native/arbiter/gang.h).

A gang has a rank on each of its devices, which is a tenant like any other there; none runs collectives. The node
asserts at each instant at which decisions have been made that each gang has a lease on all its devices or on none."""

from virtual_device import CONTENDED, LEASE, NEVER, REVOKE, START, Model, Tenant

from gpushare._native import ffi, lib

AGAIN = 7
GANG, BESIDE = lib.GS_SHARE_GANG, lib.GS_SHARE_BESIDE


class Device(Model):
    """What Model knows of one device; the node makes the steps."""

    def step(self):
        raise AssertionError("the node steps its devices")


class Node:
    def __init__(self, devices=2, **changes):
        self.devices = [Device(**changes) for _ in range(devices)]
        self.now = START
        self.gangs: dict[int, list[int]] = {}
        self.places: dict[int, list[int]] = {}
        self.steps = 0
        self.revoked: dict[int, int] = {}  # place -> when a lease was last taken on it
        self.trace: list[tuple[int, int, int, int, int]] = []  # (time, device, action, grant, other)
        out = ffi.new("gs_gangs **")
        assert lib.gs_gangs_create(out, self.devices[0].config) == 0
        self.layer = ffi.gc(out[0], lib.gs_gangs_destroy)
        self.cores = ffi.new("gs_core *[16]", [device.core for device in self.devices])
        self._out = ffi.new("struct gs_gang_decision[]", lib.GS_GANG_DECISIONS)
        self._again, self._next = ffi.new("uint32_t *"), ffi.new("uint64_t *")
        self.next = NEVER

    # What happens to tenants.

    def add(self, grant, places, *, held=False, flags=None, **settings):
        """A gang where there are several places; `held`: its lease words say so from before. Gives whether they
        stand."""
        self.places[grant] = list(places)
        flags = (GANG if len(places) > 1 else 0) if flags is None else flags
        ranks = {place: Tenant(**settings) for place in places}
        shares = ffi.new("struct gs_share[]", [rank.share()[0] for rank in ranks.values()])
        for share in shares:
            share.flags = flags
        for place, rank in ranks.items():
            self.devices[place].tenants[grant] = rank
        if flags & GANG:
            self.gangs[grant] = list(places)
            stands = lib.gs_gangs_add(self.layer, self.cores, grant, list(places), len(places), shares, held, self.now)
        else:
            for share, place in zip(shares, places, strict=True):
                stands = lib.gs_core_add(self.cores[place], grant, ffi.addressof(share), held, self.now)
        for rank in ranks.values():
            rank.held = bool(stands)
        self.step()
        return bool(stands)

    def remove(self, grant):
        places = self.places.pop(grant)
        if self.gangs.pop(grant, None):
            lib.gs_gangs_remove(self.layer, self.cores, grant, self.now)
        else:
            for place in places:
                lib.gs_core_remove(self.cores[place], grant, self.now)
        for place in places:
            del self.devices[place].tenants[grant]
        self.step()

    def want(self, grant, work=None, *, only=None):
        for place in self.places[grant] if only is None else [only]:
            rank = self.devices[place].tenants[grant]
            if not rank.wants and not rank.held:
                rank.woke = self.now
            rank.work = work
        self.step()

    def stop(self, grant, stopped=True, *, only=None):
        for place in self.places[grant] if only is None else [only]:
            self.devices[place].tenants[grant].stopped = stopped
            if not stopped:  # its threads in the gate ring again
                lib.gs_core_heard(self.devices[place].core, grant)
        self.step()

    def kill(self, grant):
        for place in self.places[grant]:
            rank = self.devices[place].tenants[grant]
            rank.live, rank.work, rank.queued, rank.waiting = 0, 0, 0, False
        self.step()

    # The machine.

    def _observe(self):
        for device in self.devices:
            device.now = self.now
            device._fill()
        for grant, places in self.places.items():
            views = {place: ffi.new("struct gs_core_view *") for place in places}
            for place, view in views.items():
                ffi.memmove(view, self.devices[place].view(self.devices[place].tenants[grant]), ffi.sizeof(view[0]))
            for place, view in views.items():
                view.wanted = sum(other.waiting for other in views.values())
                lib.gs_core_observe(self.cores[place], grant, view)

    def _apply(self, place, decision):
        self.trace.append((self.now, place, decision.action, decision.grant, decision.other))
        device = self.devices[place]
        rank = device.tenants[decision.grant]
        if decision.action in (LEASE, AGAIN):
            assert not rank.held, "a lease that it has"
            rank.held = True
            if rank.woke is not None:
                device.waits.append((decision.grant, self.now - rank.woke))
                rank.woke = None
        elif decision.action == REVOKE:
            assert rank.held, "revoked without a lease"
            rank.held = False
            self.revoked[place] = self.now
        elif decision.action == CONTENDED:
            rank.contended = decision.value

    def step(self):
        for _ in range(200):
            self._observe()
            made = 0
            for place, device in enumerate(self.devices):
                n = lib.gs_core_step(device.core, self.now, device._out, device._next)
                device.next = device._next[0]
                made += n
                for decision in device._out[0:n]:
                    self._apply(place, decision)
            n = lib.gs_gangs_step(self.layer, self.cores, self.now, self._out, self._again, self._next)
            self.next = self._next[0]
            self.steps += 1
            for row in self._out[0:n]:
                self._apply(row.device, row.core)
            if not self._again[0]:
                self.check()
                if not made:
                    return
        raise AssertionError("decides without end")

    def check(self):
        for grant, places in self.gangs.items():
            held = {self.devices[place].tenants[grant].held for place in places}
            assert len(held) == 1, f"gang {grant} has a part of its devices at {self.now}"
            assert held == {bool(lib.gs_gangs_held(self.layer, grant))}
            for place in places:
                assert {bool(lib.gs_core_holds(self.cores[place], grant))} == held

    def run(self, duration):
        end = self.now + duration
        while self.now < end:
            then = min(end, self.next, *(device.next for device in self.devices))
            for device in self.devices:
                device._fill()
                change = device._until_change()
                if change is not None:
                    then = min(then, self.now + int(change) + 1)
            then = max(then, self.now + 1)
            for device in self.devices:
                device._execute(then - self.now)
                device.now = then
            self.now = then
            self.step()

    # The books.

    def executed(self, grant):
        return [self.devices[place].tenants[grant].executed for place in self.places[grant]]

    def shares(self, duration):
        """Of each grant, what part of `duration` it executed on each of its devices; and what part of it each device
        was idle while somebody could have used it."""
        before = {grant: self.executed(grant) for grant in self.places}
        idle = [device.device().idle_with_waiters_ns for device in self.devices]
        self.run(duration)
        return (
            {
                grant: [(now - then) / duration for now, then in zip(self.executed(grant), had, strict=True)]
                for grant, had in before.items()
            },
            [
                (device.device().idle_with_waiters_ns - then) / duration
                for device, then in zip(self.devices, idle, strict=True)
            ],
        )

    def held(self, grant):
        return all(self.devices[place].tenants[grant].held for place in self.places[grant])
