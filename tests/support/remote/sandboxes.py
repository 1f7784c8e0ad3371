"""The daemon's end of a sandbox helper, without the daemon's own: servers in grants of a real daemon, and what is left
of them."""

import contextlib
import itertools
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from run import built
from run.running import Daemon
from run.waiting import until

from gpushare.enforce import server_cgroup
from gpushare.inject.process import merge
from gpushare.node import standins
from gpushare.processes import helper
from gpushare.sandbox import messages
from gpushare.sandbox.connector import CONNECT, CONNECTED

PORT = 7434
PATIENCE = 60.0
_UIDS = 1_950_000_000, 30_000
"""Far from those that the daemon gives."""
_numbers = itertools.count(1)


class NotStartedError(Exception):
    """The sandbox said `Failed`; the text is its reason."""


@dataclass
class Server:
    """A server that listens. `pid`: its supervisor's."""

    number: int
    pid: int
    uid: int
    connector: socket.socket
    port: int
    grant: str | None
    _stream: Any = field(default=None)

    def connect(self) -> socket.socket | None:
        """A connection as the relay gets one; None: refused."""
        self.connector.sendall(CONNECT)
        answer, descriptors, _, _ = socket.recv_fds(self.connector, 1, 1)
        assert (answer == CONNECTED) == bool(descriptors)
        if not descriptors:
            return None
        connection = socket.socket(fileno=descriptors[0])
        connection.settimeout(PATIENCE)
        return connection

    def ask(self, *words: object) -> str:
        """Has the hostile server (tests/remote/sandbox/hostile.c) carry out a command; returns its answer."""
        if self._stream is None:
            connection = self.connect()
            assert connection is not None
            with connection:
                self._stream = connection.makefile("rwb", buffering=0)
        self._stream.write(" ".join(map(str, words)).encode() + b"\n")
        line = self._stream.readline()
        assert line.endswith(b"\n"), f"the server ended at {words}"
        return str(line.decode(errors="replace").rstrip("\n"))

    def error(self, *words: object) -> int:
        """The errno of a command; 0: it was done."""
        return int(self.ask(*words))

    def hang_up(self) -> None:
        """Closes the relay's end."""
        if self._stream is not None:
            self._stream.close()
        self.connector.close()

    def processes(self) -> list[int]:
        """Those that it consists of and has started: all of its uid, and those in its cgroups."""
        found = {pid for tree in server_cgroup.trees() for pid in tree.group(self.pid).pids()}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and entry.stat().st_uid == self.uid:
                    found.add(int(entry.name))
        return sorted(found)

    def main(self) -> int:
        """The pid, outside, of the server itself: the child of its process 1."""
        return child(child(self.pid))

    def gone(self) -> bool:
        """Whether no process and no cgroup is left."""
        return not self.processes() and self.pid not in server_cgroup.existing()


def child(pid: int) -> int:
    """The first child of a process. Raises IndexError: it has none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0])


class Sandbox:
    """A helper process."""

    def __init__(self, node: Daemon, *under: str) -> None:
        """`under`: a command that becomes the helper."""
        self.node = node
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(PATIENCE)
        with theirs:
            self.process = subprocess.Popen(
                [*under, *helper.command("sandbox")], stdin=theirs.fileno(), cwd="/", env=helper.ENVIRONMENT
            )
        self._heard: list[messages.FromSandbox] = []
        self.servers: list[Server] = []

    def send(self, message: messages.FromDaemon, descriptor: int | None = None) -> None:
        socket.send_fds(self._channel, [messages.encode(message)], [] if descriptor is None else [descriptor])

    def hear(self, number: int) -> messages.FromSandbox:
        """The next message about this supervisor. Raises EOFError when the helper has ended."""
        while True:
            for message in self._heard:
                if message.number == number:
                    self._heard.remove(message)
                    return message
            data = self._channel.recv(messages.MESSAGE_MAX)
            if not data:
                raise EOFError
            self._heard.append(messages.from_sandbox(data))

    def begin(self) -> tuple[Server, int]:
        """A supervisor that waits for `Go`, and the other end of its connector's descriptor."""
        number = next(_numbers)
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)
        with theirs:
            self.send(messages.Start(number), theirs.fileno())
        started = self.hear(number)
        if isinstance(started, messages.Failed):
            ours.close()
            raise NotStartedError(started.reason)
        assert isinstance(started, messages.Started)
        server = Server(number, started.pid, _UIDS[0] + secrets.randbelow(_UIDS[1]), ours, PORT, None)
        self.servers.append(server)
        return server, started.pid

    def go(self, server: Server, bound: dict[str, Any], *words: str, **options: Any) -> None:
        """Lets it start the server. `bound`: what the daemon has answered to the bind of its grant."""
        env = merge({"PATH": os.defpath, **options.pop("env", {})}, bound["env"])
        chosen = standins.chosen(self.node.layout.sim)
        devices = [one.path for one in standins.of(chosen, 1)] if chosen is not None else []
        asked = {
            "seconds": PATIENCE,
            "host_memory": 64 << 20,
            "pids": 64,
            "devices": devices,
            "uid": server.uid,
            "port": PORT,
            **options,
        }
        server.port = asked["port"]
        fixed = {"grant_dir": bound["dir"], "node_socket": str(self.node.layout.socket)}
        self.send(messages.Go(number=server.number, argv=list(words), env=env, **fixed, **asked))

    def start(self, bound: dict[str, Any] | None, *words: str, **options: Any) -> Server:
        """A server that listens, in a grant that is bound already, or in one of its own (None). Raises
        NotStartedError."""
        server, pid = self.begin()
        if bound is None:
            grant = self.node.client.create(memory="1GiB", time="10%")
            server.grant = grant["id"]
            bound = self.node.client.bind(grant["id"], "process", pid=pid)
        self.go(server, bound, *words, **options)
        return self.ready(server)

    def ready(self, server: Server) -> Server:
        answer = self.hear(server.number)
        if isinstance(answer, messages.Failed):
            server.hang_up()
            raise NotStartedError(answer.reason)
        assert isinstance(answer, messages.Ready)
        return server

    def hostile(self, bound: dict[str, Any] | None, **options: Any) -> Server:
        return self.start(bound, str(built.program("hostile")), str(options.get("port", PORT)), **options)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._channel.close()

    def close(self) -> None:
        """Ends the helper as the daemon does, and all servers."""
        self._channel.close()
        self.process.wait(PATIENCE)
        for server in self.servers:
            server.hang_up()
        self.servers.clear()


@contextlib.contextmanager
def sandbox(node: Daemon) -> Iterator[Sandbox]:
    """A helper; at the end nothing may be left of it."""
    made = Sandbox(node)
    try:
        yield made
    finally:
        servers = list(made.servers)
        made.close()
        until(lambda: not [one for one in servers if one.processes()], "the servers end", PATIENCE)
    with contextlib.closing(Sandbox(node)):  # removes what the other has left, as the next daemon's does
        until(lambda: all(one.gone() for one in servers), "the cgroups are removed", PATIENCE)


@contextlib.contextmanager
def bound_grant(node: Daemon) -> Iterator[dict[str, Any]]:
    """A grant that is bound to another process: for servers that need no device, without the time that a bind takes."""
    with subprocess.Popen(["sleep", "infinity"]) as other:
        grant = node.client.create(memory="1GiB", time="10%")
        try:
            yield dict(node.client.bind(grant["id"], "process", pid=other.pid))
        finally:
            other.kill()
