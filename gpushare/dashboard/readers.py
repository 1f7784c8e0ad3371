"""Readers of the stream of changes: each page has its own queue, so that a slow one delays no other."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any

READERS_MAX = 24
QUEUE_BYTES_MAX = 2 << 20
"""Maximum backlog of a page: beyond it the page is disconnected, and starts over."""


def encoded(message: Any) -> bytes:
    """Encodes a message as an event of the stream (text/event-stream)."""
    return b"data: " + json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n\n"


class Reader:
    """One open page."""

    def __init__(self) -> None:
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self.lost = False

    def put(self, message: bytes) -> None:
        """Queues a message without waiting; marks the reader as lost if its backlog is too large."""
        self._bytes += len(message)
        self.lost = self.lost or self._bytes > QUEUE_BYTES_MAX
        if self.lost:
            self._queue.clear()
        else:
            self._queue.append(message)
        self._more.set()

    async def take(self, seconds: float) -> bytes:
        """Waits for messages and returns all queued ones; a comment if none came in time. Empty: the reader is lost."""
        try:
            await asyncio.wait_for(self._more.wait(), seconds)
        except TimeoutError:
            return b":\n\n"
        self._more.clear()
        found = b"".join(self._queue)
        self._queue.clear()
        self._bytes = 0
        return b"" if self.lost else found


class Readers:
    """All open pages. `changed`: called with True when the first page joins, and with False when there has been none
    for `linger_seconds`."""

    def __init__(self, changed: Callable[[bool], None], linger_seconds: float = 5.0) -> None:
        self._changed, self._linger = changed, linger_seconds
        self._readers: set[Reader] = set()
        self._leaving: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether no more pages are accepted."""
        return len(self._readers) >= READERS_MAX

    def join(self) -> Reader:
        """Adds a page."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        elif not self._readers:
            self._changed(True)
        self._readers.add(reader := Reader())
        return reader

    def leave(self, reader: Reader) -> None:
        """Removes a page. Following continues for a while, since a page that is reloaded leaves and comes back."""
        self._readers.discard(reader)
        if not self._readers:
            self._leaving = asyncio.get_running_loop().call_later(self._linger, self._end)

    def _end(self) -> None:
        self._leaving = None
        self._changed(False)

    def publish(self, message: bytes) -> None:
        """Queues a message for all pages."""
        for reader in self._readers:
            reader.put(message)
