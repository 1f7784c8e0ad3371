"""Findings, the checks that make them, and reading of files that may not be what they should be."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["ok", "note", "wrong", "missing"]
TEXT_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Level `note`: everything works without it. `found`: what is there; for a fault also why it is one. `mend`: what
    to do; empty if nothing is wrong."""

    what: str
    level: Level
    found: str
    mend: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether something does not work because of this."""
        return self.level in ("wrong", "missing")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the doctor may find: texts with `{names}` for what differs. `why`: why it matters, for
    docs/guides/troubleshooting, which scripts/pages generates from all checks."""

    what: str
    level: Level
    found: str
    mend: str
    why: str

    def __call__(self, **values: object) -> Finding:
        """The finding on this node. The text of `values` is not interpreted."""
        what, found, mend = (text.format(**values) for text in (self.what, self.found, self.mend))
        return Finding(what, self.level, found, mend)


def read(path: Path, most: int = TEXT_MAX) -> bytes | None:
    """Returns the contents of a regular file; None if it is something else, larger than `most` bytes, or unreadable. A
    symlink as last component is not followed, and the open does not block."""
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # opening a device may have effects
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return None
        with open(f"/proc/self/fd/{place}", "rb") as file:
            data = file.read(most + 1)
    except OSError:
        return None
    finally:
        os.close(place)
    return data if len(data) <= most else None


def shortened(names: list[str], most: int = 5) -> str:
    """The names as a readable list, of at most `most`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
