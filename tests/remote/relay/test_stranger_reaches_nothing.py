"""Without the ticket of a living attachment a connection is closed without a byte, and none of its bytes reaches the
carrier's server."""

import contextlib
import secrets
import socket
import ssl
import struct
import time
from pathlib import Path

import pytest
from links.relayed import Controller, Echo, RelayProcess, Supervisor, Ticket
from links.slowlink import SlowLink
from run.waiting import until

from gpushare.relay import limits, messages
from gpushare.relay.certificate import client_context
from gpushare.relay.wire import PREAMBLE, Preamble, Purpose

LINKS = ("tls", "plain")


class Attached:
    """A grant with a living attachment, which the test may use."""

    def __init__(self, relay: RelayProcess, echo: Echo, link: str = "tls") -> None:
        self.relay, self.supervisor = relay, Supervisor(echo.address)
        self.ticket = relay.daemon.add(Ticket(secrets.token_hex(8), link), self.supervisor)
        self.control: Controller | None = None

    def use(self) -> "Attached":
        self.control = self.relay.attach(self.ticket)
        return self

    def end(self) -> None:
        self.relay.daemon.send(messages.End(self.ticket.grant, "", "released"))
        self.relay.daemon.ended(self.ticket)
        if self.control:
            self.control.close()


def wrong_preambles(ticket: Ticket, other: Ticket) -> dict[str, bytes]:
    """Each has one thing wrong with it."""
    good = ticket.preamble(Purpose.DATA).pack()
    packed = PREAMBLE.unpack(good)

    def made(magic: bytes = packed[0], version: int = packed[1], purpose: int = packed[2]) -> bytes:
        return PREAMBLE.pack(magic, version, purpose, *packed[3:])

    bit = 1 << secrets.randbelow(8)
    at = secrets.randbelow(32)
    flipped = bytearray(ticket.secret)
    flipped[at] ^= bit
    return {
        "one bit of the ticket": Preamble(Purpose.DATA, packed[3], bytes(flipped)).pack(),
        "no ticket": Preamble(Purpose.DATA, packed[3], bytes(32)).pack(),
        "another attachment's ticket": Preamble(Purpose.DATA, packed[3], other.secret).pack(),
        "another attachment's id": Preamble(Purpose.DATA, bytes.fromhex(other.id), ticket.secret).pack(),
        "an unknown id": Preamble(Purpose.DATA, secrets.token_bytes(16), ticket.secret).pack(),
        "the ticket's digest": Preamble(Purpose.DATA, packed[3], ticket.add().ticket_sha256).pack(),
        "another version": made(version=2),
        "an unknown purpose": made(purpose=0),
        "another purpose": made(purpose=4),
        "other magic": made(magic=b"gpushar\0"),
        "bytes that have to be zero": good[:12] + b"\1" + good[13:],
        "a second control": ticket.preamble(Purpose.CONTROL).pack(),
    }


@pytest.mark.promise("ticket-first")
@pytest.mark.parametrize("link", LINKS)
def test_no_byte_without_the_ticket(relay: RelayProcess, echo: Echo, link: str) -> None:
    one, other = Attached(relay, echo, link).use(), Attached(relay, echo, link).use()
    before = echo.connections, echo.came
    for what, preamble in wrong_preambles(one.ticket, other.ticket).items():
        assert relay.show(preamble + b"to the server", link) is None, what
    assert (echo.connections, echo.came) == before
    assert one.supervisor.connections == other.supervisor.connections == 0  # nothing was even asked for
    good = relay.use(one.ticket, Purpose.DATA)  # and the right one works after all of that
    good.sendall(b"hello")
    assert good.recv(5) == b"hello"
    good.close()
    one.end()
    other.end()


@pytest.mark.promise("ticket-first")
@pytest.mark.parametrize("link", LINKS)
def test_truncated_ticket(directory: Path, echo: Echo, link: str) -> None:
    with RelayProcess(directory, preamble=1.0) as relay:
        one = Attached(relay, echo, link).use()
        preamble = one.ticket.preamble(Purpose.DATA).pack()
        began = time.monotonic()
        parts = {length: relay.connect(link) for length in (0, 1, 63)}
        for length, sock in parts.items():
            sock.sendall(preamble[:length])
        for sock in parts.values():
            assert quiet_end(sock)
            assert time.monotonic() - began >= 1.0  # it was given its time
        # Byte by byte it comes in time all the same.
        sock = relay.connect(link)
        for at in range(PREAMBLE.size):
            sock.sendall(preamble[at : at + 1])
        assert sock.recv(1) == b"\0"
        sock.close()
        assert one.supervisor.connections == 1
        one.end()


def quiet_end(sock: socket.socket) -> bool:
    """Whether it was closed, and nothing came before."""
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True
    finally:
        sock.close()


@pytest.mark.promise("ticket-first")
def test_before_and_after_its_life(relay: RelayProcess, echo: Echo) -> None:
    one = Attached(relay, echo)
    for purpose in (Purpose.DATA, Purpose.CHECK):  # nothing has control yet
        assert relay.show(one.ticket.preamble(purpose)) is None
    one.use()
    relay.use(one.ticket, Purpose.DATA).close()
    one.end()
    for purpose in Purpose:  # replayed
        assert relay.show(one.ticket.preamble(purpose)) is None
    unused = relay.daemon.add(Ticket(one.ticket.grant), Supervisor(echo.address))
    relay.daemon.send(messages.End(unused.grant, unused.id, "released"))
    relay.daemon.ended(unused)
    assert relay.show(unused.preamble(Purpose.CONTROL)) is None
    # Also once the daemon has noted the end.
    relay.daemon.send(messages.Noted(one.ticket.id))
    assert relay.show(one.ticket.preamble(Purpose.CONTROL)) is None


@pytest.mark.promise("ticket-first")
def test_expired_ticket(directory: Path, echo: Echo) -> None:
    with RelayProcess(directory, first_use=0.2) as relay:
        one = Attached(relay, echo)
        ended = relay.daemon.ended(one.ticket)
        assert ended.ending == "expired" and ended.address == ""
        assert relay.show(one.ticket.preamble(Purpose.CONTROL)) is None
        assert one.supervisor.closed.wait(20)


@pytest.mark.promise("ticket-first")
def test_each_link_is_of_its_kind(relay: RelayProcess, echo: Echo) -> None:
    for kind, other in (LINKS, LINKS[::-1]):
        one = Attached(relay, echo, kind)
        assert relay.show(one.ticket.preamble(Purpose.CONTROL), other) is None
        one.use()
        assert relay.show(one.ticket.preamble(Purpose.DATA), other) is None
        one.end()


def test_garbage(relay: RelayProcess, echo: Echo) -> None:
    before = echo.connections
    garbage = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"g" + secrets.token_bytes(63),
        b"\x16" + secrets.token_bytes(200),
        b"\x16\x03\x01\xff\xff" + secrets.token_bytes(70000),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + secrets.token_bytes(508),
        b"\x15\x03\x03\x00\x02\x01\x00",
        *(secrets.token_bytes(secrets.randbelow(3000) + 1) for _ in range(50)),
    ]
    for each in garbage:
        with relay.connect("plain") as sock:
            try:
                sock.sendall(each)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
            except OSError:
                pass
    assert echo.connections == before
    one = Attached(relay, echo).use()
    one.end()


def test_most_bytes_before_the_ticket(relay: RelayProcess, echo: Echo) -> None:
    one = Attached(relay, echo).use()
    preamble = one.ticket.preamble(Purpose.DATA).pack()
    for names, taken in ((10, True), (200, False)):  # each of 101 bytes, in the first message of the handshake
        context = client_context()
        context.set_alpn_protocols([f"{number:0100}" for number in range(names)])
        came = b""
        with relay.connect("plain") as sock, contextlib.suppress(OSError):
            tls = context.wrap_socket(sock)
            tls.sendall(preamble)
            came = tls.recv(1)
            tls.close()
        assert (came == b"\0") is taken, names
    one.end()


def test_older_tls_is_refused(relay: RelayProcess) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with relay.connect("plain") as sock, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(sock)


@pytest.mark.promise("relay-stays-small")
@pytest.mark.parametrize(
    "kind", ["hello", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("silent", "plain"))]
)
def test_ten_thousand_half_open_connections(relay: RelayProcess, echo: Echo, kind: str) -> None:
    one = Attached(relay, echo).use()
    inside = relay.use(one.ticket, Purpose.DATA)
    hello = client_hello() if kind == "hello" else b"gpushare" if kind == "plain" else b""
    with Crowd(relay) as crowd:
        for number in range(10_000):
            crowd.one_more(number)
            if len(crowd.sockets) > 500:
                crowd.reset_oldest()
            if hello and number >= 50:
                with contextlib.suppress(OSError):  # it was closed for newer ones
                    crowd.sockets[-20].send(hello)
            if number % 1000 == 0:  # who is inside does not notice
                inside.sendall(b"x" * 64)
                assert inside.recv(64) == b"x" * 64
                assert relay.descriptors() < limits.STRANGERS_MAX + 50
        assert relay.memory_bytes() <= 64 << 20
        assert threads(relay) == 1
        relay.use(one.ticket, Purpose.DATA).close()  # who has a ticket comes in
    inside.close()
    one.end()


class Crowd:
    """Connections as from fifty hosts, which need not be through yet."""

    def __init__(self, relay: RelayProcess) -> None:
        self.relay = relay
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self.sockets:
            sock.close()

    def one_more(self, number: int) -> None:
        sock = socket.socket()
        self.sockets.append(sock)
        sock.bind((f"127.0.{number % 50}.2", 0))
        sock.setblocking(False)
        sock.connect_ex(self.relay.address)

    def reset_oldest(self) -> None:
        first = self.sockets.pop(0)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        first.close()


@pytest.mark.promise("relay-stays-small")
@pytest.mark.parametrize("link", LINKS)
def test_no_crowd_pushes_out_who_is_slow_to_show_his_ticket(relay: RelayProcess, echo: Echo, link: str) -> None:
    one = Attached(relay, echo, link).use()
    with socket.create_connection(relay.address, timeout=30) as slow, Crowd(relay) as crowd:
        for number in range(2 * limits.STRANGERS_MAX):
            crowd.one_more(number)
        assert relay.show(b"the last one", "plain") is None  # all before it have been taken
        assert until(lambda: sum(ended(sock) for sock in crowd.sockets) >= limits.STRANGERS_MAX)
        with client_context().wrap_socket(slow) if link == "tls" else slow as sock:
            sock.sendall(one.ticket.preamble(Purpose.DATA).pack())
            assert sock.recv(1) == b"\0"
    one.end()


def client_hello() -> bytes:
    """The first message of a handshake that goes no further."""
    out = ssl.MemoryBIO()
    tls = client_context().wrap_bio(ssl.MemoryBIO(), out)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def threads(relay: RelayProcess) -> int:
    return len(list(Path(f"/proc/{relay.process.pid}/task").iterdir()))


@pytest.mark.promise("relay-stays-small")
def test_one_address_pushes_out_its_own(relay: RelayProcess) -> None:
    patient = relay.connect("plain")  # of 127.0.0.1
    crowd = []
    for _ in range(2 * limits.STRANGERS_OF_ONE_MAX):
        sock = socket.create_connection(relay.address, source_address=("127.0.0.2", 0))
        crowd.append(sock)
    assert until(lambda: sum(ended(sock) for sock in crowd) >= limits.STRANGERS_OF_ONE_MAX)
    assert not ended(patient)
    for sock in (patient, *crowd):
        sock.close()


def ended(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_most_connections_of_an_attachment(relay: RelayProcess, echo: Echo) -> None:
    one = Attached(relay, echo, "plain").use()
    data = [relay.use(one.ticket, Purpose.DATA) for _ in range(limits.DATA_MAX)]
    assert relay.show(one.ticket.preamble(Purpose.DATA), "plain") is None
    relay.daemon.until(one.ticket, lambda state: state.connections == limits.DATA_MAX)
    data.pop().close()
    relay.daemon.until(one.ticket, lambda state: state.connections == limits.DATA_MAX - 1)
    data.append(relay.use(one.ticket, Purpose.DATA))
    for sock in data:
        sock.close()
    one.end()


def test_most_attachments(directory: Path, echo: Echo) -> None:
    with RelayProcess(directory) as relay:
        supervisor = Supervisor(echo.address)
        tickets = [Ticket("g") for _ in range(limits.ATTACHMENTS_MAX + 1)]
        for number, ticket in enumerate(tickets):
            relay.daemon.add(ticket, None if number else supervisor)
        states = relay.daemon.states
        assert not any(states[ticket.id].ending for ticket in tickets[:-1])
        assert states[tickets[-1].id].ending == "relay"


@pytest.mark.promise("ticket-is-told-once")
def test_ticket_is_not_kept(relay: RelayProcess, echo: Echo) -> None:
    one = Attached(relay, echo).use()
    for name in ("cmdline", "environ"):
        assert one.ticket.secret.hex() not in Path(f"/proc/{relay.process.pid}/{name}").read_text()
    open_files = [link.resolve() for link in Path(f"/proc/{relay.process.pid}/fd").iterdir()]
    assert not [file for file in open_files if file.is_file()]
    one.end()


def test_slow_link_can_be_waited_for(relay: RelayProcess, echo: Echo) -> None:
    """A handshake over a slow link is a stranger's for long, and is taken all the same."""
    with SlowLink(relay.address, delay=0.1) as link:
        one = Attached(relay, echo)
        with relay.through(link.address):
            one.use()
        one.end()
