"""Moments as people write them, and the calendar's periods."""

import itertools
import os
import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gpushare.errors import UsageError
from gpushare.text import amounts, calendar

BERLIN, NEW_YORK, KIRITIMATI = map(ZoneInfo, ("Europe/Berlin", "America/New_York", "Pacific/Kiritimati"))
HOUR = 3600 * 10**9
NOW = datetime(2026, 3, 31, 15, 30, tzinfo=BERLIN)
"""Two days after clocks were put forward."""


def ns(*shown, where=BERLIN):
    return int(datetime(*shown, tzinfo=where).timestamp()) * 10**9


@pytest.fixture
def now(monkeypatch):
    monkeypatch.setattr("time.time_ns", lambda: int(NOW.timestamp()) * 10**9)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("90m", ns(2026, 3, 31, 14, 0)),
        ("72h", ns(2026, 3, 28, 14, 30)),  # an hour was left out
        ("3d", ns(2026, 3, 28, 15, 30)),
        ("2w", ns(2026, 3, 17, 15, 30)),
        ("1mo", ns(2026, 2, 28, 15, 30)),
        ("13mo", ns(2025, 2, 28, 15, 30)),
        ("999999mo", 0),
        ("999999d", 0),
        ("today", ns(2026, 3, 31)),
        ("yesterday", ns(2026, 3, 30)),
        ("this-week", ns(2026, 3, 30)),
        ("last-week", ns(2026, 3, 23)),
        ("this-month", ns(2026, 3, 1)),
        ("last-month", ns(2026, 2, 1)),
        ("2026-03", ns(2026, 3, 1)),
        (" 2026-03-29 ", ns(2026, 3, 29)),
        ("2026-03-29T04:00", ns(2026, 3, 29, 4)),
        ("2026-03-29T04:00Z", ns(2026, 3, 29, 4, where=UTC)),
        ("1900-01-01", 0),
        ("9999-12-31", (1 << 63) - 1),
        ("9999-12-31T23:59:59-12:00", (1 << 63) - 1),
    ],
)
def test_a_moment_in_a_time_zone(now, text, found):
    assert calendar.moment(text, BERLIN) == found


@pytest.mark.parametrize("text", ["", "3y", "-1d", "2026-13-01", "2026-13", "next-week", "1e3", "٣d", "0000-00"])
def test_what_is_no_time(text):
    with pytest.raises(UsageError, match="is no time: give 30d"):
        calendar.moment(text, UTC)


@pytest.mark.parametrize("where", [BERLIN, NEW_YORK, KIRITIMATI, UTC])
def test_periods_follow_each_other_without_a_gap(where):
    since, until = ns(2026, 1, 14, 12, where=where), ns(2027, 1, 3, where=where)
    days = calendar.cuts(since, until, "day", where)
    lengths = [(b - a) // HOUR for a, b in itertools.pairwise(days)]
    assert len(days) == 354 and days[0] == ns(2026, 1, 14, where=where) and days[-1] < until
    changes = [23, 24, 25] if where in (BERLIN, NEW_YORK) else [24]
    assert sorted(set(lengths)) == changes
    weeks, months = (calendar.cuts(since, until, period, where) for period in ("week", "month"))
    assert calendar.named(weeks[0], "week", where) == "2026-01-12" and len(weeks) == 51
    assert calendar.named(months[0], "month", where) == "2026-01" and len(months) == 13
    assert set(weeks[1:]) < set(days) and set(months[1:]) < set(days)


@pytest.mark.parametrize(
    ("since", "until", "by"),
    [("1970-01-01", None, "day"), ("1970-01-01", "9999-12-31", "day"), ("2026-03-01", "9999-12-31", "month")],
)
def test_a_span_of_too_many_periods_is_refused(now, since, until, by):
    with pytest.raises(UsageError, match=f"more than 366 {by}s: ask for a shorter time"):
        calendar.question(since, until, by, NEW_YORK)
    last = calendar.question("9999-12-31", None, "month", NEW_YORK)
    assert last["since"] == (1 << 63) - 1 and last["cuts"].count(",") == 0


def test_this_machines_own_time_zone(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert calendar.zone("local") is None
        for period in calendar.PERIODS:
            span = ns(2026, 1, 14, 12), ns(2026, 12, 1)
            assert calendar.cuts(*span, period, None) == calendar.cuts(*span, period, BERLIN)
        assert calendar.iso(ns(2026, 7, 1), None) == "2026-07-01T00:00:00+02:00"
    finally:
        monkeypatch.undo()
        assert "TZ" not in os.environ or os.environ["TZ"] != "Europe/Berlin"
        time.tzset()


@pytest.mark.parametrize("name", ["", "Mars", "../etc/passwd", "/etc/passwd", "Europe", "a\0b", "x" * 300])
def test_what_is_no_time_zone(name):
    with pytest.raises(UsageError, match="is no time zone: give local, UTC"):
        calendar.zone(name)


def test_one_unit_for_a_whole_table():
    second = 10**9
    for most, shown in ((3.3, "3.3s"), (400, "6.7min"), (12.4 * 3600, "12.40h"), (1e7, "2777.8h")):
        unit = amounts.unit([second, int(most * second)])
        assert unit.text(int(most * second)) == shown
    assert (unit.text(0), unit.text(second)) == ("-", "<0.1h")
