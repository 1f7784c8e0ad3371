"""Listeners in the network namespaces of containers."""

import ctypes
import errno
import os
import select
import socket
import threading
from pathlib import Path

from gpushare.errors import FailedError, RefusedError
from gpushare.inject.mounts import check, libc

_CLONE_NEWNET = 0x40000000
_IP_FREEBIND = 15
"""Allows the address of a loopback device that is not up yet."""
_BACKLOG = 128

Identity = tuple[int, int]


class Container:
    """A container's first process, and the network namespace that it is in."""

    def __init__(self, pid: int) -> None:
        """Raises FailedError if it has ended."""
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise FailedError(f"the container's process {pid} has ended: {error.strerror}") from None
        try:
            self._namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            os.close(self.pidfd)
            raise FailedError(f"the container's network namespace cannot be opened: {error.strerror}") from None
        found = os.fstat(self._namespace)
        self.namespace: Identity = (found.st_dev, found.st_ino)
        if ended(self.pidfd):  # and the pid may be another's meanwhile
            self.close()
            raise FailedError(f"the container's process {pid} has ended")

    def close(self) -> None:
        """Closes the descriptors."""
        os.close(self.pidfd)
        os.close(self._namespace)

    def listen(self, port: int) -> socket.socket:
        """Returns a listener on 127.0.0.1 of the namespace. Raises RefusedError where the port is taken there, and
        FailedError."""
        answer: list[socket.socket | OSError] = []
        # A thread of its own: it stays in that namespace until it ends, and nothing else of this process is there.
        thread = threading.Thread(target=lambda: answer.append(_listened(self._namespace, port)))
        thread.start()
        thread.join()
        (found,) = answer
        if isinstance(found, socket.socket):
            return found
        if found.errno == errno.EADDRINUSE:
            raise RefusedError(
                f"port {port} is in use in the container's network, and its programs are to find their GPU "
                "there: start the container's other program on another port"
            )
        raise FailedError(f"nothing can listen in the container's network: {found.strerror}")


def ended(pidfd: int) -> bool:
    """Whether the process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def own() -> Identity:
    """The network namespace of this process."""
    found = Path("/proc/self/ns/net").stat()
    return found.st_dev, found.st_ino


def _listened(namespace: int, port: int) -> socket.socket | OSError:
    listener = None
    try:
        check(libc.setns(namespace, ctypes.c_int(_CLONE_NEWNET)), "the container's network namespace")
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        return error
    listener.setblocking(False)
    return listener
