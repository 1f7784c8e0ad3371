"""The node's relay, as the program's machine reaches it."""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpushare.errors import FailedError, UnreachableError
from gpushare.relay.certificate import client_context
from gpushare.relay.wire import Preamble, Purpose
from gpushare.remote.reach import Node

_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Far:
    """`address`: of IP, and port. `context`: None where there is no TLS. `cert_sha256`: 32 bytes. `attachment`: 16
    bytes; `ticket`: 32."""

    node: str
    place: str
    address: tuple[str, int]
    context: ssl.SSLContext | None
    cert_sha256: bytes
    attachment: bytes
    ticket: bytes = field(repr=False)

    @classmethod
    def of(cls, node: Node, answer: Mapping[str, Any]) -> "Far":
        """`answer`: an Attached in JSON. Raises UnreachableError, and FailedError for an answer that is none."""
        try:
            told = answer["relay"]
            host, port = node.relay_address(told["host"], told["port"])
            fingerprint, ident = bytes.fromhex(told["cert_sha256"]), bytes.fromhex(answer["id"])
            ticket, context = bytes.fromhex(answer["ticket"]), client_context() if answer["link"] == "tls" else None
        except (LookupError, TypeError, ValueError):
            raise FailedError(f"{node.name} answers what this version cannot read: are both of the same?") from None
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return cls(node.name, place, _found(node.name, host, port), context, fingerprint, ident, ticket)

    def preamble(self, purpose: Purpose) -> Preamble:
        """What a connection begins with."""
        return Preamble(purpose, self.attachment, self.ticket)

    def unreachable(self, why: str) -> UnreachableError:
        """The error for a connection that fails."""
        return UnreachableError(
            f"the relay of {self.node} cannot be reached at {self.place}: {why}. Is that port open to this"
            ' machine? If it has another address: relay = "HOST:PORT" in nodes.toml'
        )


def _found(node: str, host: str, port: int) -> tuple[str, int]:
    """The address of a host; of several, the first that answers."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UnreachableError(f"the relay of {node} cannot be reached: {host}: {why}") from None
    addresses = [(str(address[0]), port) for *_, address in found]
    for address in addresses[:-1]:
        try:
            socket.create_connection(address, _CONNECT_SECONDS).close()
        except OSError:
            continue
        return address
    return addresses[-1]
