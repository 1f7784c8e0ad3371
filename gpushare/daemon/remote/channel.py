"""The daemon's end of a socket to one of its helpers, which preserves message boundaries. Neither a helper that reads
nothing nor one that sends without end keeps the loop from its other work."""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

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
        self._unsent: deque[tuple[bytes, int | None]] = deque()
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
        if not self.is_open or (not self._unsent and self._try_send(data, descriptor)):
            return
        if len(self._unsent) >= _UNSENT_MAX:
            self._loop.call_soon(self._gone)
            return
        if not self._unsent:
            self._loop.add_writer(self._end, self._send_rest)
        self._unsent.append((data, os.dup(descriptor) if descriptor is not None else None))

    def close(self) -> None:
        """Closes this end; `ended` is not called."""
        if not self.is_open:
            return
        if self._reading is not None:
            self._reading.cancel()
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        for _, descriptor in self._unsent:
            if descriptor is not None:
                os.close(descriptor)
        self._unsent.clear()

    def _gone(self) -> None:
        if self.is_open:
            self.close()
            self._ended()

    def _try_send(self, data: bytes, descriptor: int | None) -> bool:
        """Returns False where the message has to wait."""
        try:
            socket.send_fds(self._end, [data], [descriptor] if descriptor is not None else [])
        except BlockingIOError:
            return False
        except OSError:
            pass  # it is gone, which `_receive` notices
        return True

    def _send_rest(self) -> None:
        while self._unsent:
            data, descriptor = self._unsent[0]
            if not self._try_send(data, descriptor):
                return
            self._unsent.popleft()
            if descriptor is not None:
                os.close(descriptor)
        self._loop.remove_writer(self._end)

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
