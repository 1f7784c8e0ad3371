"""The relay's end of a connector: connections to a grant's server, asked of its supervisor."""

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

from gpushare.relay.loop import IN, OUT, Loop
from gpushare.sandbox.connector import CONNECT, CONNECTED

Got = Callable[[socket.socket | None], None]


class Connector:
    """Owns the socket. `gone` is called once when the supervisor has closed its end."""

    def __init__(self, loop: Loop, sock: socket.socket, gone: Callable[[], None]) -> None:
        sock.setblocking(False)
        self._loop, self._socket, self._gone = loop, sock, gone
        self._waiting: deque[Got] = deque()
        """Answers come in the order of the questions."""
        self._unsent = 0
        self._watch()

    def ask(self, got: Got) -> None:
        """Has `got` called, later, with a connected socket, which it owns; None: there is none."""
        self._waiting.append(got)
        self._unsent += 1
        self._watch()

    def close(self) -> None:
        """Closes it, upon which the supervisor ends the server. Who waits for an answer gets none. Harmless after."""
        if self._socket.fileno() >= 0:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            for got in self._waiting:
                self._loop.after(0, lambda got=got: got(None))  # type: ignore[misc]
            self._waiting.clear()

    def _watch(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.watch(self._socket.fileno(), IN | OUT if self._unsent else IN, self._happened)

    def _happened(self, events: int) -> None:
        try:
            if self._unsent:
                with contextlib.suppress(BlockingIOError):
                    self._unsent -= self._socket.send(CONNECT * self._unsent)
            if events & ~OUT:
                self._receive()
        except OSError:
            self.close()
            self._gone()
            return
        self._watch()

    def _receive(self) -> None:
        try:
            # One byte: each answer has its own descriptor, if any.
            answer, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        except BlockingIOError:
            return
        if not answer or not self._waiting:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ConnectionError("the supervisor has gone")
        got = self._waiting.popleft()
        got(_connection(descriptors) if answer == CONNECTED else None)


def _connection(descriptors: list[int]) -> socket.socket | None:
    if not descriptors:
        return None
    try:
        sock = socket.socket(fileno=descriptors[0])
    except OSError:  # it is no socket
        os.close(descriptors[0])
        return None
    if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.close()
        return None
    return sock
