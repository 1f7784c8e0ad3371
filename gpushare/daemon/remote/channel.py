"""The daemon's end of a socket to one of its helpers, which preserves message boundaries. Neither a helper that reads
nothing nor one that sends without end keeps the loop from its other work."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from gpushare.daemon.host.outbox import Outbox

_AT_ONCE = 32
"""Messages that are handled before the loop serves others, for as long as these took."""
_UNSENT_MAX = 4096
"""Messages that wait for a helper that does not read. One more, and the helper counts as gone."""


class Channel:
    """Belongs to the event loop. `received`: handles a message, and what it raises is a bug. `ended`: called once, when
    the other end has closed or does not read."""

    def __init__(
        self, end: socket.socket, most: int, received: Callable[[bytes], None], ended: Callable[[], None]
    ) -> None:
        """Owns `end` from now on. `most`: bytes of a message."""
        self._loop = asyncio.get_running_loop()
        self._end, self._most, self._received, self._ended = end, most, received, ended
        self._outbox = Outbox(end)
        self._reading: asyncio.TimerHandle | None = None
        end.setblocking(False)
        self._loop.add_reader(end, self._receive)

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent. The other end may have closed all the same."""
        return self._end.fileno() >= 0

    def send(self, data: bytes, descriptor: int | None = None) -> None:
        """Sends a message, as soon as the helper reads. `descriptor`: goes with it, and stays the caller's. A message
        to a helper that is gone is dropped."""
        if not self.is_open:
            return
        if len(self._outbox) >= _UNSENT_MAX:
            self._loop.call_soon(self._gone)
        else:
            self._outbox.send(data, descriptor)

    def close(self) -> None:
        """Closes this end; `ended` is not called."""
        if not self.is_open:
            return
        if self._reading is not None:
            self._reading.cancel()
        self._loop.remove_reader(self._end)
        for descriptor in self._outbox.close():
            os.close(descriptor)
        self._end.close()

    def _gone(self) -> None:
        if self.is_open:
            self.close()
            self._ended()

    def _receive(self) -> None:
        began = self._loop.time()
        for _ in range(_AT_ONCE):
            try:
                data = self._end.recv(self._most)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._gone()
                return
            self._received(data)
            if not self.is_open:
                return
        self._loop.remove_reader(self._end)
        self._reading = self._loop.call_later(self._loop.time() - began, self._read_on)

    def _read_on(self) -> None:
        self._reading = None
        with contextlib.suppress(OSError):
            self._loop.add_reader(self._end, self._receive)
