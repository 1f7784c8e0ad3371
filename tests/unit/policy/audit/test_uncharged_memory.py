"""Memory counted as uncharged, from readings of books and driver that are not simultaneous."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.audit.uncharged import KEPT, READINGS, Reading, Uncharged

KEY = ("g", 0)
MIB = 1 << 20
SIZES = st.integers(0, 64 * MIB)


def followed(readings, known=0, policy=None):
    policy = policy or Uncharged()
    for reading in readings:
        known = policy.follow(KEY, reading, known)
    return known


def still(driver: int, books: int) -> Reading:
    return Reading(driver, books, books)


def test_what_stays_is_counted():
    assert followed([still(100, 60)] * (READINGS - 1)) == 0
    assert followed([still(100, 60)] * READINGS) == 40


def test_it_ends_with_what_it_was_of():
    policy = Uncharged()
    known = followed([still(100, 60)] * READINGS, policy=policy)
    assert followed([still(70, 60)] * READINGS, known, policy) == 10
    assert followed([still(50, 60)] * READINGS, 10, policy) == 0


def test_what_was_met_by_chance_is_forgotten():
    """A program keeps allocating and freeing 256 MiB; by chance, several readings in a row see it only in the
    driver."""
    policy = Uncharged()
    known = followed([Reading(256, 0, 0)] * READINGS, policy=policy)
    assert known == 256
    churn = [Reading(256, 0, 256), Reading(0, 0, 256)] * KEPT
    assert followed(churn[: KEPT // 2], known, policy) == 256, "not at once: it may be right"
    assert followed(churn, known, policy) == 0


def test_a_daemon_that_starts_goes_by_what_was_known():
    assert followed([still(100, 60)], known=40) == 40


def test_what_is_not_seen_any_more_is_forgotten():
    policy = Uncharged()
    followed([still(100, 60)] * (READINGS - 1), policy=policy)
    policy.keep([])
    assert policy.follow(KEY, still(100, 60), 0) == 0


@given(st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=READINGS, max_size=40), SIZES, SIZES)
def test_no_more_than_there_is(moments, uncharged, known):
    """Allocations and frees between readings, and bytes of calls in progress, never count as uncharged."""
    readings = [Reading(sorted(one)[1] + uncharged, min(one), max(one)) for one in moments]
    assert followed(readings, min(known, uncharged)) <= uncharged


@given(st.lists(st.tuples(SIZES, SIZES), max_size=20), SIZES, SIZES, SIZES)
def test_once_nothing_moves_it_is_exact(before, driver, books, known):
    readings = [still(*one) for one in before] + [still(driver, books)] * READINGS
    assert followed(readings, known) == max(0, driver - books)
