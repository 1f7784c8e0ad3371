"""Waiting for a state of another process."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], what: str | Callable[[], str] = "the condition", seconds: float = 20.0) -> Any:
    """Polls until the condition is true, and returns its value. The interval grows, because each poll takes time from
    the process that is waited for.

    `what`: a function, where it tells a state: that of the end, not of the beginning. Raises AssertionError after
    `seconds` of wall time, which must suffice on a busy machine.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(min(0.05, max(0.0005, waited / 10)))
    return value
