"""One virtual device and its tenants (virtual_node.py)."""

from virtual_node import LEASE, MS, Node, ffi


class Model(Node):
    def __init__(self, **changes):
        super().__init__(1, exclusive=True, **changes)
        [self._device] = self.devices
        self.core, self.tenants, self.stats, self.device = (
            self._device.core,
            self._device.tenants,
            self._device.stats,
            self._device.books,
        )

    def add(self, number, **settings):
        super().add(number, [0], **settings)
        return self.tenants[number]

    @property
    def next(self):
        """The time at which the core wants its next step."""
        return self.raw.device[0].next_ns

    @property
    def waits(self):
        return self._device.waits

    @property
    def decisions(self):
        """(time, action, grant, other, value) of each decision."""
        self.read()
        return [(t, *decision) for t, _, *decision in self._trace]

    @property
    def receipts(self):
        """The receipt of each decision."""
        events = self.raw.event[0 : self.raw.nevents]
        return [ffi.new("struct gs_receipt *", event.decision.receipt)[0] for event in events]

    @property
    def leases(self):
        """(time, grant) of each lease."""
        self.read()
        return [(t, grant) for t, _, action, grant, *_ in self._trace if action == LEASE]

    def shares(self, duration):
        """The parts of `duration` that each tenant was charged and executed."""
        charged = {n: self.stats(n).leased_ns for n in self.tenants}
        executed = {n: t.executed for n, t in self.tenants.items()}
        self.run(duration)
        return (
            {n: (self.stats(n).leased_ns - charged[n]) / duration for n in self.tenants},
            {n: (t.executed - executed[n]) / duration for n, t in self.tenants.items()},
        )


def machine(*tenants, **changes):
    """A device on which all these tenants have endless work, after the start phase."""
    m = Model(**changes)
    for number, settings in enumerate(tenants):
        m.add(number, **settings)
    for number in range(len(tenants)):
        m.want(number)
    m.run(1000 * MS)
    return m
