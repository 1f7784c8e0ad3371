"""HTTP over a unix socket. Apart from gpushare.client because http.client costs every start of the CLI 25 ms."""

import http.client
import os
import socket
from pathlib import Path

ERRORS = (OSError, http.client.HTTPException)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(os.fspath(self._path))
        except BaseException:
            self.close()
            raise


def request(
    path: Path, method: str, target: str, body: bytes | None, timeout: float | None
) -> http.client.HTTPResponse:
    """The answer's head; its body is the caller's to read and close. Raises one of ERRORS."""
    connection = _Connection(path, timeout)
    headers = {"Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, target, body, headers)
        return connection.getresponse()
    except BaseException:
        connection.close()
        raise
