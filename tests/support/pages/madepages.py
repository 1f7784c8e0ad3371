"""Pages made as the daemon makes them, at the caller's path, and mapped at once."""

from collections.abc import Sequence
from pathlib import Path

from gpushare.binding.page_words import DeviceLimits
from gpushare.binding.pages import LIMITS_BYTES, USAGE_BYTES, LimitsPage, UsagePage, new_limits, new_usage
from gpushare.inject import steps


def limits_page(path: Path, grant: str, devices: Sequence[DeviceLimits]) -> LimitsPage:
    """Makes a limits page. Raises what new_limits raises, and OSError."""
    steps.Steps(steps.file("", 0o644, new_limits(grant, devices), LIMITS_BYTES)).run(path)
    return LimitsPage.open(path)


def usage_page(path: Path, grant: str, room: int = 0) -> UsagePage:
    """Makes a usage page. `room`: as for steps.file. Raises FailedError and OSError."""
    steps.Steps(steps.file("", 0o666, new_usage(grant), USAGE_BYTES, room)).run(path)
    return UsagePage.open(path)
