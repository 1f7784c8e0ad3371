"""A carrier's server tries to reach others, and others try to reach it."""

import errno
import itertools
import secrets
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from remote.sandboxes import Sandbox, Server
from run.running import Daemon

pytestmark = pytest.mark.promise("server-sees-loopback-only")


def _listening(address: str = "127.0.0.1") -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    listener.bind((address, 0))
    listener.listen()
    return listener


def _addresses() -> list[str]:
    """Of the node, in IPv4."""
    found = {"127.0.0.1"}
    lines = Path("/proc/net/fib_trie").read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        if "/32 host LOCAL" in line:
            found.add(before.split()[-1])
    return sorted(found)


def test_the_nodes_addresses(hostile: Server) -> None:
    for address in _addresses():
        with closing(_listening(address)) as listener:
            error = hostile.error("tcp", address, listener.getsockname()[1])
            assert error in (errno.ECONNREFUSED, errno.ENETUNREACH), address
            listener.settimeout(0)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_the_network(hostile: Server) -> None:
    assert hostile.error("tcp", "192.0.2.1", 80) == errno.ENETUNREACH
    assert hostile.error("tcp", "2001:db8::1", 80) == errno.ENETUNREACH
    assert hostile.ask("list", "/sys/class/net").split() == ["lo"]
    fields = hostile.ask("read", "/proc/net/dev").replace("|", " ").split()
    assert [name for name in fields if name.endswith(":")] == ["lo:"]


@pytest.mark.parametrize("family", [socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET, socket.AF_CAN])
def test_families_that_no_namespace_keeps_apart(hostile: Server, family: int) -> None:
    assert hostile.error("family", int(family)) == errno.EAFNOSUPPORT


def test_raw_sockets(hostile: Server) -> None:
    assert hostile.error("raw") == errno.EPERM


def test_an_abstract_socket_of_the_host(hostile: Server) -> None:
    name = f"gpushare-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        assert hostile.error("unix", f"@{name}") == errno.ECONNREFUSED


def test_sockets_with_a_path(hostile: Server, daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> None:
    daemon.layout.socket.chmod(0o666)
    assert hostile.error("unix", daemon.layout.socket) == errno.ENOENT
    assert hostile.error("unix", "/run/gpushare/node.sock") == errno.ENOENT
    path = tmp_path_factory.mktemp("s") / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen()
        assert hostile.error("unix", path) == errno.ENOENT
    # Its own grant's is there, or its programs could not join: another type of socket, so the answer is no refusal.
    assert hostile.error("unix", "/run/gpushare/own/grant.sock") == errno.EPROTOTYPE


def test_another_grants_server(sandbox: Sandbox, hostile: Server, bound: dict[str, Any]) -> None:
    other = sandbox.hostile(bound, port=7500)
    try:
        assert hostile.error("tcp", "127.0.0.1", 7500) == errno.ECONNREFUSED
        assert other.error("tcp", "127.0.0.1", hostile.port) == errno.ECONNREFUSED
        assert other.error("tcp", "127.0.0.1", 7500) == 0
    finally:
        other.hang_up()


def test_it_is_found_at_no_address_of_the_node(hostile: Server) -> None:
    for address in _addresses():
        with socket.socket() as scanner:
            scanner.settimeout(10)
            with pytest.raises(OSError, match="refused"):
                scanner.connect((address, hostile.port))
    for table in ("tcp", "tcp6", "udp", "udp6", "unix"):
        rows = [line.split() for line in Path("/proc/net", table).read_text().splitlines()[1:]]
        assert not [row for row in rows if table != "unix" and row[7] == str(hostile.uid)]


def test_a_process_of_another_user_is_no_relay(hostile: Server) -> None:
    # The connector is the only way in: it has no name by which anybody else could find it.
    local = hostile.connector.getsockname(), hostile.connector.getpeername()
    assert local in [("", ""), (b"", b"")]
