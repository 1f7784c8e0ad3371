"""Remote grants: whether programs of other machines get in here, and what this machine has for those that go elsewhere.

Nothing is said where neither is set up.
"""

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpushare.carriers import files
from gpushare.client import Client
from gpushare.doctor.finding import Check, Finding
from gpushare.errors import GpushareError

_WHAT = "remote grants"
NO_OPENSSL = Check(
    _WHAT,
    "missing",
    "no openssl: the relay cannot make its certificate",
    "install it (Debian: apt install openssl): without it the relay does not start, also for --link plain",
    "Programs of other machines connect to the relay by TLS, with a certificate that it makes when it starts.",
)
NO_RELAY = Check(
    _WHAT,
    "wrong",
    "the relay does not serve: {reason}",
    "mend that: the daemon starts it again each second; its log says more",
    "The configuration says where programs of other machines may connect, and nothing listens there.",
)
CLOSED = Check(
    _WHAT,
    "wrong",
    "nothing answers at {address}, where the relay listens: {reason}",
    "look at the firewall of this machine (nft list ruleset), also for its own loopback",
    "Whether others reach it, only they can say: `gpushare remote check NODE` there.",
)
NO_SERVER = Check(
    _WHAT,
    "note",
    "the relay listens at port {port}, and there is no carrier with a server in {directories}",
    "install a carrier and write its file, docs/reference/carriers.md",
    "gpushare ships none of the software that carries calls of CUDA over a network.",
)
CARRIER = Check(
    "carrier {name}",
    "wrong",
    "{trouble}",
    "mend its file or what it names: docs/reference/carriers.md",
    "No grant can be used over it from this machine, or on this node.",
)
NO_SSH = Check(
    _WHAT,
    "note",
    "no ssh, by which nodes are asked for grants",
    "install it (Debian: apt install openssh-client)",
    "This machine has a carrier's client libraries. A node on it (unix:PATH) needs no ssh.",
)

_CONNECT_SECONDS = 2.0
_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp


def look(daemon: Client | None) -> Iterator[Finding]:
    """Yields findings about both sides. `daemon`: None where none answers."""
    if daemon is not None:
        try:
            yield from _served(daemon.remote())
        except GpushareError as error:
            yield NO_RELAY(reason=error)
    yield from _used()


def _served(remote: Any) -> Iterator[Finding]:
    relay = remote["relay"]
    if not remote["attachments_max"]:
        return  # they are off
    if shutil.which("openssl") is None:
        yield NO_OPENSSL()
    if relay is None:
        yield NO_RELAY(reason=remote["reason"])
        return
    living = [one for one in remote["attachments"] if one["ended_ns"] is None]
    yield Finding(
        _WHAT,
        "ok",
        f"the relay listens at port {relay['port']}, {len(living)} of at most {remote['attachments_max']} attachments",
    )
    if trouble := _unreachable(relay["port"]):
        address, reason = trouble
        yield CLOSED(address=address, reason=reason)
    if not remote["carriers"]:
        yield NO_SERVER(port=relay["port"], directories=" or ".join(map(str, files.DIRECTORIES)))
    for carrier in remote["carriers"]:
        if carrier["trouble"]:
            yield CARRIER(name=carrier["name"], trouble=carrier["trouble"])
        else:
            yield Finding(f"carrier {carrier['name']}", "ok", f"server, {carrier['version'] or 'without a version'}")


def _used() -> Iterator[Finding]:
    clients = False
    for name in files.names():
        try:
            contract = files.load(name)
            if contract.client is None:
                continue
            files.libraries(name, contract.client)
            version = files.client_version(contract)
        except GpushareError as error:
            yield CARRIER(name=name, trouble=error)
            continue
        clients = True
        yield Finding(f"carrier {name}", "ok", f"client libraries, {version or 'without a version'}")
    if clients and shutil.which("ssh") is None:
        yield NO_SSH()


def _unreachable(port: int) -> tuple[str, str] | None:
    """Where nothing answers although a process listens there, and why."""
    for kind, host in _listeners(port):
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.settimeout(_CONNECT_SECONDS)
            try:
                probe.connect((host, port))
            except OSError as error:
                return f"{host} port {port}", error.strerror or str(error)
            return None
    return f"port {port}", "no process listens"


def _listeners(port: int) -> Iterator[tuple[socket.AddressFamily, str]]:
    """Addresses of this machine at which a process listens on the port."""
    for name, kind in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                address, _, number = local.partition(":")
                if state == _LISTENS and int(number, 16) == port:
                    yield kind, _host(address, kind)


def _host(words: str, kind: socket.AddressFamily) -> str:
    """The address of /proc/net/tcp, in words of the machine's own byte order; loopback for any."""
    data = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    if not any(data):
        return "127.0.0.1" if kind == socket.AF_INET else "::1"
    return socket.inet_ntop(kind, data)
