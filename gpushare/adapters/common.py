"""What the plugins have in common as clients of the daemon."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from gpushare.client import Client
from gpushare.errors import GpushareError, NotFoundError, UnreachableError

log = logging.getLogger(__name__)


def release(daemon: Client, grant_id: str) -> None:
    """Ends a grant that may have ended already."""
    try:
        daemon.release(grant_id)
    except NotFoundError:
        log.debug("grant %s has ended already", grant_id)


def watch(
    daemon: Callable[[], Client],
    ended: threading.Event,
    changed: Callable[[], None],
    *,
    matters: Callable[[Any], bool] = lambda event: event["kind"] in ("device", "node", "grant"),
    retry_seconds: float = 1.0,
    timeout: float | None = None,
) -> None:
    """Calls `changed` at each event that matters, and whenever a watch has ended and events may have been missed; until
    `ended` is set. `timeout`: of a watch."""
    while not ended.is_set():
        try:
            for event in daemon().watch(timeout=timeout):
                if matters(event):
                    changed()
        except UnreachableError as error:
            log.debug("watch: %s", error)
        except GpushareError as error:
            log.warning("watch: %s", error)
        ended.wait(retry_seconds)
        changed()


class Changes:
    """Logs a line unless it repeats the one before. An empty line only makes the next one new."""

    def __init__(self, logger: logging.Logger, level: int = logging.INFO) -> None:
        self._logger, self._level, self._last = logger, level, ""

    def log(self, line: str) -> None:
        """Logs the line."""
        if line and line != self._last:
            self._logger.log(self._level, "%s", line)
        self._last = line
