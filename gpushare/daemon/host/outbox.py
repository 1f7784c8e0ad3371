"""Messages from the loop to one of the daemon's helpers, over a socket that preserves message boundaries: a helper that
does not read keeps the loop from nothing."""

import asyncio
import os
import socket
from collections import deque


class Outbox:
    """Belongs to the event loop, and to the socket's owner, who closes this before the socket."""

    def __init__(self, end: socket.socket) -> None:
        """`end` does not block."""
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._unsent: deque[tuple[bytes, int | None]] = deque()

    def __len__(self) -> int:
        """How many messages wait for the helper to read."""
        return len(self._unsent)

    def send(self, data: bytes, descriptor: int | None = None) -> None:
        """Sends a message, after those that wait. `descriptor`: goes with it, and stays the caller's."""
        if self._unsent or not self._try_send(data, descriptor):
            if not self._unsent:
                self._loop.add_writer(self._end, self._send_rest)
            self._unsent.append((data, os.dup(descriptor) if descriptor is not None else None))

    def close(self) -> list[int]:
        """Drops what waits. Returns its descriptors, which are the caller's now."""
        self._loop.remove_writer(self._end)
        left = [descriptor for _, descriptor in self._unsent if descriptor is not None]
        self._unsent.clear()
        return left

    def _try_send(self, data: bytes, descriptor: int | None) -> bool:
        """Returns False where the message has to wait."""
        try:
            socket.send_fds(self._end, [data], [descriptor] if descriptor is not None else [])
        except BlockingIOError:
            return False
        except OSError:
            pass  # the helper is gone, which who reads from it notices
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
