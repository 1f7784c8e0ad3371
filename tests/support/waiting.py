"""Waiting for something that another process does."""

import time
from collections.abc import Callable
from typing import Any


def until(
    condition: Callable[[], Any], what: str = "the condition", seconds: float = 20.0, every: float = 0.0005
) -> Any:
    """Asks until the answer is true, and gives it: every so many seconds at first, and rarer the longer it takes, since
    each time costs the machine that is waited for.

    Raises AssertionError after `seconds`, which are wall time: for a machine that does other things too.
    """
    began = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds} s: {what}"
        time.sleep(every if waited < 0.1 else min(0.05, every + waited / 20))
    return value
