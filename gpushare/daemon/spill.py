"""What the ledger could not write, on tmpfs: it outlives a killed daemon while the disk is full or gone."""

import contextlib
import os
from pathlib import Path

import msgspec

from gpushare.daemon.entries import Entries

_BYTES_MAX = 64 << 20


class Spill:
    """One line per batch; written anew, as one batch, when it has grown large."""

    def __init__(self, path: Path | None) -> None:
        """`path` None: nothing is kept."""
        self._path = path
        self._size = 0

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
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(self._path, flags, 0o600), "ab", buffering=0) as file:
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
