"""Options for a span of time, and the queries that ask for it."""

import argparse
import time
from datetime import UTC
from typing import Any

from gpushare.cli.parser import Parser
from gpushare.errors import UsageError
from gpushare.text import calendar

_DEFAULT = "30d"


def add_span(parser: Parser) -> None:
    """Adds the options."""
    begins = f"start: 30d, 12h or 90m ago, 2026-11-01, 2026-11, today, last-month ... (default {_DEFAULT})"
    parser.option("--since", "T", begins, _written)
    parser.option("--until", "T", "end, written as --since (default now)", _written)
    parser.option("--tz", "ZONE", "time zone of dates, such as Europe/Berlin or UTC (default local)", calendar.zone)


def _written(text: str) -> str:
    """Checks a moment, which can be read only once the time zone is known. Raises UsageError."""
    calendar.moment(text, UTC)
    return text


def query(args: argparse.Namespace) -> dict[str, int | None]:
    """The span as `GET /v1/usage` takes it."""
    given = {name: getattr(args, name) for name in ("since", "until")}
    return {name: None if text is None else calendar.moment(text, args.tz) for name, text in given.items()}


def query_by(args: argparse.Namespace, by: str) -> dict[str, Any]:
    """The same with `by`, which may be a period of the calendar. Raises UsageError where there are too many."""
    found: dict[str, Any] = {"by": by, **query(args)}
    return found | by_period(args.since, found["until"], by, args.tz) if by in calendar.PERIODS else found


def by_period(since: str | None, until: int | None, by: str, where: Any) -> dict[str, Any]:
    """What a question by period has beside `until`. `since`: as written. Raises UsageError."""
    from gpushare.api.usage import CUTS_MAX

    begins = calendar.moment(since or _DEFAULT, where)
    cuts = calendar.cuts(begins, max(begins + 1, until or time.time_ns()), by, where)
    if len(cuts) > CUTS_MAX:
        raise UsageError(f"that is {len(cuts)} {by}s, {CUTS_MAX} at most: ask for a later --since, or longer periods")
    if since is None or calendar.is_ago(since):
        begins = cuts[0]  # so that the first day of seven is whole
    return {"by": "period", "since": begins, "cuts": ",".join(map(str, cuts))}
