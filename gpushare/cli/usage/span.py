"""Options for a span of time, and the queries that ask for it."""

import argparse
from datetime import UTC
from typing import Any

from gpushare.cli.parser import Parser
from gpushare.text import calendar


def add_span(parser: Parser) -> None:
    """Adds the options."""
    begins = "start: 30d, 12h or 90m ago, 2026-11-01, 2026-11, today, last-month ... (default 30d)"
    parser.option("--since", "T", begins, _written)
    parser.option("--until", "T", "end, written as --since (default now)", _written)
    parser.option("--tz", "ZONE", "time zone of dates, such as Europe/Berlin or UTC (default local)", calendar.zone)


def _written(text: str) -> str:
    """Checks a moment, which can be read only once the time zone is known. Raises UsageError."""
    calendar.moment(text, UTC)
    return text


def query(args: argparse.Namespace, by: str) -> Any:
    """The span and `by` as `GET /v1/usage` takes them. Raises UsageError."""
    return calendar.question(args.since, args.until, by, args.tz)


def slots(args: argparse.Namespace) -> Any:
    """The span as `GET /v1/usage/slots` takes it."""
    found = query(args, "hour")
    return {name: found[name] for name in ("since", "until")}
