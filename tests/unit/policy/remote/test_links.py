"""Classes of links, and when one has left its own."""

import pytest

from gpushare.policy.remote.link import BOUNDS, CLASSES, SLOW_SECONDS, Watch, classify, is_enough, rank

G = 1e9


@pytest.mark.parametrize(
    ("rtt_us", "up", "down", "found"),
    [
        (8, 25 * G, 25 * G, "good"),
        (50, 10 * G, 10 * G, "good"),
        (50.1, 10 * G, 10 * G, "fair"),
        (50, 9.9 * G, 10 * G, "fair"),
        (50, 10 * G, 9.9 * G, "fair"),
        (200, 5 * G, 40 * G, "fair"),
        (201, 40 * G, 40 * G, "poor"),
        (20, 4.9 * G, 40 * G, "poor"),
        (1000, 1 * G, 1 * G, "poor"),
        (1001, 40 * G, 40 * G, "refused"),
        (10, 0.99 * G, 40 * G, "refused"),
        (10, 40 * G, 0, "refused"),
    ],
)
def test_class_of_a_link(rtt_us, up, down, found):
    assert classify(rtt_us, up, down) == found


def test_better_numbers_never_make_a_worse_class():
    rtts = [bound.rtt_us * by for bound in BOUNDS.values() for by in (0.5, 1, 1.01)]
    rates = [bound.bps * by for bound in BOUNDS.values() for by in (0.99, 1, 2)]
    for rtt in rtts:
        for up in rates:
            for down in rates:
                found = rank(classify(rtt, up, down))
                assert found <= rank(classify(rtt * 1.1, up, down))
                assert found <= rank(classify(rtt, up * 0.9, down))
                assert found <= rank(classify(rtt, up, down * 0.9))


@pytest.mark.parametrize(
    ("least", "taken"),
    [("good", {"good"}), ("fair", {"good", "fair"}), ("poor", {"good", "fair", "poor"}), ("any", set(CLASSES))],
)
def test_what_a_user_takes(least, taken):
    assert {found for found in CLASSES if is_enough(found, least)} == taken


def after(checked, *readings):
    """Whether a link is slow after readings of a second each: (round trip in us, rate), a number of times."""
    watch, seen = Watch(checked), []
    for now, (rtt_us, rate) in enumerate(readings):
        watch = watch.follow(100.0 + now, rtt_us, rate)
        seen.append(watch.slow)
    return seen


N = int(SLOW_SECONDS)


def test_a_link_is_slow_after_ten_seconds_above_its_class():
    assert after("good", *[(90, 0)] * (N + 2)) == [*[False] * N, True, True]


@pytest.mark.parametrize(("checked", "rtt_us"), [("good", 76), ("fair", 301), ("poor", 1501)])
def test_each_class_has_its_own_bound(checked, rtt_us):
    assert after(checked, *[(rtt_us, 0)] * (N + 1))[-1]
    assert not any(after(checked, *[(rtt_us - 2, 0)] * (3 * N)))


def test_one_good_reading_begins_the_ten_seconds_again():
    assert not any(after("good", *[(90, 0)] * (N - 1), (20, 0), *[(90, 0)] * (N - 1)))


def test_a_slow_link_is_not_slow_any_more_with_its_first_good_reading():
    assert after("good", *[(90, 0)] * (N + 1), (20, 0), (90, 0))[-3:] == [True, False, False]


def test_round_trips_of_a_busy_link_do_not_count_against_it():
    busy = BOUNDS["fair"].bps / 2
    assert not any(after("fair", *[(5000, busy)] * (3 * N)))
    # They do not count for it either: it was slow before, between and after them.
    assert after("fair", *[(400, 0)] * (N // 2), *[(5000, busy)] * (N // 2), (400, 0))[-1]


def test_a_link_that_others_fill_is_slow():
    assert after("good", *[(3000, BOUNDS["good"].bps / 20)] * (N + 1))[-1]


def test_a_busy_link_with_short_round_trips_is_well():
    assert after("good", *[(90, 0)] * (N + 1), (30, 8 * G))[-1] is False


def test_readings_that_say_nothing_change_nothing():
    assert after("good", *[(90, 0)] * (N - 1), (0, 0), (90, 0), (90, 0))[-2:] == [True, True]


@pytest.mark.parametrize("checked", ["", "refused"])
def test_a_link_without_a_class_does_not_leave_it(checked):
    assert not any(after(checked, *[(1e6, 0)] * (3 * N)))
