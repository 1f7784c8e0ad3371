"""A stand-in for the daemon: the test checks its requests and supplies its answers."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare.paths import LIB_DIR

SOURCES = Path(__file__).parents[3] / "hooks"
INCLUDE = Path(__file__).parents[3] / "native"


@pytest.fixture(scope="session")
def programs() -> Path:
    """The directory of gpushare-hook and gpushare-runtime.

    GPUSHARE_HOOKS_DIR selects another build of them, such as one with sanitizers.
    """
    return Path(os.environ.get("GPUSHARE_HOOKS_DIR", LIB_DIR))


@dataclass
class Request:
    target: str
    body: bytes


@dataclass
class FakeDaemon:
    """Answers each request with `answer(request)` -> (status, JSON value) or raw bytes; None: no answer until
    closed."""

    path: Path
    answer: Callable[[Request], tuple[int, object] | bytes | None] = lambda _: (200, {})
    requests: list[Request] = field(default_factory=list)
    _closing: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.path))
        self._server.listen(8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection:
                self._one(connection)

    def _one(self, connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
        while len(body) < length:
            piece = connection.recv(65536)
            if not piece:
                return
            body += piece
        request = Request(lines[0].split()[1], body)
        self.requests.append(request)
        answer = self.answer(request)
        if answer is None:
            self._closing.wait()
            return
        if isinstance(answer, tuple):
            text = json.dumps(answer[1]).encode()
            answer = f"HTTP/1.1 {answer[0]} X\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text
        try:
            connection.sendall(answer)
        except BrokenPipeError:
            return


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(tmp_path / "node.sock")
    yield fake
    fake.close()


@pytest.fixture
def foreign_socket(tmp_path: Path) -> Iterator[Path]:
    """A listening socket of an unprivileged user."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    path = tmp_path / "foreign.sock"
    code = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.seteuid(65534); s.listen(8)\n"
        "print('up', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield path
        process.kill()
