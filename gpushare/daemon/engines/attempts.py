"""Containers without a share that asked for a GPU in NVIDIA's ways: counted, and the latest kept.

The hook and the runtime wrapper do not wait for this (/v1/oci/attempt). Containers.edit notes what it has read.
"""

import time
from collections import Counter, deque
from typing import cast

from gpushare.api import events
from gpushare.api.engines import OciEditRequest
from gpushare.daemon.host.readers import Readers
from gpushare.errors import GpushareError
from gpushare.reader.messages import Asks

KEPT = 256
_AT_ONCE = 16
"""Configurations that are read at once. More are counted as unread: the readers are there for requests for shares."""


class Attempts:
    """Belongs to the event loop."""

    def __init__(self, epoch: int, readers: Readers) -> None:
        self._epoch, self._readers = epoch, readers
        self._kept: deque[events.Attempt] = deque(maxlen=KEPT)
        self._total = self._looking = 0
        self.counts: Counter[tuple[events.Way, events.Path]] = Counter()
        self.unread = 0
        """Configurations that were not looked at, or could not be read."""

    async def look(self, asked: OciEditRequest) -> None:
        """Reads the config of a container that is about to start without a share, and notes how it asks for a GPU in
        NVIDIA's ways. Raises what Readers.reading does."""
        if self._looking >= _AT_ONCE:
            self.unread += 1
            return
        self._looking += 1
        try:
            async with self._readers.reading(bytes(asked.config), asked.bundle) as reading:
                found = await reading.asks("nvidia")
        except GpushareError:
            self.unread += 1
            raise
        finally:
            self._looking -= 1
        self.note(asked, found)

    def note(self, asked: OciEditRequest, found: Asks) -> None:
        """Notes a container that is about to start without a share. `found`: how it asks for a GPU."""
        if found.ways is None:
            self.unread += 1
        elif found.ways:
            self._note(cast("list[events.Way]", found.ways), found.container, _path(asked))

    def _note(self, by: list[events.Way], container: str, path: events.Path) -> None:
        self._total += 1
        self.counts.update((way, path) for way in by)
        self._kept.append(events.Attempt(seq=self._total, at_ns=time.time_ns(), container=container, by=by, path=path))

    def shown(self) -> events.Attempts:
        """Returns the answer to GET /v1/attempts."""
        return events.Attempts(epoch=self._epoch, total=self._total, attempts=list(self._kept))


def _path(asked: OciEditRequest) -> events.Path:
    if asked.bundle is None:
        return "nri"
    return "wrapper" if asked.starts else "hook"
