"""What the ledger has on tmpfs beside its file: what the disk did not take, and the rows of the grants that live. So a
killed daemon loses nothing while the disk is full, and nobody who lives when the ledger is lost."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpushare.ledger.entries import Entries, GrantRow
from gpushare.policy.lifecycle import Phase

_BYTES_MAX = 64 << 20
_CREATE = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class Spill:
    """`ledger.pending`: one line per batch; written anew, as one batch, when it has grown large. `<grant>/record`: the
    row of a grant, in its directory, with which it goes."""

    def __init__(self, directory: Path | None) -> None:
        """`directory`: the parent of the grants' directories. None: nothing is kept."""
        self._grants = directory
        self._path = directory / "ledger.pending" if directory is not None else None
        self._size = 0

    def note(self, row: GrantRow) -> None:
        """Keeps the row of a grant in use, which has a directory."""
        if self._grants is None or row.phase in (Phase.PREPARED, Phase.RESERVED):
            return
        record = self._grants / row.id / "record"
        with contextlib.suppress(OSError, ValueError):
            fresh = record.with_suffix(f".{threading.get_ident()}")
            with open(os.open(fresh, _CREATE | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(row))
            fresh.rename(record)

    def noted(self) -> Iterator[GrantRow]:
        """Rows of the grants in use."""
        for record in self._grants.glob("*/record") if self._grants is not None else ():
            with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
                row = msgspec.json.decode(record.read_bytes(), type=GrantRow)
                if row.id == record.parent.name:
                    yield row

    def read(self) -> Entries:
        """What an earlier run left. A line that a kill cut short is skipped."""
        found = Entries()
        if self._path is None:
            return found
        try:
            content = self._path.read_bytes() if self._path.is_file() else b""
        except OSError:
            return found
        self._size = len(content)
        for line in content.splitlines():
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                found.follow(msgspec.json.decode(line, type=Entries))
        return found

    def add(self, batch: Entries, kept: Entries) -> bool:
        """Appends a batch; `kept` is all that waits, this batch included. Whether that was possible."""
        if self._path is None:
            return False
        if not batch:
            return True
        try:
            line = msgspec.json.encode(batch) + b"\n"
            if self._size + len(line) > _BYTES_MAX:
                self.clear()
                line = msgspec.json.encode(kept) + b"\n"
            self._path.parent.mkdir(mode=0o711, exist_ok=True)
            with open(os.open(self._path, _CREATE | os.O_APPEND, 0o600), "ab", buffering=0) as file:
                if file.write(line) < len(line):
                    return False
                self._size = file.tell()
        except (OSError, ValueError):
            return False
        return True

    def clear(self) -> None:
        """All of it is in the ledger."""
        if self._path is not None and self._size:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._size = 0
