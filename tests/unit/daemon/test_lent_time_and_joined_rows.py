"""What was lent, from sums, equals a computation over all rows; and adjacent rows of the ledger are joined."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpushare.binding.arbiter import GrantStats
from gpushare.daemon.state.books import DeviceBook, Instant, Sample, joined, periods
from gpushare.ledger.entries import Period, Totals

NOTHING = GrantStats(*(0,) * 10, waiting=False, held=False, processes=0, runnable=False)
milli = st.integers(0, 1000)
rows = st.lists(st.tuples(st.sampled_from(["d0", "d1"]), milli, milli, milli), max_size=8)


def period(number: int, device: str, granted: int, used: int, borrowed: int) -> Period:
    return Period(
        grant_id=f"g{number}", tenant="t", device=device, from_ns=0, to_ns=1000, granted_ns=granted, used_ns=used,
        busy_ns=used, borrowed_ns=min(used, borrowed), lent_ns=0, waited_ns=1, memory_bytes=number,
        memory_peak_bytes=number, waits=1, wait_max_ns=5, reclaims=2, reclaim_ns=3, reclaim_max_ns=4,
    )  # fmt: skip


def sample(number: int, device: str, guarantee: int, used: int, borrowed: int) -> Sample:
    book = DeviceBook(Totals(), NOTHING, Instant(0, 0))
    stats = replace(NOTHING, leased_ns=used, borrowed_ns=min(used, borrowed))
    return Sample(f"g{number}", "t", device, 0, guarantee, book, stats)


def unused(row: Period) -> int:
    return max(0, row.granted_ns - (row.used_ns - row.borrowed_ns))


def lent(row: Period, others: list[Period]) -> int:
    same = [other for other in others if other.device == row.device]
    borrowed = sum(other.borrowed_ns for other in same if other.grant_id != row.grant_id)
    unowned = max(0, row.to_ns - row.from_ns - sum(other.granted_ns for other in same))
    all_unused = unowned + sum(map(unused, same))
    return min(borrowed * unused(row) // all_unused, unused(row)) if all_unused else 0


@given(rows)
def test_what_was_lent(found):
    written = periods([sample(number, *row) for number, row in enumerate(found)], Instant(1000, 1000))
    assert [row.granted_ns for row in written] == [row[1] for row in found]
    for row in written:
        assert row.lent_ns == lent(row, written)


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
