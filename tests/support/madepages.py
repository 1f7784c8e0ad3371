"""Pages as the daemon makes them, mapped at once, in a directory of the caller's."""

from collections.abc import Sequence
from pathlib import Path

from gpushare.inject import steps
from gpushare.page_words import DeviceLimits
from gpushare.pages import LIMITS_BYTES, USAGE_BYTES, LimitsPage, UsagePage, new_limits, new_usage


def limits_page(path: Path, grant: str, devices: Sequence[DeviceLimits]) -> LimitsPage:
    """A new limits page. Raises as new_limits does, and OSError."""
    steps.Steps(steps.file("", 0o644, new_limits(grant, devices), LIMITS_BYTES)).run(path)
    return LimitsPage.open(path)


def usage_page(path: Path, grant: str, room: int = 0) -> UsagePage:
    """A new usage page. `room`: as steps.file takes it. Raises FailedError and OSError."""
    steps.Steps(steps.file("", 0o666, new_usage(grant), USAGE_BYTES, room)).run(path)
    return UsagePage.open(path)
