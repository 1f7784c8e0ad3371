"""HTTP over a unix socket. Not in blocking.py because importing http.client costs a start of the CLI 25 ms."""

import contextlib
import http.client
import os
import socket
import struct
from pathlib import Path

ERRORS = (OSError, http.client.HTTPException)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if self.timeout is not None:
            # On a blocking socket: with Python's own timeout, connect() fails at once when the listen queue is full.
            seconds, rest = divmod(self.timeout, 1)
            limit = struct.pack("@ll", int(seconds), int(rest * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            self.sock.connect(os.fspath(self._path))
            self.sock.settimeout(self.timeout)
        except BaseException:
            self.close()
            raise


def request(
    path: Path, method: str, target: str, body: bytes | None, timeout: float | None
) -> http.client.HTTPResponse:
    """Sends a request and reads the answer's head; the caller reads and closes the body. `timeout`: seconds or
    None. Raises one of ERRORS."""
    connection = _Connection(path, timeout)
    headers = {"Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # refused before the request was read: the answer has the reason
            connection.request(method, target, body, headers)
        return connection.getresponse()
    except BaseException:
        connection.close()
        raise
