"""Waiting for something that another process does."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], what: str = "the condition", seconds: float = 20.0) -> Any:
    """Asks every half millisecond, later every five, until the answer is true, and gives it.

    Raises AssertionError after `seconds`, which are wall time: for a machine that does other things too.
    """
    begin = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begin
        assert waited < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.0005 if waited < 0.1 else 0.005)
    return value
