"""The relay's socket for daemons: one is connected at a time, the newest. What it does not read is not piled up: of an
attachment it gets the state of the moment when it reads."""

import os
import socket
import struct
from collections.abc import Callable, Collection

import msgspec

from gpushare.relay import messages
from gpushare.relay.book import Book
from gpushare.relay.loop import IN, OUT, Loop

_AT_ONCE = 32
_ALL = ""
"""In place of an attachment's id: after it, every attachment was told."""

Heard = Callable[[messages.FromDaemon, int | None], None]


class Daemons:
    """Owns the listener (SOCK_SEQPACKET). `measure`: brings the book up to date, for a new daemon. `heard`: handles a
    message, and owns its descriptor."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        users: Collection[int],
        here: messages.Here,
        book: Book,
        measure: Callable[[], None],
        heard: Heard,
    ) -> None:
        """`users`: whose processes may be daemons."""
        self._loop, self._listener, self._users = loop, listener, users
        self._here, self._book, self._measure, self._heard = here, book, measure, heard
        self._daemon: socket.socket | None = None
        self._due: dict[str, None] = {}
        listener.setblocking(False)
        loop.watch(listener.fileno(), IN, self._accept)

    @property
    def connected(self) -> bool:
        """There is a daemon."""
        return self._daemon is not None

    def changed(self, attachment_id: str) -> None:
        """Has the daemon told an attachment's state."""
        if self._daemon is not None:
            self._due.setdefault(attachment_id)
            self._send()

    def _accept(self, _: int) -> None:
        try:
            daemon, _ = self._listener.accept()
        except OSError:
            return
        _, uid, _ = struct.unpack("iII", daemon.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in self._users:
            daemon.close()
            return
        self._hang_up()
        daemon.setblocking(False)
        self._daemon = daemon
        self._measure()
        self._due = dict.fromkeys([*(each.id for each in self._book), _ALL])
        try:
            daemon.send(messages.encode(self._here))
        except OSError:
            self._hang_up()
            return
        self._send()

    def _send(self) -> None:
        daemon = self._daemon
        if daemon is None:
            return
        try:
            while self._due:
                first = next(iter(self._due))
                if first == _ALL:
                    daemon.send(messages.encode(messages.All()))
                elif (found := self._book.get(first)) is not None:
                    daemon.send(messages.encode(found.as_message()))
                del self._due[first]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up()
            return
        self._loop.watch(daemon.fileno(), IN | OUT if self._due else IN, self._happened)

    def _happened(self, events: int) -> None:
        if events & OUT:
            self._send()
        daemon = self._daemon
        for _ in range(_AT_ONCE):
            if daemon is None or daemon is not self._daemon:
                return
            try:
                data, descriptors, _, _ = socket.recv_fds(daemon, messages.MESSAGE_MAX, 1)
            except BlockingIOError:
                return
            except OSError:
                data, descriptors = b"", []
            descriptor = descriptors[0] if descriptors else None
            try:
                message = messages.from_daemon(data)
            except msgspec.DecodeError:  # its end too
                if descriptor is not None:
                    os.close(descriptor)
                self._hang_up()
                return
            self._heard(message, descriptor)

    def _hang_up(self) -> None:
        if self._daemon is not None:
            self._loop.forget(self._daemon.fileno())
            self._daemon.close()
            self._daemon = None
            self._due.clear()
