"""Which processes are stopped for unexplained device time, in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.audit import overuse
from gpushare.policy.audit.overuse import Account

MS = 1_000_000
SECOND = 1000 * MS
LOOK, SELDOM = 50 * MS, SECOND

shares = st.integers(10, 900)
parts = st.floats(0, 1)


def follow(account: Account, seconds: int, used_of_wall: float, charged_of_wall: float, due: int) -> float:
    """Plays `seconds`, with the given use and charge while the process is not stopped. Returns its part of the time."""
    passed = used = 0
    while passed < seconds * SECOND:
        wall = LOOK if account.found else SELDOM
        now = 0 if account.stopped else int(used_of_wall * wall)
        account.follow(now, 0 if account.stopped else int(charged_of_wall * wall), 0 if account.stopped else due, wall)
        passed, used = passed + wall, used + now
    return used / passed


@pytest.mark.promise("honest-are-not-found")
@given(parts, parts, shares)
def test_one_that_is_charged_for_what_it_uses_is_never_found(used, more, due):
    account = Account()
    follow(account, 60, used, min(1.0, used + more), due)
    assert not account.found


@given(st.floats(0, 0.1), parts, shares)
def test_nor_is_one_whose_charge_comes_late_or_early(wrong, used, due):
    """Samples come a second late, and charges are wrong by up to 10 %, high and low in turn."""
    account, late = Account(), 0
    for second in range(60):
        charged = int(used * (1 + wrong * (second % 2 * 2 - 1)) * SECOND)
        account.follow(late, charged, due, SECOND)
        late = int(used * SECOND)
        assert not account.found


@given(shares)
def test_a_share_without_a_charge_is_nobodys_loss(due):
    account = Account()
    follow(account, 60, due / 1000, 0.0, due)
    assert not account.found


@pytest.mark.promise("overuse-is-stopped")
@given(st.integers(10, 400), st.floats(0.5, 1))
def test_one_that_takes_more_is_kept_to_its_share(due, used):
    account = Account()
    follow(account, 60, used, 0.0, due)
    assert account.found
    assert abs(follow(account, 60, used, 0.0, due) - due / 1000) < 0.02


@given(st.integers(10, 400), st.floats(0.5, 1), st.floats(0, 1))
def test_what_it_is_charged_counts(due, used, part):
    """It may use its share or what it was charged, whichever is more."""
    account = Account()
    follow(account, 60, used, used * part, due)
    had = follow(account, 60, used, used * part, due)
    assert had < max(due / 1000, used * part) + 0.02


def test_one_that_is_guaranteed_nothing_goes_on_some_time():
    account = Account()
    follow(account, 60, 1.0, 0.0, 0)
    assert account.found
    assert 0 < follow(account, 600, 1.0, 0.0, 0) < 0.03


def test_one_that_keeps_to_its_share_again_is_trusted_again():
    account = Account()
    follow(account, 20, 1.0, 0.0, 250)
    assert account.found
    follow(account, 40, 0.2, 0.2, 250)
    assert (account.found, account.stopped) == (False, False)


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 10 * SECOND), max_size=6), st.integers(1, SECOND))
def test_no_device_gives_more_time_than_passes(used, wall):
    had = overuse.sliced(used, wall)
    assert had.keys() == used.keys()
    assert sum(had.values()) <= max(wall, 0)
    if sum(used.values()) <= wall:
        assert had == used
