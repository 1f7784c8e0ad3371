"""SQLite files for the ledger: how they are opened, what their failures mean, and whether they are whole."""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from gpushare.errors import FailedError

log = logging.getLogger(__name__)

_BUSY_SECONDS = 0.5
# SQLite's primary codes for failures that may pass: no rights, locked, no memory, read-only, interrupted, I/O, full,
# cannot open, lock protocol, no large files, not authorised. All others say that the file is not what it should be.
_PASSING = frozenset({3, 5, 6, 7, 8, 9, 10, 13, 14, 15, 22, 23})
_SHORT_READ, _CORRUPT_FS = 522, 8458  # two I/O errors that do not pass

# What reading may raise. Python fails to decode an error of SQLite that quotes bytes of a damaged file.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)


class DamagedError(FailedError):
    """The file is not a gpushare ledger, or not a whole one."""


@contextlib.contextmanager
def failures(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and the kernel into FailedError or DamagedError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 1)
        if code & 0xFF in _PASSING and code not in (_SHORT_READ, _CORRUPT_FS):
            raise FailedError(f"the ledger {path} cannot be used now: {error}") from None
        raise DamagedError(f"the ledger {path} is damaged: {error}") from None
    except UnicodeDecodeError as error:
        raise DamagedError(f"the ledger {path} is damaged: {error}") from None
    except OSError as error:
        raise FailedError(f"the ledger {path} cannot be used now: {error.strerror}") from None


def connect(path: Path, options: str = "") -> sqlite3.Connection:
    """A connection that threads may use one at a time. Bytes that are not UTF-8 are replaced."""
    uri = f"file:{quote(os.fspath(path))}{options}"
    found = sqlite3.connect(uri, _BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    found.text_factory = lambda text: text.decode(errors="replace")
    return found


def check(path: Path, reader: sqlite3.Connection) -> str:
    """The first fault in the file, empty when there is none or it cannot be read. Reads all of it: call it in a thread.
    Closes the reader."""
    try:
        with failures(path), contextlib.closing(reader):
            found = str(reader.execute("PRAGMA main.integrity_check(1)").fetchone()[0])
    except FailedError as error:
        log.warning("%s", error)
        return str(error) if isinstance(error, DamagedError) else ""
    return "" if found == "ok" else f"the ledger {path} is damaged: {found}"


def sums(*names: str) -> str:
    """Columns for sums, which `whole` puts together: SUM() fails beyond 64 bits, so each half is summed separately."""
    return ", ".join(f"SUM({name} >> 32), SUM({name} & 4294967295)" for name in names)


def whole(halves: Sequence[int]) -> list[int]:
    """The sums."""
    return [(halves[i] << 32) + halves[i + 1] for i in range(0, len(halves), 2)]
