"""SQLite files for the ledger: how they are opened, what their failures mean, and whether they are whole."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from gpushare.errors import FailedError

_BUSY_SECONDS = 0.5
# SQLite's primary codes for what may be over later: no rights, locked, no memory, read-only, interrupted, I/O, full,
# cannot open, lock protocol, no large files, not authorised. All others say that the file is not what it should be.
_PASSING = frozenset({3, 5, 6, 7, 8, 9, 10, 13, 14, 15, 22, 23})
_SHORT_READ, _CORRUPT_FS = 522, 8458  # of I/O errors, two that stay

# What reading may raise. Python fails to decode what SQLite says of a damaged file where that quotes it.
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)


class DamagedError(FailedError):
    """What is there is no ledger of ours, or not a whole one."""


@contextlib.contextmanager
def failures(path: Path) -> Iterator[None]:
    """Turns what SQLite and the kernel say into FailedError or DamagedError."""
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
    """A connection for any thread that is the only one at a time. Text that is not UTF-8 is read as far as it is."""
    uri = f"file:{quote(os.fspath(path))}{options}"
    found = sqlite3.connect(uri, _BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    found.text_factory = lambda text: text.decode(errors="replace")
    return found


def check(path: Path) -> str:
    """What is wrong in the file, empty when nothing is. Reads all of it: for a thread."""
    with failures(path), contextlib.closing(connect(path, "?mode=ro")) as reader:
        found = str(reader.execute("PRAGMA integrity_check(1)").fetchone()[0])
    return "" if found == "ok" else f"the ledger {path} is damaged: {found}"
