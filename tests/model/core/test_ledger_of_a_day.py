"""A day of two devices in virtual time, with a daemon that is killed now and then: each device's ledger rows add up to
the day, both as minutes and rolled up to hours."""

import random

import pytest
from msgspec.structs import replace
from virtual_device import MS, Model

from gpushare.binding.arbiter import GrantStats
from gpushare.daemon.state.books import DeviceBook, DeviceTime, Instant, Sample, periods, unowned, unused
from gpushare.ledger.entries import GAP, IDLE, Batch, Totals, values
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.verify import verify

SECOND = 1000 * MS
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE
EPOCH = 20_000 * DAY  # the wall clock when the day begins
ZERO = GrantStats(*(0,) * 10, waiting=False, held=False, processes=0, runnable=False)
GRANTS = {"a": 400, "b": 350, "scavenger": 0}  # guaranteed milli
BUSY = 1 / 40  # fraction of the intervals with work; it sets how long the test takes


class Run:
    """One run of a daemon on one device: an arbiter's core, whose counters begin at 0, and the books of its grants."""

    def __init__(self, device: str, wall_ns: int):
        self.device, self.wall_ns, self.model = device, wall_ns, Model()
        self.begun = self.model.now
        for number, guarantee in enumerate(GRANTS.values()):
            self.model.add(number, guarantee=guarantee, weight=1 if guarantee else 0)
        self.books = [DeviceBook(Totals(), ZERO, self.now) for _ in GRANTS]
        self.time = self.device_time()

    @property
    def now(self) -> Instant:
        return Instant(self.wall_ns + self.model.now - self.begun, self.model.now)

    def device_time(self) -> DeviceTime:
        books = self.model.device()
        return DeviceTime(self.now, books.leased_ns, books.switch_ns, books.idle_with_waiters_ns)

    def work(self, length_ns: int, chance: random.Random) -> None:
        """Runs for `length_ns`, in which a random choice of grants, often none, wants the device."""
        busy = chance.random() < BUSY
        for number in range(len(GRANTS)):
            self.model.want(number, None if busy and chance.random() < 0.7 else 0)
        self.model.run(length_ns)

    def rows(self) -> Batch:
        samples = []
        for number, (name, guarantee) in enumerate(GRANTS.items()):
            core = self.model.stats(number)
            stats = replace(ZERO, leased_ns=core.leased_ns, borrowed_ns=core.borrowed_ns, wait_ns=core.wait_ns)
            grant = f"g-{name}-{self.device}"
            samples.append(Sample(grant, name, self.device, 0, guarantee, self.books[number], stats, guarantee))
        found = periods(samples, self.now)
        before, self.time = self.time, self.device_time()
        found += unused(self.device, before, self.time)
        return Batch(periods=list(map(values, found)))


@pytest.mark.slow
def test_a_day_adds_up(tmp_path):
    chance = random.Random(5)
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    number, kept = 1, EPOCH
    file.begin(number, "boot", 0)
    runs = [Run(device, EPOCH) for device in "xy"]
    while runs[0].now.wall_ns < EPOCH + DAY:
        killed = chance.random() < 0.01
        length = chance.randrange(SECOND, MINUTE) if killed else MINUTE
        # A killed daemon loses what came after its last write, a second at most.
        lost = chance.randrange(SECOND) if killed else 0
        for run in runs:
            run.work(length - lost, chance)
            file.write(number, run.rows())
            run.model.run(lost)
        kept = runs[0].now.wall_ns - lost
        if killed:
            number += 1
            back = runs[0].now.wall_ns + chance.randrange(5 * SECOND)
            file.begin(number, "boot", back - kept)
            gaps = [values(unowned(GAP, run.device, kept, back, back - kept)) for run in runs]
            file.write(number, Batch(periods=gaps))
            runs = [Run(device, back) for device in "xy"]
    whole = kept - EPOCH
    assert number > 8, "it was killed some times"
    for _ in range(2):
        found = verify(path)
        assert found["ok"], found["fault"]
        for device in found["devices"].values():
            assert device["used_ns"] == pytest.approx(whole, rel=1e-6)
        while file.roll(EPOCH + 3 * DAY):  # verified again as hourly rows
            pass
    assert found["tables"]["periods"]["rows"] == 0 and found["tables"]["hours"]["rows"] > 200
    sums = dict(file._db.execute("SELECT tenant, SUM(used_ns) FROM hours GROUP BY tenant").fetchall())
    file.close()
    assert min(sums[name] for name in (*GRANTS, IDLE, GAP)) > 0
    assert sums[GAP] < 0.01 * DAY
