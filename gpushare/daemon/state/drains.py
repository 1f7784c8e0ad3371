"""Devices that take no new grants by an administrator's decision. Drains are kept in a file, so they outlive the
daemon."""

import contextlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpushare.errors import FailedError
from gpushare.inject import files

log = logging.getLogger(__name__)

FILE = "drained.json"


@dataclass(frozen=True, slots=True)
class Drain:
    """`since_ns`: wall time. `reason`: the administrator's words."""

    since_ns: int
    reason: str

    @property
    def fault(self) -> str:
        """Why the device takes no new grants, as a clause with "it" as its subject."""
        return f"it is drained{f': {self.reason}' if self.reason else ''}"


class Drains(Mapping[str, Drain]):
    """Drains by id of the device."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the daemon's state. A file that cannot be read drains nothing; a damaged one is renamed."""
        self._path = directory / FILE
        self._drains: dict[str, Drain] = {}
        self._lock = threading.Lock()
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("%s: %s: no device is drained", self._path, error.strerror)
            return
        try:
            rows = json.loads(data)
            self._drains = {str(name): Drain(int(row["since_ns"]), str(row["reason"])) for name, row in rows.items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            aside = self._path.with_suffix(".damaged")
            with contextlib.suppress(OSError):
                self._path.rename(aside)
            log.warning("%s cannot be read (%s) and is now %s: no device is drained", self._path, error, aside.name)

    def __getitem__(self, device: str) -> Drain:
        return self._drains[device]

    def __iter__(self) -> Iterator[str]:
        return iter(self._drains)

    def __len__(self) -> int:
        return len(self._drains)

    def __eq__(self, other: object) -> bool:
        return self._drains == (other._drains if isinstance(other, Drains) else other)

    __hash__ = None  # type: ignore[assignment]

    def put(self, device: str, drain: Drain) -> None:
        """Drains a device. Raises FailedError where the file cannot be written; then nothing changes."""
        with self._lock:
            self._write({**self._drains, device: drain})

    def remove(self, device: str) -> None:
        """Ends a drain. A device that is not drained is left as it is. Raises like `put`."""
        with self._lock:
            self._write({name: drain for name, drain in self._drains.items() if name != device})

    def _write(self, drains: dict[str, Drain]) -> None:
        rows = {name: {"since_ns": drain.since_ns, "reason": drain.reason} for name, drain in drains.items()}
        try:
            files.replace(self._path, json.dumps(rows).encode(), 0o644)
        except OSError as error:
            raise FailedError(f"{self._path} cannot be written ({error.strerror}): nothing is changed") from None
        self._drains = drains
