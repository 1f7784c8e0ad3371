"""Another machine's side of an attachment, without gpushare: Python's own sockets and TLS, which block. And carriers
that carry nothing: a server that sends back what it gets, and some that do not start."""

import hashlib
import json
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from links.relayed import Controller

from gpushare.relay import lines
from gpushare.relay.wire import TAKEN, Preamble, Purpose

_ECHO = (
    '$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1:$ARGV[0]", Listen => 64) or die; $SIG{CHLD} = "IGNORE";'
    " while (1) { $c = $s->accept or next; next if fork; while (sysread($c, $b, 65536)) { syswrite($c, $b) } exit }"
)
ECHO = ("/usr/bin/perl", "-MIO::Socket::INET", "-e", _ECHO, "{port}")
ENDS = ("/bin/sh", "-c", "echo it has no licence >&2; exit 3", "{port}")
SILENT = ("/bin/sleep", "1000{port}")
_SECONDS = 30.0


def contract(directory: Path, name: str, argv: Sequence[str], version: Sequence[str] = ()) -> None:
    """A carrier of which a node needs no more than its server."""
    said = f"version = {json.dumps(version)}\n" if version else ""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = directory / f"{name}.toml"
    path.write_text(f'name = "{name}"\n[server]\nargv = {json.dumps(argv)}\n{said}')
    path.chmod(0o644)


class Elsewhere:
    """`attached`: the answer to POST .../attachments. In a `with` block its control connection lives."""

    def __init__(self, attached: dict[str, Any], host: str = "127.0.0.1") -> None:
        self._attached, self._host = attached, host
        self.control: Controller | None = None
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        try:
            self.control = Controller(self.open(Purpose.CONTROL))
        except BaseException:  # the relay may be killed meanwhile
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self.control is not None
        try:
            self.control.close()
        finally:
            self._close()

    def _close(self) -> None:
        for connection in self._open:
            connection.close()

    def bye(self) -> None:
        """As a client that ends by itself."""
        assert self.control is not None
        self.control.send(lines.FromClient(bye=True))

    def end(self) -> lines.FromRelay:
        """The relay's last line."""
        assert self.control is not None
        return self.control.until(lambda line: line.end is not None)

    def notice(self) -> str:
        assert self.control is not None
        return str(self.control.until(lambda line: line.notice is not None).notice)

    def open(self, purpose: Purpose = Purpose.DATA) -> socket.socket:
        """A connection that the relay has taken. Raises ConnectionError."""
        relay = self._attached["relay"]
        secure, made = self._attached["link"] == "tls", socket.socket()
        if secure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            # Before it is connected: Python 3.11 leaves one open that is reset between connecting and wrapping.
            made = context.wrap_socket(made)
        try:
            made.settimeout(_SECONDS)
            made.connect((self._host, relay["port"]))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure:
                found = hashlib.sha256(made.getpeercert(binary_form=True)).hexdigest()
                assert found == relay["cert_sha256"]
            ticket = bytes.fromhex(self._attached["ticket"])
            made.sendall(Preamble(purpose, bytes.fromhex(self._attached["id"]), ticket).pack())
            if made.recv(1) != TAKEN:
                raise ConnectionError("refused")
        except BaseException:
            made.close()
            raise
        self._open.append(made)
        return made


def echoes(connection: socket.socket, size: int = 1 << 10) -> bool:
    """Whether bytes come back."""
    sent, came = b"\x5a" * size, b""
    connection.sendall(sent)
    while len(came) < size and (part := connection.recv(1 << 16)):
        came += part
    return came == sent
