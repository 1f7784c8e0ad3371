"""The supervisor's end of the connector (gpushare/sandbox/connector.py), from when the server listens until one of both
ends."""

import errno
import select
import socket
import time

from gpushare.sandbox.connector import CONNECT, CONNECTED, REFUSED
from gpushare.sandbox.output import Output

HOST = "127.0.0.1"
_CONNECT_SECONDS = 2.0
"""A server that accepts nothing has a queue that is full: its next connection waits."""
_READ = 256


class Serving:
    """Waits for the relay and for the server's end together; one connection at a time is being made. It belongs to one
    thread, which is in the server's network namespace."""

    def __init__(self, connector: socket.socket, port: int, ended: int, output: Output) -> None:
        """`ended`: a pidfd of the server's process 1."""
        connector.setblocking(False)
        self._connector, self._port, self._ended, self._output = connector, port, ended, output
        self._poll = select.poll()
        for descriptor in (connector.fileno(), ended, output.descriptor):
            self._poll.register(descriptor, select.POLLIN)
        self._wanted = 0
        self._pending: socket.socket | None = None
        self._deadline = 0.0

    def serve(self) -> bool:
        """Returns when the relay's end is closed: True, or when the server has ended: False."""
        while True:
            for descriptor, events in self._poll.poll(self._patience_ms()):
                if descriptor == self._ended:
                    return False
                if descriptor == self._output.descriptor:
                    if not self._output.read() and events & select.POLLHUP:
                        self._poll.unregister(descriptor)
                elif descriptor == self._connector.fileno() and not self._hear(events):
                    return True
            try:
                self._settle()
                self._begin()
            except OSError:  # the relay has ended, or does not take what it asked for
                return True

    def _patience_ms(self) -> float | None:
        return max(0.0, self._deadline - time.monotonic()) * 1e3 if self._pending is not None else None

    def _hear(self, events: int) -> bool:
        """False: the relay's end is closed."""
        if events & (select.POLLHUP | select.POLLERR):
            return False
        try:
            data = self._connector.recv(_READ)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._wanted += data.count(CONNECT)
        return bool(data)

    def _begin(self) -> None:
        while self._wanted and self._pending is None:
            self._wanted -= 1
            connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            code = connection.connect_ex((HOST, self._port))
            if code == errno.EINPROGRESS:
                self._pending, self._deadline = connection, time.monotonic() + _CONNECT_SECONDS
                self._poll.register(connection, select.POLLOUT)
            else:
                self._answer(connection, code)

    def _settle(self) -> None:
        connection = self._pending
        if connection is None:
            return
        made = select.select((), (connection,), (), 0)[1]
        if made or time.monotonic() >= self._deadline:
            self._poll.unregister(connection)
            self._pending = None
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if made else errno.ETIMEDOUT
            self._answer(connection, code)

    def _answer(self, connection: socket.socket, code: int) -> None:
        with connection:
            if code == 0:
                connection.setblocking(True)
                socket.send_fds(self._connector, [CONNECTED], [connection.fileno()])
            else:
                self._connector.send(REFUSED)
