"""Pages made as the daemon makes them, at the caller's path, and mapped at once."""

from collections.abc import Sequence
from pathlib import Path

from gpushare.binding.page_words import DeviceLimits
from gpushare.binding.pages import LIMITS_BYTES, USAGE_BYTES, LimitsPage, UsagePage, new_limits, new_usage
from gpushare.inject import files


def limits_page(path: Path, grant: str, devices: Sequence[DeviceLimits]) -> LimitsPage:
    """Makes a limits page. Raises what new_limits raises, and OSError."""
    files.make(path, new_limits(grant, devices), 0o644, size=LIMITS_BYTES)
    return LimitsPage.open(path)


def usage_page(path: Path, grant: str, room: int = 0) -> UsagePage:
    """Makes a usage page. `room`: as for files.make. Raises FailedError and OSError."""
    files.make(path, new_usage(grant), 0o666, size=USAGE_BYTES, room=room)
    return UsagePage.open(path)
