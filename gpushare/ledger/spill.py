"""What the ledger keeps on tmpfs alongside its file: what could not be written to the disk, and the rows of the grants
in use. So a killed daemon loses nothing while the disk is full, and no grant in use is lost with the ledger."""

import contextlib
import os
import threading
from collections.abc import Iterator, Set
from pathlib import Path

import msgspec
from msgspec import field as struct_field

from gpushare.ledger.entries import Entries, GrantRow
from gpushare.policy.grants.lifecycle import Phase

_BYTES_MAX = 64 << 20
_CREATE = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class _Line(Entries):
    """A batch. `settled`: grants whose periods in the lines before this one are in the ledger."""

    settled: list[str] = struct_field(default_factory=list)


class Spill:
    """`ledger.pending`: one line per batch; rewritten as one batch when it has grown large. `<grant>/record`: the row
    of a grant, in its directory and removed with it."""

    def __init__(self, directory: Path | None) -> None:
        """`directory`: the parent of the grants' directories. None: nothing is kept."""
        self._grants = directory
        self._path = directory / "ledger.pending" if directory is not None else None
        self._size = 0
        self._spilled: set[str] = set()
        """The grants with periods in the file."""

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
        for text in content.splitlines():
            with contextlib.suppress(msgspec.MsgspecError, ValueError):
                line = msgspec.json.decode(text, type=_Line)
                if line.settled:
                    found.drop_periods(frozenset(line.settled))
                found.follow(line)
        self._spilled = {period.grant_id for period in found.periods.values()}
        return found

    def add(self, batch: Entries, kept: Entries) -> bool:
        """Appends a batch; `kept` is all that waits, this batch included. Returns whether that was possible."""
        if self._path is None:
            return False
        if not batch:
            return True
        line = msgspec.json.encode(batch) + b"\n"
        if self._size + len(line) > _BYTES_MAX:
            self.clear()
            batch, line = kept, msgspec.json.encode(kept) + b"\n"
        self._spilled |= {period.grant_id for period in batch.periods.values()}
        return self._append(line)

    def settled(self, grants: Set[str]) -> bool:
        """Notes that the spilled periods of these grants are in the ledger now. Returns whether that was possible."""
        found = self._spilled & grants
        self._spilled -= found
        return not found or self._append(msgspec.json.encode({"settled": sorted(found)}) + b"\n")

    def _append(self, line: bytes) -> bool:
        if self._path is None:
            return False
        try:
            self._path.parent.mkdir(mode=0o711, exist_ok=True)
            with open(os.open(self._path, _CREATE | os.O_APPEND, 0o600), "ab", buffering=0) as file:
                if file.write(line) < len(line):
                    file.truncate(self._size)  # the next line would be a part of this one
                    return False
                self._size = file.tell()
        except (OSError, ValueError):
            return False
        return True

    def clear(self) -> None:
        """Removes the file: all of it is in the ledger."""
        if self._path is not None and self._size:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._size = 0
        self._spilled = set()
