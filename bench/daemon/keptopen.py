"""Concurrent requests to a daemon over connections that stay open, written and read as bytes: a client that takes a
tenth of the daemon's time for the answer."""

import json
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

_END = b"\r\n\r\n"


def request(method: str, target: str, body: Any = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    kind = "" if body is None else "Content-Type: application/json\r\n"
    return f"{method} {target} HTTP/1.1\r\nHost: a\r\n{kind}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Connection:
    """One connection with at most one request under way."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(60)
        self._socket.connect(os.fspath(path))

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        found = b""
        while (end := found.find(_END)) < 0:
            found += self._more()
        head = found[:end].lower()
        at = head.index(b"content-length:") + len(b"content-length:")
        size = int(head[at:].split(b"\r\n", 1)[0])
        parts = [found[end + len(_END) :]]
        left = size - len(parts[0])
        while left > 0:
            parts.append(self._more())
            left -= len(parts[-1])
        return int(head.split(b" ", 2)[1]), b"".join(parts)

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the daemon closed the connection")
        return data

    def close(self) -> None:
        self._socket.close()


class Requests:
    """`width` connections, each of which always has a request under way: the daemon never waits for this client."""

    def __init__(self, path: Path, width: int = 4) -> None:
        self._connections = [Connection(path) for _ in range(width)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    def all(self, wanted: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """The answers, in the order of the requests."""
        waiting: list[Connection] = []
        free = list(self._connections)
        for one in wanted:
            if not free:
                first = waiting.pop(0)
                yield first.receive()
                free.append(first)
            connection = free.pop()
            connection.send(one)
            waiting.append(connection)
        for connection in waiting:
            yield connection.receive()


CREATE = {"tenant": "default", "memory": "1GiB", "time": "0.5%"}


def create(requests: Requests, count: int, **fields: Any) -> list[str]:
    """Creates grants; returns their ids."""
    body = request("POST", "/v1/grants", CREATE | fields)
    found = []
    for status, answer in requests.all(body for _ in range(count)):
        if status != 201:
            raise AssertionError(answer.decode())
        found.append(json.loads(answer)["id"])
    return found


def release(requests: Requests, grants: Iterable[str]) -> None:
    for status, answer in requests.all(request("DELETE", f"/v1/grants/{grant}") for grant in grants):
        if status != 200:
            raise AssertionError(answer.decode())
