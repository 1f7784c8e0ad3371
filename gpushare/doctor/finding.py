"""What is found, what there is to find, and how files are read that need not be what they should."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Level = Literal["ok", "note", "wrong", "missing"]
TEXT_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """`note`: works without it. `found`: what is there, of a fault also why it is one. `mend`: what to do, empty when
    all is well."""

    what: str
    level: Level
    found: str
    mend: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether something does not work because of it."""
        return self.level in ("wrong", "missing")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the doctor may find: texts with `{names}` for what differs. `why`: why it matters, for
    docs/troubleshooting.md, which scripts/pages.py makes of all checks."""

    what: str
    level: Level
    found: str
    mend: str
    why: str

    def __call__(self, **values: object) -> Finding:
        """As it was found here. What `values` say is not interpreted."""
        what, found, mend = (text.format(**values) for text in (self.what, self.found, self.mend))
        return Finding(what, self.level, found, mend)


def read(path: Path, most: int = TEXT_MAX) -> bytes | None:
    """A regular file, None where it is something else, too large, or cannot be read. Its last component is not
    followed, and nothing is waited for."""
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # opens nothing: a device may do things then
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
    """A list for people."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
