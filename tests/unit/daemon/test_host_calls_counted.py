"""What processes say of their calls becomes numbers of their grant: for real processes see
tests/daemon/accounts/test_calls_over_a_link.py."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpushare.binding.page_words import HostCalls
from gpushare.daemon.accounts import host_calls
from gpushare.daemon.accounts.host_calls import HostCounts
from gpushare.daemon.state.records import HostUse, MemberRecord

SECOND = 1_000_000_000


class World:
    """A grant, its pages and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000 * SECOND
        self.said: dict[int, HostCalls] = {}
        self.joined: dict[int, int] = {}
        self.saves = 0
        usage = SimpleNamespace(host_calls=lambda slot: self.said[slot], since_ns=lambda slot: self.joined[slot])
        self.record = SimpleNamespace(members=[], host=HostUse())
        self.live: Any = SimpleNamespace(id="g-1", record=self.record, usage=usage)
        monkeypatch.setattr(host_calls.time, "monotonic_ns", lambda: self.now)
        self.restart()

    def restart(self, gap_s: float = 0) -> None:
        state: Any = SimpleNamespace(ledger=SimpleNamespace(gap_ns=int(gap_s * SECOND)), save=self.save)
        self.counts = HostCounts(state)

    def save(self, record: Any) -> None:
        assert record is self.record
        self.saves += 1

    def join(self, slot: int) -> None:
        self.joined[slot], self.said[slot] = self.now, HostCalls()
        self.record.members.append(MemberRecord(pid=slot, started=1, slot=slot, generation=1))

    def leave(self, slot: int) -> None:
        self.counts.left(self.live, slot)
        self.record.members = [member for member in self.record.members if member.slot != slot]

    def after(self, seconds: float, *, works: bool = False, **said: tuple[int, int, int]) -> tuple[int, ...]:
        """What is counted after so long, when the processes say this; the last number is seconds."""
        self.now += int(seconds * SECOND)
        self.said |= {int(slot[1:]): HostCalls(*numbers) for slot, numbers in said.items()}
        self.counts.look(self.live, works=works)
        return self.counted()

    def counted(self) -> tuple[int, ...]:
        host = self.record.host
        return host.sync_calls, host.bytes_in, host.bytes_out, host.running_ns // SECOND


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_numbers_of_all_processes_add_up_and_outlive_them(world):
    world.join(1)
    assert world.after(1, p1=(10, 1000, 1)) == (10, 1000, 1, 1)
    world.join(2)
    assert world.after(1, p1=(15, 1000, 1), p2=(7, 0, 5)) == (22, 1000, 6, 2)
    world.said[1] = HostCalls(16, 1000, 1)
    world.leave(1)
    assert world.after(1, p2=(8, 0, 5)) == (24, 1000, 6, 3)
    world.join(1)  # its slot is another's now
    assert world.after(1, p1=(3, 0, 0)) == (27, 1000, 6, 4)


def test_time_counts_only_while_something_is_done(world):
    world.join(1)
    assert world.after(1, p1=(1, 0, 0))[-1] == 1
    assert world.after(1)[-1] == 1
    assert world.after(1, works=True)[-1] == 2
    world.after(50)
    assert world.after(1, p1=(2, 0, 0))[-1] == 3


def test_a_short_program_counts_from_its_start_to_its_end(world):
    world.after(1)
    world.now += SECOND // 2
    world.join(1)
    world.now += SECOND // 4
    world.said[1] = HostCalls(5, 0, 0)
    world.leave(1)
    assert (world.counted()[0], world.record.host.running_ns) == (5, SECOND // 4)


def test_nothing_is_believed_that_cannot_be(world):
    world.join(1)
    most = (1 << 63) - 1
    calls, bytes_in, bytes_out, _ = world.after(1, p1=(most, most, most))
    assert calls <= 2 * SECOND
    assert bytes_in == bytes_out <= 2 << 40
    before = world.counted()
    assert world.after(1, p1=(0, 0, 0))[:3] == before[:3], "a number that goes back counts nothing"
    world.after(1, p1=(5, 0, 0))
    assert world.counted()[:3] == before[:3]


def test_a_restart_counts_what_was_done_meanwhile_once(world):
    world.join(1)
    world.after(1, p1=(10, 0, 0))
    assert world.saves == 1
    world.after(1, p1=(20, 0, 0))
    assert world.saves == 1, "a record is not written every second"
    kept = world.record.members[0].host, HostUse(sync_calls=10, running_ns=SECOND, until_ns=world.now - SECOND)
    world.record.members[0].host, world.record.host = HostCalls(10, 0, 0), kept[1]
    world.restart(gap_s=3)
    assert world.after(3, p1=(50, 0, 0)) == (50, 0, 0, 5)


def test_a_restart_after_a_long_time_without_work_does_not_count_that_time(world):
    world.join(1)
    world.after(1, p1=(10, 0, 0))
    world.now += 7200 * SECOND
    world.restart(gap_s=3)
    assert world.after(1, p1=(11, 0, 0))[-1] <= 1 + 60 + 3


def test_records_are_written_once_a_minute_while_something_is_done(world):
    world.join(1)
    for second in range(1, 180):
        world.after(1, p1=(second, 0, 0))
    assert world.saves == 3
