"""Tracks which cgroups this daemon has frozen and why, so that none stays frozen without a reason.

A link per cgroup is made before the first freeze and removed after the last thaw, so that the next daemon finds what a
killed one has frozen.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from pathlib import Path

from gpushare.enforce import freezer
from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import FailedError, GpushareError

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.0005
_STOPPED_SECONDS = 1.0


class Holds:
    """Belongs to the event loop. `links`: the directory of the links."""

    def __init__(self, links: Path) -> None:
        self._links = links
        self._reasons: dict[Path, set[object]] = {}
        self._groups: dict[Path, Cgroup] = {}
        self._paused: set[Path] = set()
        """Cgroups that somebody else had frozen before."""
        self._left = self._read()

    def _read(self) -> dict[Path, Cgroup]:
        """Cgroups that an earlier daemon froze and did not thaw."""
        found = {}
        with contextlib.suppress(OSError):
            for link in self._links.iterdir():
                with contextlib.suppress(OSError):
                    path = link.readlink()
                    found[path] = Cgroup(path, v2=link.suffix == ".v2")
        return found

    def _link(self, group: Cgroup) -> Path:
        name = hashlib.sha256(os.fsencode(group.path)).hexdigest()[:24]
        return self._links / f"{name}.{'v2' if group.v2 else 'v1'}"

    def take(self, group: Cgroup, reason: object) -> None:
        """Freezes a cgroup for as long as it has a reason. Raises FailedError."""
        if group.path not in self._reasons:
            try:
                self._links.mkdir(mode=0o700, parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    self._link(group).symlink_to(group.path)
            except OSError as error:
                raise FailedError(f"{self._links}: {error.strerror}") from None
            if self._left.pop(group.path, None) is None and freezer.is_freezing(group):
                self._paused.add(group.path)
            self._groups[group.path] = group
            self._reasons[group.path] = set()
        self._reasons[group.path].add(reason)
        freezer.freeze(group)

    def release(self, group: Cgroup, reason: object) -> None:
        """Removes a reason; without any the cgroup is thawed."""
        reasons = self._reasons.get(group.path)
        if reasons is None:
            return
        reasons.discard(reason)
        if not reasons:
            del self._reasons[group.path], self._groups[group.path]
            self._thaw(group)

    def renew(self) -> None:
        """Freezes again what somebody else has thawed meanwhile, as an engine does that resumes its container."""
        for group in self._groups.values():
            if not freezer.is_freezing(group):
                self._paused.discard(group.path)
                with contextlib.suppress(GpushareError):
                    freezer.freeze(group)

    def forget_left(self) -> None:
        """Thaws what an earlier daemon had frozen, and what nothing here has a reason to keep frozen."""
        for group in self._left.values():
            self._thaw(group)
        self._left.clear()

    def __contains__(self, group: Cgroup) -> bool:
        return group.path in self._reasons

    def _thaw(self, group: Cgroup) -> None:
        try:
            if group.path not in self._paused:
                freezer.thaw(group)
            self._paused.discard(group.path)
        except GpushareError as error:
            log.error("%s stays frozen: %s", group.path, error)  # noqa: TRY400 - the reason is in the line
            return
        with contextlib.suppress(OSError):
            self._link(group).unlink(missing_ok=True)


async def stopped(group: Cgroup) -> int | None:
    """Waits until every thread of a cgroup that is being frozen has stopped. Returns the monotonic time then, in ns;
    None after a second: a thread waits in the kernel for something else, such as a device."""
    deadline = time.monotonic() + _STOPPED_SECONDS
    while not freezer.frozen(group):
        if time.monotonic() > deadline:
            return None
        await asyncio.sleep(_LOOK_SECONDS)
    return time.monotonic_ns()
