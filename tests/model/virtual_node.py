"""Devices and tenants in virtual time around the arbiter's pure code (virtual.h): configured here, stepped in C.

After each round of decisions, the node checks that each gang has a lease on all of its devices or on none, that no
lease is given twice, and that deciding terminates."""

import importlib.util
import math

from run import built

_spec = importlib.util.spec_from_file_location("_virtual", built.program("_virtual.abi3.so"))
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
ffi, lib = _module.ffi, _module.lib

MS = 1_000_000
NEVER = 2**64 - 1
START = 1000 * MS  # a clock never reads 0
LEASE, REVOKE, HANDOVER, LATE, WAKE, CONTENDED, AGAIN, DRAINED, LEFT = range(1, 10)
GANG, BESIDE = lib.GS_SHARE_GANG, lib.GS_SHARE_BESIDE
DEFAULTS = {"limit": 1000, "weight": 1, "workload": 2, "depth": 2 * MS, "kernel": MS // 10, "live": 1, "contended": -1}
ALL = -1


def config(**changes):
    settings = ffi.new("struct gs_arbiter_config *")
    lib.gs_arbiter_defaults(settings)
    for name, value in changes.items():
        setattr(settings, name, value)
    return settings


def _work(work):
    return math.inf if work is None else work


class Tenant:
    """A grant on one device: the fields of virtual_tenant. `work` None: endless."""

    def __init__(self, node, row):
        object.__setattr__(self, "_node", node)  # keeps the memory of the row alive
        object.__setattr__(self, "_row", row)

    def __getattr__(self, name):
        value = getattr(self._row, name)
        return None if name == "work" and math.isinf(value) else value

    def __setattr__(self, name, value):
        setattr(self._row, name, _work(value) if name == "work" else value)


class Device:
    """One device of a node: its tenants by grant number, and the decisions about them."""

    def __init__(self, node, place):
        self.node, self.place = node, place
        self.core = node.raw.core[place]
        self.tenants = {}
        self._waits = []

    @property
    def waits(self):
        """(grant, time from wake to lease) of each wake; a test may clear the list."""
        self.node.read()
        return self._waits

    @property
    def revoked(self):
        """The time at which a lease on this device was last revoked."""
        return self.node.raw.device[self.place].revoked_ns

    def stats(self, grant):
        out = ffi.new("struct gs_core_stats *")
        lib.gs_core_grant_stats(self.core, grant, out)
        return out

    def books(self):
        out = ffi.new("struct gs_device_stats *")
        lib.gs_core_device_stats(self.core, out)
        return out


class Node:
    def __init__(self, devices=2, *, exclusive=False, slice_ns=0, **changes):
        self._config = config(**changes)
        self.raw = ffi.gc(lib.virtual_create(self._config, devices, exclusive, START), lib.virtual_destroy)
        self.raw.slice_ns = slice_ns
        self.devices = [Device(self, place) for place in range(devices)]
        self.gangs: dict[int, list[int]] = {}
        self.places: dict[int, list[int]] = {}
        self._trace: list[tuple[int, int, int, int, int, int]] = []
        self._receipts = []

    def _checked(self, result=None):
        assert not self.raw.broken, f"{ffi.string(self.raw.broken).decode()} at {self.now}"
        return result

    # Events of tenants.

    def add(self, grant, places, *, held=False, flags=None, **settings):
        """A gang if there are several places. `held`: its lease words already say that it holds its leases. Returns
        whether they remain valid."""
        flags = (GANG if len(places) > 1 else 0) if flags is None else flags
        row = ffi.new("struct virtual_tenant *", {**DEFAULTS, **settings, "work": _work(settings.get("work", 0))})
        self.places[grant] = list(places)
        if flags & GANG:
            self.gangs[grant] = list(places)
        for place in places:
            raw = ffi.addressof(self.raw.device[place].tenant, grant)
            self.devices[place].tenants[grant] = Tenant(self.raw, raw)
        return bool(self._checked(lib.virtual_add(self.raw, grant, places, len(places), row, flags, held)))

    def remove(self, grant):
        for place in self.places.pop(grant):
            del self.devices[place].tenants[grant]
        self.gangs.pop(grant, None)
        self._checked(lib.virtual_remove(self.raw, grant))

    def change(self, grant, **settings):
        for place in self.places[grant]:
            for name, value in settings.items():
                setattr(self.devices[place].tenants[grant], name, value)
        self._checked(lib.virtual_share(self.raw, grant))

    def want(self, grant, work=None, *, only=None):
        """`work`: device time that the grant still wants to submit, None for endless. `only`: on this device alone."""
        self._checked(lib.virtual_want(self.raw, grant, ALL if only is None else only, _work(work)))

    def stop(self, grant, stopped=True, *, only=None):
        """SIGSTOP or SIGCONT: queued work still runs, its page does not change otherwise."""
        self._checked(lib.virtual_stop(self.raw, grant, ALL if only is None else only, stopped))

    def kill(self, grant):
        self._checked(lib.virtual_kill(self.raw, grant))

    # Time.

    @property
    def now(self):
        return self.raw.now_ns

    @now.setter
    def now(self, now):
        self.raw.now_ns = now

    @property
    def steps(self):
        return self.raw.steps

    def step(self):
        self._checked(lib.virtual_step(self.raw))

    def run(self, duration):
        self._checked(lib.virtual_run(self.raw, int(duration)))

    def run_bare(self, duration):
        """Without an arbiter."""
        lib.virtual_run_bare(self.raw, int(duration))

    # Decisions.

    def read(self):
        raw = self.raw
        for event in raw.event[len(self._trace) : raw.nevents] if raw.nevents > len(self._trace) else ():
            decision = event.decision
            row = (event.t_ns, event.device, decision.action, decision.grant, decision.other, decision.value)
            self._trace.append(row)
            if event.waited_ns != NEVER:
                self.devices[event.device]._waits.append((decision.grant, event.waited_ns))

    @property
    def trace(self):
        """(time, device, action, grant, other) of each decision."""
        self.read()
        return [row[:5] for row in self._trace]

    def held(self, grant):
        return all(self.devices[place].tenants[grant].held for place in self.places[grant])

    # Accounting.

    def executed(self, grant):
        return [self.devices[place].tenants[grant].executed for place in self.places[grant]]

    def shares(self, duration):
        """Runs for `duration`. Returns, for each grant, the part of it that it executed on each of its devices; and for
        each device, the part for which it was idle while a grant could have used it."""
        before = {grant: self.executed(grant) for grant in self.places}
        idle = [device.books().idle_with_waiters_ns for device in self.devices]
        self.run(duration)
        return (
            {
                grant: [(now - then) / duration for now, then in zip(self.executed(grant), had, strict=True)]
                for grant, had in before.items()
            },
            [
                (device.books().idle_with_waiters_ns - then) / duration
                for device, then in zip(self.devices, idle, strict=True)
            ],
        )
