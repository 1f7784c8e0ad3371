"""What users can make the daemon remember, and what it says where borrowers keep each other from working."""

from types import SimpleNamespace
from typing import Any

from gpushare.api.types import GrantRequest
from gpushare.daemon.grants.loans import Together
from gpushare.daemon.grants.pressure import Pressures
from gpushare.daemon.grants.wants import WANTS_MAX, WANTS_OF_USER, Wants
from gpushare.daemon.state.asked import Asked
from gpushare.daemon.state.decisions import Decisions
from gpushare.policy.grants.admission import Place
from gpushare.policy.loans.recall import Policy
from gpushare.policy.residency.pressure import BAD_WINDOWS, CALM_WINDOWS
from gpushare.policy.residency.room import Link
from gpushare.policy.residency.states import RESIDENT

GIB, SECOND, USER = 1 << 30, 10**9, 1000


def test_one_user_does_not_fill_the_table_for_others() -> None:
    wants: Any = Wants(SimpleNamespace(devices=[]))  # type: ignore[arg-type]
    wanted = Together((Asked.of(GrantRequest(memory=GIB, time=0), Policy()),))

    def takes(uid: int, number: int) -> bool:
        return wants.of_request(f"{uid} {number}", uid, wanted, 0) is not None

    assert [takes(USER, number) for number in range(WANTS_OF_USER + 3)] == [True] * WANTS_OF_USER + [False] * 3
    assert takes(USER, 0), "that one is known"
    assert takes(USER + 1, 0)
    left = WANTS_MAX - WANTS_OF_USER - 1
    assert [takes(0, number) for number in range(left + 2)] == [True] * left + [False] * 2
    wants.forget(f"{USER} 3")
    assert takes(USER, 99)


class Node:
    """Two borrowers of one device, none of which works; what is published of the device."""

    def __init__(self) -> None:
        self.borrowers: list[Any] = [self.borrower("g-low", -1), self.borrower("g-high", 1)]
        self.devices = [SimpleNamespace(id="d", index=0, memory_bytes=16 * GIB)]
        self.decisions = Decisions()
        self.promises = SimpleNamespace(now=SimpleNamespace(tenants={}))
        self.events: list[str] = []
        self.links = {"d": Link()}
        self.now = 0
        self.pressures = Pressures(self, lambda _, name: self.events.append(name), self.links)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        return iter(self.borrowers)

    @staticmethod
    def borrower(name: str, priority: int) -> Any:
        place = Place("d", 0, 12 * GIB, 0, 0, 1000, borrowed_bytes=12 * GIB)
        request = SimpleNamespace(class_="interactive", priority=priority)
        record = SimpleNamespace(id=name, tenant="t", places=[place], residency=RESIDENT)
        return SimpleNamespace(id=name, record=record, asked=SimpleNamespace(request=request), usage=None)

    def minutes(self, count: int, *, waits: bool, between: bool = False) -> None:
        """`between`: in each tenth second nobody waits for a moment."""
        for second in range(60 * count):
            self.now += SECOND
            self.pressures.looked(self.now, ["d"] if waits and not (between and second % 10 == 0) else [])


def test_where_work_waits_and_nothing_runs_more_is_done_and_people_are_told() -> None:
    node = Node()
    low, high = node.borrowers
    node.minutes(1, waits=True)
    assert (node.events, node.links["d"].factor) == ([], 1)
    node.minutes(BAD_WINDOWS, waits=True)
    assert (node.events, node.links["d"].factor) == (["MemoryPressure"], 2)
    [told] = node.decisions.of(low.id)
    assert "12GiB + 12GiB, and it has 16GiB: turns are longer" in told.text
    for _ in range(8):
        node.minutes(BAD_WINDOWS, waits=True)
    assert not node.pressures.takes_loans("d")
    assert [node.pressures.is_parked(one) for one in (low, high)] == [True, False]
    for _ in range(8):
        node.minutes(CALM_WINDOWS, waits=False)
    assert node.pressures.takes_loans("d")
    assert not node.pressures.is_parked(low)
    assert node.links["d"].factor == 1


def test_a_moment_in_which_nobody_waits_does_not_hide_it() -> None:
    node = Node()
    node.minutes(1 + BAD_WINDOWS, waits=True, between=True)
    assert node.events == ["MemoryPressure"]


def test_a_device_where_nobody_waits_is_forgotten() -> None:
    node = Node()
    node.minutes(3, waits=False)
    node.minutes(BAD_WINDOWS - 1, waits=True)
    node.minutes(CALM_WINDOWS, waits=False)
    assert node.events == []
    assert not node.pressures._pressure
