"""The daemon's log: one line per record on stderr, decisions at level debug as `what key=value ...`."""

import logging
import sys
import time

from aiohttp.http_exceptions import HttpProcessingError

# Messages contain text from requests, which must not look like another record or like a terminal's control sequence.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


_SELDOM_SECONDS = 60.0

_log = logging.getLogger(__name__)


class _Lines(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return super().formatMessage(record).translate(_CONTROL)


def start(level: str) -> None:
    """Logs records of at least this level: `debug`, `info`, `warning` or `error`. Libraries never log at debug."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("gpushare: %(message)s"))
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(number, logging.INFO), handlers=[handler], force=True)
    logging.getLogger("gpushare").setLevel(number)
    logging.getLogger("aiohttp.server").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Requests that are not valid HTTP are their sender's mistake: they are answered, not logged, or anybody could fill
    the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


class Seldom:
    """Warnings that strangers can cause: one line per cause and minute, with the number left out."""

    def __init__(self) -> None:
        self._causes: dict[str, tuple[float, int]] = {}

    def warning(self, cause: str, text: str, *values: object) -> None:
        """`cause`: rate-limit key; never built from text that strangers supply."""
        now = time.monotonic()
        since, left_out = self._causes.get(cause, (-_SELDOM_SECONDS, 0))
        if now - since < _SELDOM_SECONDS:
            self._causes[cause] = (since, left_out + 1)
            return
        self._causes[cause] = (now, 0)
        more = f" ({left_out} times more since its last line)" if left_out else ""
        _log.warning(text + more, *values)
