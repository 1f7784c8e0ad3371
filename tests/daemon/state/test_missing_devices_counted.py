"""Which missing devices, present before, the node still counts."""

import sqlite3
from contextlib import closing

from gpushare.daemon.devices.health import all_devices, choose, remember
from gpushare.inject.node import DeviceNode
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.schema import STEPS
from gpushare.node.devices import MAX_DEVICES, Device


def device(number, index=0):
    node = DeviceNode(f"/dev/nvidia{number}", 195, number)
    return Device(f"GPU-{number}", index, number, "test", f"00000000:{number:02x}:00.0", 1 << 34, 5, 7, {}, (node,))


class Driver:
    """A driver that lists some devices, and counts others as absent."""

    def __init__(self, *shown, absent=0):
        self.shown, self.absent = list(shown), absent

    def miss(self, devices):
        self.shown += devices

    def devices(self):
        return self.shown


def test_those_with_living_grants_come_first_then_the_last_seen_as_many_as_are_counted():
    a, b, c = device(1), device(2), device(3)
    assert choose([a, b, c], 0, set()) == []
    assert choose([a, b, c], 0, {"GPU-3"}) == [c]
    assert choose([a, b, c], 1, {"GPU-3"}) == [c]
    assert choose([a, b, c], 2, {"GPU-3"}) == [c, a]
    assert choose([a], 5, set()) == [a]


def test_what_was_found_is_remembered_whole_and_stays_so_while_it_is_missing(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    assert all_devices(Driver(device(1), device(2)), ledger, {"GPU-2"}) == [device(1), device(2)]
    for _ in range(2):
        assert all_devices(Driver(device(1)), ledger, {"GPU-2"}) == [device(1), device(2)]
    # Not in use, and not counted by the driver: it was removed.
    assert all_devices(Driver(device(1)), ledger, set()) == [device(1)]
    assert all_devices(Driver(device(1), absent=1), ledger, set()) == [device(1), device(2)]
    ledger.close()


def test_a_device_that_replaced_another_is_the_one_that_is_missed(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    remember(ledger, device(1))
    remember(ledger, device(2))
    assert all_devices(Driver(absent=1), ledger, set()) == [device(2)]
    ledger.close()


def test_no_more_than_can_be_served(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    remember(ledger, *(device(number) for number in range(10)))
    shown = [device(number) for number in range(10, 24)]
    assert len(all_devices(Driver(*shown, absent=10), ledger, set())) == MAX_DEVICES
    ledger.close()


def test_a_ledger_of_before_devices_were_in_it_is_brought_up(tmp_path):
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.executescript(STEPS[0] + "PRAGMA user_version = 1;")
    ledger = Ledger(path)
    remember(ledger, device(1))
    assert len(ledger.devices(str)) == 1
    ledger.close()
    assert len(Ledger(path).devices(str)) == 1
