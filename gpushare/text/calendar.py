"""Moments as people write them, and the days, weeks and months between two moments, in a time zone. A day has the
length that it has there: 23 or 25 hours where clocks are changed."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from gpushare.errors import UsageError

PERIODS = ("day", "week", "month")
CUTS_MAX = 366
"""Most periods in a question: the days of a year. They fit in a request's line."""
_LATEST_NS = (1 << 63) - 1
"""The last moment that the record can name: in 2262."""
_DEFAULT = "30d"
_AGO = re.compile(r"([0-9]{1,6})(s|m|h|d|w|mo)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_DAYS = {"d": 1, "w": 7}
_MONTH = re.compile(r"([0-9]{4})-([0-9]{2})")
_NAMED = {
    "today": ("day", 0),
    "yesterday": ("day", 1),
    "this-week": ("week", 0),
    "last-week": ("week", 1),
    "this-month": ("month", 0),
    "last-month": ("month", 1),
}
"""The start of a period, so many before the present one."""
WRITTEN = "30d, 12h or 90m ago, a date as 2026-11-01, a month as 2026-11, or today, this-week, last-month"


def zone(name: str) -> tzinfo | None:
    """A time zone by its name, such as Europe/Berlin; None for `local`, this machine's. Raises UsageError."""
    if name == "local":
        return None
    if name.upper() in ("UTC", "Z"):
        return UTC
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        none = "" if zoneinfo.available_timezones() else "; this machine knows none: install its tzdata"
        raise UsageError(f"{name[:80]!r} is no time zone: give local, UTC or one as Europe/Berlin{none}") from None


def moment(text: str, where: tzinfo | None) -> int:
    """The moment that a person has written, in ns: WRITTEN, or any ISO 8601 time; 0 for an earlier one, _LATEST_NS for
    a later one. Days, weeks and months ago are those of the calendar, at the same time of day. Raises UsageError."""
    text = text.strip()
    now = time.time_ns()
    if match := _AGO.fullmatch(text):
        count, unit = int(match[1]), match[2]
        if unit in _SECONDS:
            return max(0, now - count * _SECONDS[unit] * 10**9)
        here = local(now, where)
        try:
            before = _months(here, -count) if unit == "mo" else here - timedelta(days=count * _DAYS[unit])
        except (OverflowError, ValueError):
            return 0
        return _ns(before, where)
    if text in _NAMED:
        period, count = _NAMED[text]
        begin = _begin(local(now, where), period)
        for _ in range(count):
            begin = _begin(begin - timedelta(days=1), period)
        return _ns(begin, where)
    try:
        found = datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
    except ValueError:
        raise UsageError(f"{text!r} is no time: give {WRITTEN}") from None
    return _ns(found, where) if found.tzinfo is None else _bounded(int(found.timestamp() * 10**9))


def question(since: str | None, until: str | None, by: str, where: tzinfo | None) -> dict[str, str | int | None]:
    """A span and what to add up, as `GET /v1/usage` takes them. `since`, `until`: as written; None: the last 30 days,
    now. `by`: one of PERIODS, or another way. Raises UsageError."""
    ends = None if until is None else moment(until, where)
    if by not in PERIODS:
        return {"by": by, "since": None if since is None else moment(since, where), "until": ends}
    begins = moment(since or _DEFAULT, where)
    found = cuts(begins, max(begins + 1, time.time_ns() if ends is None else ends), by, where)
    if since is None or _AGO.fullmatch(since.strip()):
        begins = found[0]  # so that the first day of seven is whole
    return {"by": "period", "since": begins, "until": ends, "cuts": ",".join(map(str, found))}


def cuts(since_ns: int, until_ns: int, period: str, where: tzinfo | None) -> list[int]:
    """Where the periods between two moments begin, in ns, in order: the first at or before `since_ns`. Raises
    UsageError for more than CUTS_MAX."""
    begin, found = _begin(local(since_ns, where), period), list[int]()
    for at in _following(begin, period):
        ns = _ns(at, where)
        if ns >= min(until_ns, _LATEST_NS) and found:
            return found
        if len(found) == CUTS_MAX:
            raise UsageError(f"that is more than {CUTS_MAX} {period}s: ask for a shorter time, or for longer periods")
        if not found or ns > found[-1]:
            found.append(ns)
    raise AssertionError


def named(ns: int, period: str, where: tzinfo | None) -> str:
    """A period by its first day, or by its month."""
    return local(ns, where).strftime("%Y-%m" if period == "month" else "%Y-%m-%d")


def iso(ns: int, where: tzinfo | None) -> str:
    """ISO 8601 to the second, with the offset from UTC."""
    return datetime.fromtimestamp(ns // 10**9, UTC).astimezone(where).isoformat().replace("+00:00", "Z")


def local(ns: int, where: tzinfo | None) -> datetime:
    """What the clocks show at a moment, to the second."""
    return datetime.fromtimestamp(ns // 10**9, UTC).astimezone(where).replace(tzinfo=None)


def _ns(shown: datetime, where: tzinfo | None) -> int:
    """The moment at which the clocks show this; the first such moment, within the bounds of `moment`."""
    try:
        return _bounded(int(shown.replace(tzinfo=where).timestamp()) * 10**9)
    except (OverflowError, ValueError, OSError):
        return 0 if shown.year <= 1970 else _LATEST_NS


def _bounded(ns: int) -> int:
    return max(0, min(ns, _LATEST_NS))


def _begin(shown: datetime, period: str) -> datetime:
    day = shown.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def _following(begin: datetime, period: str) -> Iterator[datetime]:
    while True:
        yield begin
        begin = _months(begin, 1) if period == "month" else begin + timedelta(days=7 if period == "week" else 1)


def _months(shown: datetime, count: int) -> datetime:
    """So many months later; the last day of a shorter month."""
    years, month = divmod(shown.month - 1 + count, 12)
    year = shown.year + years
    following = datetime(year + month // 11, (month + 1) % 12 + 1, 1)
    last = (following - timedelta(days=1)).day
    return shown.replace(year=year, month=month + 1, day=min(shown.day, last))
