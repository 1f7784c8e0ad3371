"""Tenants without any work that forge the words of their page, in virtual time: `change` runs every millisecond."""

import random

from virtual_node import MS

SECOND = 1000 * MS


class Claims:
    """Claims, every millisecond, that its work is on the device for another second."""

    def __init__(self, processes=1):
        self.processes = processes

    def begin(self, liar):
        liar.processes = self.processes

    def change(self, liar, now):
        liar.claims_undrained, liar.claims_busy_until_ns = 1, now + SECOND


class Meters(Claims):
    """Claims besides that it used far more than there was time for."""

    def change(self, liar, now):
        super().change(liar, now)
        liar.metered = 1000.0 * now


class Flickers(Claims):
    """Claims to be busy for half of each `period` (ms); waits for leases that it does not use or only claims to use."""

    def __init__(self, period, processes=1):
        super().__init__(processes)
        self.period = period

    def begin(self, liar):
        super().begin(liar)
        liar.stopped, liar.work = 1, None

    def change(self, liar, now):
        busy = now // MS % self.period < self.period // 2
        liar.claims_undrained, liar.claims_busy_until_ns = int(busy), now + SECOND if busy else 0
        liar.waiting = 1
        liar.launches += 1


class Random(Flickers):
    """Changes each of its words with a probability of its own."""

    def __init__(self, seed):
        super().__init__(1)
        self.pick = random.Random(seed)
        self.busy, self.ends, self.waits, self.launches = (self.pick.random() for _ in range(4))

    def change(self, liar, now):
        draw = self.pick.random
        if draw() < 0.1:
            liar.claims_undrained = int(draw() < self.busy)
            liar.claims_busy_until_ns = now + self.pick.choice((1, 10, 100, 1000)) * MS if draw() < self.ends else 0
            liar.waiting = int(draw() < self.waits)
            liar.processes = self.pick.choice((1, 1, 4, 16))
        liar.launches += draw() < self.launches
