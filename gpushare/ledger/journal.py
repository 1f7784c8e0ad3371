"""Entries that the ledger's thread has not taken yet, on tmpfs. Whoever saves one writes it here first, in some
microseconds: so nobody waits for the disk, and a killed daemon loses none of it."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec import structs

from gpushare.ledger.entries import Entries

_BYTES_MAX = 64 << 20
_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_PREFIX = "ledger.new."


class Journal:
    """`ledger.new.<number>`, one line per batch. Later lines, and files of higher numbers, are newer: all of it is
    applied on top of what the ledger has, which may include some of it already.

    For one thread at a time."""

    def __init__(self, directory: Path | None) -> None:
        """`directory`: the parent of the grants' directories. None: nothing is kept."""
        self._directory = directory
        found = list(directory.glob(f"{_PREFIX}*")) if directory is not None else []
        numbers = ((path.name.removeprefix(_PREFIX), path) for path in found)
        files = sorted((int(text), path) for text, path in numbers if text.isascii() and text.isdecimal())
        self._next = files[-1][0] + 1 if files else 1
        self._paths = [path for _, path in files]
        """The files since the last cut; that of `_file` is the last."""
        self._file: int | None = None
        self._size = 0

    def read(self) -> Entries:
        """What an earlier run left. A line that a kill cut short is skipped."""
        found = Entries()
        for path in self._paths:
            with contextlib.suppress(OSError):
                for text in path.read_bytes().splitlines():
                    with contextlib.suppress(msgspec.MsgspecError, ValueError):
                        found.follow(msgspec.json.decode(text, type=Entries))
        return found

    def add(self, batch: Entries, fresh: Entries) -> bool:
        """Appends a batch; `fresh` is all since the last cut, this batch included. Returns whether that was
        possible."""
        if self._directory is None:
            return False
        line = msgspec.json.encode(batch) + b"\n"
        if self._file is None or self._size + len(line) <= _BYTES_MAX:
            return self._append(line)
        # It was not cut for long: a file with one merged batch replaces it.
        old = self.cut()
        kept = structs.replace(fresh, periods={})  # which are not in the journal, and would count twice
        if not self._append(msgspec.json.encode(kept) + b"\n"):
            self._paths = old + self._paths
            return False
        remove(old)
        return True

    def cut(self) -> list[Path]:
        """Begins another file. Returns those before it, for `remove` when the ledger has what is in them."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._size = None, 0
        paths, self._paths = self._paths, []
        return paths

    def _append(self, line: bytes) -> bool:
        assert self._directory is not None
        try:
            if self._file is None:
                self._directory.mkdir(mode=0o711, exist_ok=True)
                path = self._directory / f"{_PREFIX}{self._next}"
                self._file = os.open(path, _CREATE, 0o600)
                self._next += 1
                self._paths.append(path)
            if os.write(self._file, line) < len(line):
                os.ftruncate(self._file, self._size)  # the next line would be a part of this one
                return False
        except OSError:
            return False
        self._size += len(line)
        return True


def remove(paths: Iterable[Path]) -> None:
    """Removes files whose content is in the ledger."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
