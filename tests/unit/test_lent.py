"""What was lent is worked out by sums, and rows of the ledger are joined: as if each came from all others at once."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.books import _Lending, _lent, _unused, joined
from gpushare.ledger.entries import Period

milli = st.integers(0, 1000)
rows = st.lists(st.tuples(st.sampled_from(["d0", "d1"]), milli, milli, milli), max_size=8)


def period(number: int, device: str, granted: int, used: int, borrowed: int) -> Period:
    return Period(
        grant_id=f"g{number}", tenant="t", device=device, from_ns=0, to_ns=1000, granted_ns=granted, used_ns=used,
        busy_ns=used, borrowed_ns=min(used, borrowed), lent_ns=0, waited_ns=1, memory_bytes=number,
        memory_peak_bytes=number, waits=1, wait_max_ns=5, reclaims=2, reclaim_ns=3, reclaim_max_ns=4,
    )  # fmt: skip


def lent(row: Period, others: list[Period]) -> int:
    same = [other for other in others if other.device == row.device]
    borrowed = sum(other.borrowed_ns for other in same if other.grant_id != row.grant_id)
    nobodys = max(0, row.to_ns - row.from_ns - sum(other.granted_ns for other in same))
    unused = nobodys + sum(_unused(other) for other in same)
    return min(borrowed * _unused(row) // unused, _unused(row)) if unused else 0


@given(rows)
def test_what_was_lent(found):
    all_rows = [period(number, *row) for number, row in enumerate(found)]
    for row in all_rows:
        there = _Lending()
        for other in all_rows:
            if other.device == row.device:
                there.count(other)
        assert _lent(row, there) == lent(row, all_rows)


def test_two_rows_as_one():
    first = period(1, "d0", 10, 20, 5)
    then = replace(period(7, "d0", 1, 2, 1), from_ns=1000, to_ns=1500, grant_id="g1")
    both = joined(first, then)
    assert both == replace(
        then, from_ns=0, granted_ns=11, used_ns=22, busy_ns=22, borrowed_ns=6, waited_ns=2, waits=2, reclaims=4,
        reclaim_ns=6,
    )  # fmt: skip
    assert joined(None, then) == then
    assert joined(first, replace(then, from_ns=1001)) is None
