"""The relay as a real process, with a daemon's, a supervisor's and a client's end written by the test."""

import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpushare.processes import helper
from gpushare.relay import certificate, lines, messages
from gpushare.relay.loop import IN, Loop
from gpushare.relay.opening import Opening
from gpushare.relay.splice import Splice
from gpushare.relay.streams import Plain
from gpushare.relay.wire import TAKEN, Preamble, Purpose
from gpushare.sandbox.connector import CONNECT, CONNECTED, REFUSED

QUICK = {"beat": 0.05, "silent": 30.0, "parting": 0.5}
"""Times of a relay for tests that wait for none of them."""
_SECONDS = 30.0
"""After which a test has failed."""


class Supervisor:
    """A grant's supervisor, whose server is a listener of the test. `connections`: how many it was asked for."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.connector, self._own = socket.socketpair()
        self.server: tuple[str, int] | None = server
        self.connections = 0
        self.closed = threading.Event()
        """The relay has closed its end."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._own, contextlib.suppress(OSError):
            while self._own.recv(1) == CONNECT:
                self.connections += 1
                if self.server is None:
                    self._own.send(REFUSED)
                    continue
                with socket.create_connection(self.server) as made:
                    socket.send_fds(self._own, [CONNECTED], [made.fileno()])
        self.closed.set()

    def end(self) -> None:
        """Ends as one whose server has ended."""
        self._own.shutdown(socket.SHUT_RDWR)


class Echo:
    """A server that sends back what it gets, and ends its half when the client has. `came`: all bytes."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = self.listener.getsockname()
        self.connections = self.came = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            try:
                while data := connection.recv(1 << 18):
                    self.came += len(data)
                    connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self.listener.close()


class Ticket:
    """What a client has of an attachment."""

    def __init__(self, grant: str, link: str = "tls") -> None:
        self.id, self.secret, self.grant, self.link = secrets.token_hex(16), secrets.token_bytes(32), grant, link

    def preamble(self, purpose: Purpose) -> Preamble:
        return Preamble(purpose, bytes.fromhex(self.id), self.secret)

    def add(self) -> messages.Add:
        digest = hashlib.sha256(self.secret).digest()
        return messages.Add(self.id, self.grant, "test", "laptop", 1000, self.link, digest, time.time_ns())


class FakeDaemon:
    """A daemon's end. `states`: the newest of each attachment."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(_SECONDS)
        self.socket.connect(path)
        self.states: dict[str, messages.Is] = {}
        self.here = self.read()
        self.at_first: list[messages.Is] = []
        while isinstance(message := self.read(), messages.Is):
            self.at_first.append(message)

    def read(self) -> messages.FromRelay:
        """The next message. Raises ConnectionError at the end."""
        data = self.socket.recv(messages.MESSAGE_MAX)
        if not data:
            raise ConnectionError("the relay has hung up")
        message = messages.from_relay(data)
        if isinstance(message, messages.Is):
            self.states[message.id] = message
        return message

    def send(self, message: messages.FromDaemon, connector: socket.socket | None = None) -> None:
        socket.send_fds(self.socket, [messages.encode(message)], [connector.fileno()] if connector else [])
        if connector is not None:
            connector.close()

    def until(self, ticket: Ticket, holds: Callable[[messages.Is], object]) -> messages.Is:
        """Reads on until it holds for an attachment."""
        while ticket.id not in self.states or not holds(self.states[ticket.id]):
            self.read()
        return self.states[ticket.id]

    def add(self, ticket: Ticket, supervisor: Supervisor | None = None) -> Ticket:
        """Adds an attachment, and waits until the relay knows it."""
        self.send(ticket.add(), supervisor.connector if supervisor else None)
        self.until(ticket, lambda _: True)
        return ticket

    def ended(self, ticket: Ticket) -> messages.Is:
        """Waits for its end."""
        return self.until(ticket, lambda state: state.ending)

    def close(self) -> None:
        self.socket.close()


class RelayProcess:
    """A relay. `times`: of limits.Times, over QUICK. `prefix`: command that starts it, in place of itself."""

    def __init__(self, directory: Path, *, prefix: Sequence[str] = (), **times: float) -> None:
        self.path = str(directory / "relay.sock")
        self._opened: list[socket.socket] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        command = [*prefix, *helper.command("relay", self.path, "127.0.0.1:0", json.dumps(QUICK | times))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors, cwd="/",
            env=helper.ENVIRONMENT, start_new_session=True, text=True,
        )  # fmt: skip
        said = self.process.stdout.readline().strip()
        assert said == "ready", said
        self.daemon = FakeDaemon(self.path)
        self.address = ("127.0.0.1", self.daemon.here.port)

    def __enter__(self) -> "RelayProcess":
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self.daemon, *self._opened):
            each.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        with self._errors as errors:
            errors.seek(0)
            assert not (said := errors.read().decode()), said

    def memory_bytes(self) -> int:
        """What it holds now (VmRSS), and at most so far (VmHWM), whichever is more."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = dict(line.split(":", 1) for line in status.splitlines())
        return max(int(found[name].split()[0]) for name in ("VmRSS", "VmHWM")) << 10

    def busy_seconds(self) -> float:
        """Processor time that it has taken so far."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0]) / 1e9

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @contextlib.contextmanager
    def through(self, address: tuple[str, int]) -> Iterator[None]:
        """Clients connect there instead, meanwhile."""
        near, self.address = self.address, address
        try:
            yield
        finally:
            self.address = near

    # A client's connections: Python's own TLS, blocking.

    def connect(self, link: str = "tls") -> socket.socket:
        """A connection that has sent nothing of a ticket."""
        sock = socket.create_connection(self.address, timeout=_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._opened.append(sock)
        if link == "tls":
            sock = certificate.client_context().wrap_socket(sock)
            self._opened.append(sock)
        return sock

    def show(self, preamble: Preamble | bytes, link: str = "tls") -> socket.socket | None:
        """A connection that was taken; None: it was closed without a byte."""
        sock = self.connect(link)
        data = preamble if isinstance(preamble, bytes) else preamble.pack()
        try:
            sock.sendall(data)
            answer = sock.recv(1)
        except (ConnectionError, ssl.SSLError):
            answer = b""
        if answer == TAKEN:
            return sock
        assert answer == b"", answer
        sock.close()
        return None

    def use(self, ticket: Ticket, purpose: Purpose) -> socket.socket:
        """A connection that has to be taken."""
        sock = self.show(ticket.preamble(purpose), ticket.link)
        assert sock is not None, "refused"
        return sock

    def attach(self, ticket: Ticket) -> "Controller":
        """The connection for control."""
        return Controller(self.use(ticket, Purpose.CONTROL))


class Controller:
    """A client's end of the connection for control."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._splitter, self._lines = lines.Splitter(), []

    def send(self, line: lines.FromClient | bytes) -> None:
        self.socket.sendall(line if isinstance(line, bytes) else lines.encode(line))

    def until(self, holds: Callable[[lines.FromRelay], object]) -> lines.FromRelay:
        """Reads on until it holds for a line. Raises ConnectionError at the end."""
        while True:
            while not self._lines:
                data = self.socket.recv(4096)
                if not data:
                    raise ConnectionError("the relay has closed the connection")
                self._lines = self._splitter.feed(data)
            line = lines.from_relay(self._lines.pop(0))
            if holds(line):
                return line

    def close(self, reset: bool = False) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class ClientRelay:
    """A client's relay in a thread of the test: what connects to `address` is joined to the node's relay. `spliced`:
    those that have ended; `refused`: why others were not taken."""

    def __init__(self, relay: RelayProcess, ticket: Ticket, cert_sha256: bytes | None = None) -> None:
        self._relay, self._ticket = relay, ticket
        self._fingerprint = cert_sha256 or relay.daemon.here.cert_sha256
        self._context = certificate.client_context() if ticket.link == "tls" else None
        self.loop = Loop()
        self.spliced: list[Splice] = []
        self.refused: list[str] = []
        self._openings: list[Opening] = []
        self._splices: list[Splice] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.address = self._listener.getsockname()
        self.loop.watch(self._listener.fileno(), IN, self._accept)
        self._thread = threading.Thread(target=self.loop.run)

    def __enter__(self) -> "ClientRelay":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.stop()
        self._thread.join()
        for opening in self._openings:
            opening.cancel()
        for splice in self._splices:  # those whose end the thread has not seen
            splice.close()
        self.loop.close()
        self._listener.close()

    def connect(self) -> socket.socket:
        """A program's connection."""
        sock = socket.create_connection(self.address, timeout=_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def _accept(self, _: int) -> None:
        program, _ = self._listener.accept()

        def done(stream: Plain | None, reason: str) -> None:
            if stream is None:
                self.refused.append(reason)
                program.close()
            else:
                self._splices.append(Splice(self.loop, Plain(program), stream, self.spliced.append))

        preamble = self._ticket.preamble(Purpose.DATA)
        opening = Opening(
            self.loop, self._relay.address, self._context, self._fingerprint, preamble, done, seconds=_SECONDS
        )
        self._openings.append(opening)
