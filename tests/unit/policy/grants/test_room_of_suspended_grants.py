"""What grants leave when their memory is hosted goes to others only on loan: whoever is away can come back once those
loans have ended, in whatever order grants come, leave, return and go."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import RefusedError
from gpushare.policy.grants.admission import Device, Place, Request, Tenant, place
from gpushare.policy.grants.taken import Holding, Taken
from gpushare.text.units import GIB, MIB

CAPACITY = 16 * GIB
DEVICES = [Device("d0", 0, CAPACITY), Device("d1", 1, CAPACITY)]
TENANTS = {"a": Tenant("a", 0, 8 * GIB), "b": Tenant("b", 0), "c": Tenant("c", 0, 4 * GIB)}


def holding(grant: str, tenant: str, at: Place) -> Holding:
    return Holding(
        grant,
        tenant,
        at.device,
        at.here_bytes,
        at.time_milli,
        at.guaranteed_milli,
        away_bytes=max(0, at.hosted_bytes - at.borrowed_bytes),
    )


class Books:
    def __init__(self) -> None:
        self.taken, self.grants, self.count = Taken(), dict[str, tuple[str, Place]](), 0

    def admit(self, tenant: str, memory: int, borrow: int) -> str | None:
        request = Request(tenant, memory, 0, borrow=borrow)
        try:
            [at] = place(request, DEVICES, TENANTS, self.taken)
        except RefusedError:
            return None
        self.count += 1
        name = f"g{self.count}"
        self.put(name, tenant, at)
        return name

    def put(self, name: str, tenant: str, at: Place) -> None:
        self.grants[name] = tenant, at
        self.taken.put(holding(name, tenant, at))

    def end(self, name: str) -> None:
        _, at = self.grants.pop(name)
        self.taken.drop(name, at.device)

    def free(self, device: str) -> int:
        return CAPACITY - self.taken.on(device).memory_bytes

    def check(self) -> None:
        for device in DEVICES:
            here = [at for _, at in self.grants.values() if at.device == device.id]
            assert sum(at.here_bytes for at in here) <= CAPACITY
            assert sum(max(0, at.memory_bytes - at.borrowed_bytes) for at in here) <= CAPACITY, "somebody cannot return"
            away = sum(max(0, at.hosted_bytes - at.borrowed_bytes) for at in here)
            assert self.taken.on(device.id).away_bytes == away


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["admit", "admit", "suspend", "suspend", "return", "end"]),
        st.sampled_from(sorted(TENANTS)),
        st.integers(1, 28),
        st.sampled_from([0, 0, 4, 64]),
        st.integers(0, 1 << 16),
    ),
    max_size=60,
)


@pytest.mark.promise("away-room-stays-own")
@given(steps=STEPS)
def test_whoever_is_away_can_come_back_once_loans_have_ended(steps) -> None:
    books = Books()
    for what, tenant, size, borrow, pick in steps:
        if what == "admit":
            books.admit(tenant, size * GIB // 2, borrow * GIB // 4)
        elif books.grants:
            name = sorted(books.grants)[pick % len(books.grants)]
            whose, at = books.grants[name]
            if what == "suspend" and not at.hosted_bytes:
                books.put(name, whose, replace(at, hosted_bytes=at.memory_bytes * (1 + pick % 9) // 10))
            elif what == "return" and at.hosted_bytes <= books.free(at.device):
                books.put(name, whose, replace(at, hosted_bytes=0))
            elif what == "end":
                books.end(name)
        books.check()
    for name in [name for name, (_, at) in books.grants.items() if at.borrowed_bytes]:
        books.end(name)
    for name, (whose, at) in list(books.grants.items()):
        assert at.hosted_bytes <= books.free(at.device)
        books.put(name, whose, replace(at, hosted_bytes=0))
    books.check()


def test_the_refusal_says_whose_room_it_is() -> None:
    books = Books()
    name = books.admit("b", 12 * GIB, 0)
    assert name is not None
    whose, at = books.grants[name]
    other = "d1" if at.device == "d0" else "d0"
    books.put("full", "b", replace(at, device=other, memory_bytes=CAPACITY))
    books.put(name, whose, replace(at, hosted_bytes=10 * GIB))
    with pytest.raises(RefusedError, match="10GiB of it is to go back to suspended grants: 4GiB would be borrowed"):
        place(Request("b", 8 * GIB, 0), DEVICES, {"b": TENANTS["b"]}, books.taken)
    [lent] = place(Request("b", 8 * GIB, 0, borrow=8 * GIB), DEVICES, {"b": TENANTS["b"]}, books.taken)
    assert lent.borrowed_bytes == 4 * GIB
    [own] = place(Request("b", 4 * GIB, 0), DEVICES, {"b": TENANTS["b"]}, books.taken)
    assert own.borrowed_bytes == 0
    assert own.memory_bytes > 256 * MIB
