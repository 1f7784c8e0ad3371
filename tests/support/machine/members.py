"""Members of the group: code as user nobody in a child that drops root, and raw HTTP on the node socket."""

import contextlib
import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NOBODY = 65534


def open_to_members(path: Path, gid: int = NOBODY) -> None:
    """Lets members of the socket's group connect; user nobody is one by default."""
    os.chown(path, 0, gid)
    path.chmod(0o660)


@contextlib.contextmanager
def opened_to_members(path: Path) -> Iterator[None]:
    """As `open_to_members`, for the `with` block: the daemon may be other tests' too."""
    before = path.stat()
    open_to_members(path)
    try:
        yield
    finally:
        os.chown(path, before.st_uid, before.st_gid)
        path.chmod(before.st_mode & 0o777)


@contextlib.contextmanager
def member(work: Callable[[Callable[[object], None]], object]) -> Iterator[Callable[[], Any]]:
    """Runs `work(tell)` as user nobody in a process that is killed at the end. Yields a function that returns the next
    value passed to `tell`."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work(lambda what: os.write(write, json.dumps(what).encode() + b"\n") and None)
        except BaseException as error:
            os.write(write, json.dumps(f"{type(error).__name__}: {error}").encode() + b"\n")
        finally:
            signal.pause()
            os._exit(0)
    os.close(write)
    try:
        with open(read) as notified:
            yield lambda: json.loads(notified.readline())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def as_nobody(work: Callable[[], object]) -> Any:
    """Runs `work` as user nobody; returns the exception it raised as class name and text, or 'ok'."""

    def done(tell: Callable[[object], None]) -> None:
        work()
        tell("ok")

    with member(done) as notified:
        return notified()


def connect(path: Path, timeout: float = 20) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    # A kernel timeout on a blocking socket: with Python's own timeout, connect fails at once if the backlog is full.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(timeout), 0))
    made.connect(str(path))
    made.settimeout(timeout)
    return made


def answer(connection: socket.socket, *, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one answer; status 0 if the connection ended before its headers."""
    text = b""
    while b"\r\n\r\n" not in text:
        if not (more := connection.recv(1 << 16)):
            return 0, {}, text
        text += more
    head, _, body = text.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while not head_only and len(body) < int(headers.get("content-length", 0)) and (more := connection.recv(1 << 16)):
        body += more
    return int(first.split()[1]), headers, body


def ask(path: Path, text: bytes) -> tuple[int, dict[str, str], bytes]:
    """Sends these bytes on a new connection; returns the answer."""
    with connect(path) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(text)
        return answer(connection, head_only=text.startswith(b"HEAD"))
