"""Unix sockets that take no descriptors (SCM_RIGHTS).

A descriptor that was sent is closed by whoever reads or closes the socket on which it came, and that takes as long as
its sender likes: a TCP socket with SO_LINGER and unsent data, a file of a server that does not answer.

Where the kernel refuses descriptors at their sender (SO_PASSRIGHTS, Linux 6.16) nothing else is needed. Elsewhere each
message is looked at before it is read, and a socket with descriptors left in it is closed by a child process that
exits: an exiting task does not linger (inet_release() in the kernel), and where it hangs nobody waits for it.
"""

import contextlib
import errno
import queue
import socket
import subprocess
import sys
import threading
import time
from typing import Any

_SO_PASSRIGHTS = 83
_CREDENTIALS_BYTES = socket.CMSG_SPACE(12)  # struct ucred
_READ_BYTES = 1 << 16
_BATCH = 64
_END_SECONDS = 5.0
_RETRY_SECONDS = 0.1


def refuse(bound: socket.socket, *, by_kernel: bool = True) -> socket.socket:
    """Takes over a socket that is bound and does not listen yet. The listener that it returns, and the connections that
    it accepts, never get a descriptor into this process.

    `by_kernel`: False uses the way of older kernels here too, for tests.
    """
    if by_kernel:
        # Before listen(): a connection takes it from the listener when it is made, not when it is accepted.
        with contextlib.suppress(OSError):
            bound.setsockopt(socket.SOL_SOCKET, _SO_PASSRIGHTS, 0)
            return bound
    timeout = bound.gettimeout()
    guarded = GuardedSocket(fileno=bound.detach())
    guarded.settimeout(timeout)
    return guarded


def waiting() -> int:
    """How many sockets still wait for the process that closes them."""
    return _closer.waiting


class GuardedSocket(socket.socket):
    """A listener or connection that takes no descriptors, and whose close does not block."""

    def accept(self) -> tuple["GuardedSocket", Any]:
        """A connection that is guarded too."""
        descriptor, address = self._accept()  # type: ignore[attr-defined]
        connection = GuardedSocket(fileno=descriptor)
        if socket.getdefaulttimeout() is None and self.gettimeout():
            connection.setblocking(True)
        # Otherwise a read drops an out-of-band byte and its descriptors, which MSG_PEEK does not show.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        return connection, address

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Raises ECONNABORTED where descriptors came along."""
        data, _, found, _ = self.recvmsg(size, 0, flags | socket.MSG_PEEK)
        if found & socket.MSG_CTRUNC:
            raise OSError(errno.ECONNABORTED, "the peer sent descriptors, which nothing here takes")
        # No more than was peeked at: later data may have some. At least 1, since 0 would read no message.
        return super().recv(max(1, len(data)), flags) if data else data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0, /) -> int:
        """As recv()."""
        view = memoryview(buffer)
        data = self.recv(size or view.nbytes, flags)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Never blocks."""
        if self.fileno() < 0:
            return
        try:
            empty = self._end_listening() if self._is_listening() else self._read_out()
        except OSError:
            empty = False
        if empty:
            super().close()
            return
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)  # the peer need not wait for the process
        _closer.take(self)

    def close_here(self) -> None:
        """Closes this process's descriptor; for the closer, when another process has it too."""
        super().close()

    def _is_listening(self) -> bool:
        return bool(self.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    def _end_listening(self) -> bool:
        """Closes the connections that were not accepted. Returns whether all are closed."""
        self.setblocking(False)
        self.shutdown(socket.SHUT_RD)  # from now on connect() is refused
        while True:
            try:
                connection, _ = self.accept()
            except OSError as error:
                return error.errno in (errno.EAGAIN, errno.EINVAL)
            connection.close()

    def _read_out(self) -> bool:
        """Reads what is left, up to the first descriptors. Returns whether nothing is left and nothing more can
        come."""
        self.setblocking(False)
        # Credentials distinguish an empty message, which may be followed by one with descriptors, from the end. A
        # stream has no empty messages, and credentials at its end too.
        self.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.shutdown(socket.SHUT_RD)
        while True:
            data, credentials, found, _ = self.recvmsg(_READ_BYTES, _CREDENTIALS_BYTES, socket.MSG_PEEK)
            if found & socket.MSG_CTRUNC:
                return False
            if not data and (self.type == socket.SOCK_STREAM or not credentials):
                return True
            super().recv(max(1, len(data)))


class _Closer:
    """A thread that hands sockets to processes which close them by ending."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[GuardedSocket] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.waiting = 0

    def take(self, one: GuardedSocket) -> None:
        with self._lock:
            self.waiting += 1
            self._queue.put(one)
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="closer", daemon=True)
                with contextlib.suppress(RuntimeError):  # too many tasks: the next one tries again
                    thread.start()
                    self._thread = thread

    def _work(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get())
            while not _closed_by_a_process(batch):
                time.sleep(_RETRY_SECONDS)
            with self._lock:
                self.waiting -= len(batch)


def _closed_by_a_process(sockets: list[GuardedSocket]) -> bool:
    """False where no process could be started."""
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=[one.fileno() for one in sockets],
        )
    except OSError:
        return False
    # The process holds them until its stdin is closed, so none of these closes is the last.
    for one in sockets:
        one.close_here()
    try:
        child.communicate(timeout=_END_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        child.kill()
    return True


_closer = _Closer()
