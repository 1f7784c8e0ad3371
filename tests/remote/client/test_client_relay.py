"""The relay on the program's machine, against a real relay with an echo server."""

import queue
import socket
import subprocess
import sys
import threading
import time

import pytest
from links.relayed import Echo, RelayProcess, Supervisor, Ticket
from links.slowlink import SlowLink

from gpushare.errors import UnreachableError
from gpushare.relay import certificate, messages
from gpushare.remote import check, control
from gpushare.remote.far import Far
from gpushare.remote.local import HOST, Local

USER = 12346
SECONDS = 30


@pytest.fixture(scope="module")
def relay(tmp_path_factory):
    with RelayProcess(tmp_path_factory.mktemp("relay")) as process:
        yield process


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.close()


class Client:
    """A client relay with what it has said. `ticket`: of its attachment."""

    def __init__(self, relay, ticket, *, address=None, fingerprint=None):
        self.said = queue.Queue()
        self.ticket = ticket
        context = certificate.client_context() if ticket.link == "tls" else None
        sha256 = fingerprint or relay.daemon.here.cert_sha256
        far = Far("gpu1", "there:1", address or relay.address, context, sha256, bytes.fromhex(ticket.id), ticket.secret)
        self.local = Local(far, self.said.put, "programs see the end")

    def __enter__(self):
        self.local.start()
        return self

    def __exit__(self, *_):
        self.local.close()

    def program(self):
        """A connection of a program of this user."""
        return socket.create_connection((HOST, self.local.port), SECONDS)


@pytest.fixture(params=["tls", "plain"])
def attached(request, relay, echo):
    """An attachment to a grant whose server echoes."""
    ticket = relay.daemon.add(Ticket(f"g-{request.param}-{time.time_ns()}", request.param), Supervisor(echo.address))
    with Client(relay, ticket) as client:
        client.local.attach()
        yield client


def echoed(program, data):
    program.sendall(data)
    found = b""
    while len(found) < len(data) and (part := program.recv(1 << 16)):
        found += part
    return found == data


def closed(program):
    """Whether a connection ends without a byte."""
    try:
        return program.recv(1) == b""
    except ConnectionError:
        return True


def test_what_programs_send_goes_to_the_server_and_back(relay, attached, echo):
    with attached.program() as one, attached.program() as two:
        assert echoed(one, b"x" * 1_000_000)
        assert echoed(two, b"y")
        one.shutdown(socket.SHUT_WR)
        assert one.recv(1) == b""
    attached.local.close()
    assert attached.local.moved() == (1_000_001, 1_000_001)
    assert relay.daemon.ended(attached.ticket).ending == "detached"
    assert not attached.local.over.is_set()


def test_it_goes_on_after_a_pause(attached):
    with attached.program() as program:
        assert echoed(program, b"x")
        attached.local.pause()
        program.sendall(b"later")
        attached.local.start()
        assert program.recv(5, socket.MSG_WAITALL) == b"later"


def test_the_link_is_checked_through_both_relays(relay, attached):
    found = check.measure(attached.local.checking)
    assert 0 < found.path.rtt_us < 1e6
    assert found.path.up_bps > 0 and found.path.down_bps > 0
    attached.local.report(found.report())
    told = relay.daemon.until(attached.ticket, lambda state: state.checked)
    assert told.checked == found.kind


AS_ANOTHER = """
import os, socket, struct, sys
os.setgroups([]); os.setresgid(*[int(sys.argv[2])] * 3); os.setresuid(*[int(sys.argv[2])] * 3)
with socket.socket() as program:  # not what imports more: this user may not read that
    program.connect(("127.0.0.1", int(sys.argv[1])))
    program.sendall(b"mine now")
    if sys.argv[3] == "reset":
        program.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if sys.argv[3] != "waits":
        sys.exit(0)
    program.settimeout(30)
    try:
        sys.exit(program.recv(1) != b"")
    except ConnectionError:
        sys.exit(0)
"""


@pytest.mark.promise("client-relay-own-user")
@pytest.mark.parametrize("how", ["waits", "ends", "reset"])
def test_connections_of_other_users_are_refused(attached, echo, how):
    words = [sys.executable, "-c", AS_ANOTHER, str(attached.local.port), str(USER), how]
    if how != "waits":
        attached.local.pause()  # one that nobody has any more is said to be root's
    subprocess.run(words, check=True, timeout=SECONDS)
    if how != "waits":
        attached.local.start()
    with attached.program() as mine:  # taken after the other
        assert echoed(mine, b"x")
    assert (echo.connections, echo.came) == (1, 1)


@pytest.mark.promise("server-before-ticket")
def test_a_relay_with_another_certificate_gets_no_ticket(relay):
    context, _ = certificate.make()
    got = queue.Queue()

    def serve(listener):
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True) as tls:
            try:
                got.put(tls.recv(1000))
            except OSError:
                got.put(b"")

    with socket.create_server((HOST, 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with Client(relay, Ticket("g-x"), address=listener.getsockname()) as client:
            with pytest.raises(UnreachableError, match="another certificate"):
                client.local.attach()
            assert got.get(timeout=SECONDS) == b""


def test_a_ticket_that_has_expired_is_refused(relay, echo):
    ticket = relay.daemon.add(Ticket("g-expired"), Supervisor(echo.address))
    relay.daemon.send(messages.End(ticket.grant, ticket.id, "expired"))
    relay.daemon.ended(ticket)
    with Client(relay, ticket) as client, pytest.raises(UnreachableError, match="refused the ticket"):
        client.local.attach()


def test_a_relay_that_is_not_there_is_named(relay):
    with socket.create_server((HOST, 0)) as listener:
        address = listener.getsockname()
    said = r"relay of gpu1 .* at there:1: Connection refused"
    with Client(relay, Ticket("g-x"), address=address) as client, pytest.raises(UnreachableError, match=said):
        client.local.attach()


def test_a_notice_and_the_end_are_said(relay, attached):
    relay.daemon.send(messages.Notice(attached.ticket.grant, "the node is drained"))
    assert attached.said.get(timeout=SECONDS) == "the node is drained"
    with attached.program() as program:
        assert echoed(program, b"x")
        relay.daemon.send(messages.End(attached.ticket.grant, "", "released", "grant g was released"))
        assert closed(program)
    assert attached.local.over.wait(SECONDS)
    assert attached.said.get(timeout=SECONDS) == "the link to gpu1 is gone: grant g was released: programs see the end"
    with attached.program() as late:
        assert closed(late)


def test_a_link_that_is_cut_is_lost(relay, echo, monkeypatch):
    monkeypatch.setattr(control, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(control, "SILENT_SECONDS", 1.0)
    ticket = relay.daemon.add(Ticket("g-cut"), Supervisor(echo.address))
    with SlowLink(relay.address) as link, Client(relay, ticket, address=link.address) as client:
        client.local.attach()
        with client.program() as program:
            assert echoed(program, b"x")
            link.cut()
            assert client.local.over.wait(SECONDS)
            assert closed(program)
        assert "nothing was heard over it for too long: programs see the end" in client.said.get(timeout=SECONDS)


def test_a_relay_that_is_killed_is_noticed_at_once(tmp_path, echo):
    with RelayProcess(tmp_path) as relay:
        ticket = relay.daemon.add(Ticket("g-killed"), Supervisor(echo.address))
        with Client(relay, ticket) as client:
            client.local.attach()
            with client.program() as program:
                assert echoed(program, b"x")
                relay.process.kill()
                assert closed(program)
            assert client.local.over.wait(SECONDS)
            assert "its connection broke" in client.said.get(timeout=SECONDS)
