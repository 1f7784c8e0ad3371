"""The life of a gang's part, with messages in any order and clocks set in any way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import GoneError, RefusedError
from gpushare.policy.grants import preparation as pr
from gpushare.policy.grants.preparation import REMEMBERED_NS, Moment, Preparation, Stage

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
TTL = 60 * SECOND
START = Moment("boot 1", 1000 * SECOND, 20_000 * DAY)


def later(ns, *, step=0, now=START):
    """The moment `ns` after `now`, with the wall clock set by `step` meanwhile."""
    return replace(now, since_boot_ns=now.since_boot_ns + ns, wall_ns=now.wall_ns + ns + step)


def rebooted(ns, *, step=0):
    return Moment("boot 2", 5 * SECOND, START.wall_ns + ns + step)


ONE = pr.prepared(START, TTL)


def test_one_that_is_committed_in_time_stays():
    life = pr.commit(ONE, "it", later(TTL - 1))
    assert life == Preparation(Stage.COMMITTED, None)
    assert pr.commit(life, "it", later(DAY)) == life
    assert pr.at(life, later(DAY)) == life
    assert not life.over


@pytest.mark.parametrize("step", [-DAY, 0, DAY])
def test_it_expires_after_its_time_whatever_the_wall_clock_states(step):
    assert pr.at(ONE, later(TTL - 1, step=step)) == ONE
    late = pr.at(ONE, later(TTL, step=step))
    assert (late.stage, late.reason) == (Stage.EXPIRED, "not committed within 60 s")
    with pytest.raises(GoneError, match=r"it was expired \(not committed within 60 s\): prepare anew under another id"):
        pr.commit(ONE, "it", later(TTL, step=step))


def test_after_a_reboot_what_is_left_of_it_counts():
    life = pr.resumed(ONE, rebooted(20 * SECOND))
    assert life.until.left_ns(rebooted(20 * SECOND)) == 40 * SECOND
    assert pr.commit(life, "it", later(40 * SECOND - 1, now=rebooted(20 * SECOND))).stage is Stage.COMMITTED
    assert pr.at(life, later(40 * SECOND, now=rebooted(20 * SECOND))).reason == "not committed within 60 s"
    assert pr.resumed(ONE, rebooted(TTL)).stage is Stage.EXPIRED


def test_a_clock_that_was_set_back_before_the_reboot_gives_no_more_than_all_of_it():
    assert pr.resumed(ONE, rebooted(0, step=-DAY)).until.left_ns(rebooted(0, step=-DAY)) == TTL


def test_a_restart_of_the_daemon_alone_changes_nothing():
    assert pr.resumed(ONE, later(SECOND)) == ONE


def test_one_that_is_aborted_is_so_for_good():
    life = pr.abort(ONE, "it", later(1), "no room elsewhere")
    assert (life.stage, life.over) == (Stage.ABORTED, True)
    assert pr.abort(life, "it", later(2), "again") == life
    with pytest.raises(GoneError, match="no room elsewhere"):
        pr.commit(life, "it", later(2))
    assert not pr.forgotten(life, later(REMEMBERED_NS))
    assert pr.forgotten(life, later(REMEMBERED_NS + 1))


def test_one_that_is_committed_is_not_ended_by_an_abort():
    life = pr.commit(ONE, "it", START)
    with pytest.raises(RefusedError, match="is committed: release its grants"):
        pr.abort(life, "it", later(1), "late")


def test_a_lost_grant_ends_one_that_is_prepared_and_makes_a_committed_one_a_memory():
    assert pr.lost(ONE, later(1), "gone").stage is Stage.ABORTED
    over = pr.lost(pr.commit(ONE, "it", START), later(1), "gone")
    assert (over.stage, over.over) == (Stage.COMMITTED, True)
    assert pr.commit(over, "it", later(DAY)).stage is Stage.COMMITTED
    assert pr.lost(over, later(2), "again") == over


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "abort", "look", "lost", "restart", "reboot"]),
        st.integers(0, 2 * TTL),
        st.sampled_from([-DAY, 0, 0, DAY]),
    ),
    max_size=12,
)


def notified(life, what, now):
    try:
        match what:
            case "commit":
                return pr.commit(life, "it", now)
            case "abort":
                return pr.abort(life, "it", now, "asked")
            case "look":
                return pr.at(life, now)
            case "lost":
                return pr.lost(life, now, "gone")
            case "restart" | "reboot":
                return pr.resumed(life, now)
    except (GoneError, RefusedError):
        return pr.at(life, now)


@given(STEPS)
def test_no_order_of_events_brings_back_what_has_ended(steps):
    life, now, boots, passed, seen = ONE, START, 1, 0, [Stage.PREPARED]
    for what, ns, step in steps:
        now, passed = later(ns, step=step, now=now), passed + ns
        if what == "reboot":
            boots += 1
            now = Moment(f"boot {boots}", ns, now.wall_ns)
        before, life = life, notified(life, what, now)
        seen.append(life.stage)
        if before.stage is not Stage.PREPARED:
            assert life.stage is before.stage
        if life.stage is Stage.PREPARED:
            assert 0 < life.until.left_ns(now) <= TTL
            assert passed < TTL or boots > 1  # within a boot only the clock that cannot be set counts
        elif life.over and before.over:
            assert life.until.left_ns(now) <= REMEMBERED_NS
    assert len(set(seen)) <= 2
