"""What the plugins have in common as clients of the daemon."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from gpushare.client import Client
from gpushare.errors import GpushareError, NotFoundError, UnreachableError

log = logging.getLogger(__name__)

Item = TypeVar("Item")


def release(daemon: Client, grant_id: str) -> None:
    """Ends a grant that may have ended already."""
    try:
        daemon.release(grant_id)
    except NotFoundError:
        log.debug("grant %s has ended already", grant_id)


def state(grant: Any) -> str:
    """Returns the state of a living grant in schedulers' words. One whose memory is in host memory is `asleep`:
    allocated, alive, and back by itself when its programs need it."""
    return "asleep" if grant["phase"] == "suspended" else str(grant["phase"])


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


class Latest(Generic[Item]):
    """The newest list of something, for streams that send all of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._now: tuple[Item, ...] = ()
        self._number = 0

    def put(self, now: Sequence[Item]) -> None:
        """Sets the list."""
        with self._changed:
            if tuple(now) != self._now or self._number == 0:
                self._now, self._number = tuple(now), self._number + 1
                self._changed.notify_all()

    def watch(self, waits: Callable[[], bool], every: float = math.inf) -> Iterator[tuple[Item, ...]]:
        """Yields the list at first, at each change, and every so many seconds, while the caller `waits`."""
        seen, due = 0, 0.0
        while waits():
            with self._changed:
                early = due - time.monotonic()
                if self._number == 0 or (self._number == seen and early > 0):
                    self._changed.wait(min(early, 1.0) if seen else 1.0)  # then checks whether the caller still waits
                    continue
                seen, now, due = self._number, self._now, time.monotonic() + every
            yield now
