"""`gpushare dashboard` as a process, and raw HTTP requests to it."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

# Changes the user before anything runs, as after `sudo -u`. Imports come first, because the checkout may be in a place
# that only root can read.
_AS_USER = """
import os, sys, pwd, asyncio.subprocess
import gpushare.cli.prices, gpushare.dashboard.main
from gpushare.cli.main import entry
uid = int(sys.argv.pop(1))
if uid:
    os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
entry()
"""


class Dashboard:
    """A process that serves. `url`: as printed by it."""

    def __init__(self, *options: str, uid: int = 0, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AS_USER, str(uid), "dashboard", "--port", "0", *options],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        assert select.select([self.process.stdout], [], [], 30)[0], "no URL within 30 s"
        self.url = self.process.stdout.readline().strip()
        assert self.url, self.process.stderr.read()
        self.base, _, self.token = self.url.partition("#")
        self.port = urlsplit(self.base).port or 0

    def children(self) -> list[int]:
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return list(map(int, file.read().split()))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 20)

    def request(
        self, method: str, path: str, body: Any = None, **headers: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body. `headers`: with _ for -; None omits one. By default the token is sent and, with a
        body, the dashboard's own origin."""
        given: dict[str, str | None] = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            given |= {"Origin": self.base.rstrip("/"), "Content-Type": "application/json"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.putrequest(method, path, skip_host="Host" in given, skip_accept_encoding=True)
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            if data is not None:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    @contextmanager
    def stream(self) -> Iterator[Iterator[Any]]:
        """The messages that a page receives."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", "/api/stream", headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield (json.loads(line[6:]) for line in answer if line.startswith(b"data: "))
        finally:
            connection.close()

    def end(self) -> int:
        """Sends SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(20)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status


@contextmanager
def dashboard(*options: str, uid: int = 0, env: Mapping[str, str] | None = None) -> Iterator[Dashboard]:
    found = Dashboard(*options, uid=uid, env=env)
    try:
        yield found
    finally:
        found.end()


class Told:
    """The latest values that a page has received, by node and section."""

    def __init__(self, messages: Iterator[Any]) -> None:
        self._messages = messages
        self.last: dict[tuple[int, str], Any] = {}

    def until(self, section: str, holds: Callable[[Any], Any] = lambda value: True, node: int = 0) -> Any:
        """Reads messages until `holds` accepts the section's value; returns the value."""
        while (node, section) not in self.last or not holds(self.last[node, section]):
            message = next(self._messages)
            if "node" in message:
                self.last[message["node"], message["section"]] = message["value"]
        return self.last[node, section]

    def away(self, why: str | None, node: int = 0) -> str:
        """Waits until the node is away for a reason with `why` in it (None: until it is back); returns the reason."""
        found = self.until(
            "state", lambda state: why in state["away"] if why and state["away"] else why is state["away"], node
        )
        return str(found["away"])
