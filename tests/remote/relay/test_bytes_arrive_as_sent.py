"""A program's bytes through both relays: all of them, in order, with the ends of both halves, whatever their sizes."""

import contextlib
import hashlib
import os
import random
import secrets
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from links.relayed import ClientRelay, Echo, RelayProcess, Supervisor, Ticket
from run.waiting import until

from gpushare.relay import lines, messages
from gpushare.relay.loop import IN, Loop
from gpushare.relay.wire import Purpose

SLOW = 30.0


class Server:
    """A server whose connections the test has in its hands."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(SLOW)
        self.address = self.listener.getsockname()

    def accept(self) -> socket.socket:
        sock, _ = self.listener.accept()
        sock.settimeout(SLOW)
        return sock


class Path:
    """Program, client relay, relay, server."""

    def __init__(self, relay: RelayProcess, link: str) -> None:
        self.server, self.relay = Server(), relay
        self.ticket = relay.daemon.add(Ticket(secrets.token_hex(8), link), Supervisor(self.server.address))
        self.control = relay.attach(self.ticket)
        self.client = ClientRelay(relay, self.ticket)

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """A connection's both ends."""
        return self.client.connect(), self.server.accept()

    def beats(self, count: int) -> None:
        """Lets so many beats of the relay, of 0.05 s each, go by from now on."""
        self.relay.daemon.send(messages.Notice(self.ticket.grant, "now"))
        self.control.until(lambda line: line.notice)
        for _ in range(count):
            self.control.until(lambda line: line.beat)


@pytest.fixture(params=["tls", "plain"])
def path(relay: RelayProcess, request: pytest.FixtureRequest) -> Iterator[Path]:
    made = Path(relay, request.param)
    with made.client:
        yield made
        made.control.send(lines.FromClient(bye=True))
        relay.daemon.ended(made.ticket)
        made.control.close()
        made.server.listener.close()


def read_all(sock: socket.socket) -> bytes:
    found = bytearray()
    while data := sock.recv(1 << 18):
        found += data
    return bytes(found)


def test_random_sizes_and_directions(path: Path) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    pairs = [path.connect() for _ in range(4)]
    threads, failures = [], []
    sent = 0

    def send(sock: socket.socket, data: bytes, cuts: list[int]) -> None:
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            sock.sendall(data[begin:end])
        sock.shutdown(socket.SHUT_WR)

    def receive(sock: socket.socket, digest: bytes) -> None:
        if hashlib.sha256(read_all(sock)).digest() != digest:
            failures.append("other bytes")

    for pair in pairs:
        for source, sink in (pair, pair[::-1]):
            data = rng.randbytes(int(2 ** rng.uniform(0, 22)))
            cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 3, 200))))
            sent += len(data)
            threads.append(threading.Thread(target=send, args=(source, data, cuts)))
            threads.append(threading.Thread(target=receive, args=(sink, hashlib.sha256(data).digest())))
    rng.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, seed
    until(lambda: len(path.client.spliced) == len(pairs))
    assert not any(splice.broken for splice in path.client.spliced)
    assert sum(splice.there + splice.back for splice in path.client.spliced) == sent
    path.relay.daemon.until(path.ticket, lambda state: state.bytes_in + state.bytes_out == sent)
    path.relay.daemon.until(path.ticket, lambda state: state.connections == 0)
    for pair in pairs:
        for sock in pair:
            sock.close()


@pytest.mark.parametrize("first", ["program", "server"])
def test_one_half_ends_while_the_other_goes_on(path: Path, first: str) -> None:
    ends = path.connect()
    one, other = ends if first == "program" else ends[::-1]
    much = os.urandom(3 << 20)
    sender = threading.Thread(target=other.sendall, args=(much,))
    sender.start()  # it is on its way, and jams, when the end comes
    one.sendall(b"the last words")
    one.shutdown(socket.SHUT_WR)
    assert read_all(other) == b"the last words"
    found = b""
    while len(found) < len(much):
        found += one.recv(1 << 18)
    sender.join()
    assert found == much
    other.sendall(b"and more")  # long after the end of the first half
    other.shutdown(socket.SHUT_WR)
    assert read_all(one) == b"and more"
    for sock in ends:
        sock.close()


@pytest.mark.parametrize("first", ["program", "server"])
def test_a_reset_is_passed_on(path: Path, first: str) -> None:
    ends = path.connect()
    one, other = ends if first == "program" else ends[::-1]
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()
    with pytest.raises(ConnectionResetError):
        read_all(other)
    other.close()


def test_who_does_not_read_stops_the_sender(path: Path) -> None:
    program, server = path.connect()
    before = path.relay.memory_bytes()
    program.setblocking(False)
    piece, sent = bytes(1 << 20), 0

    def jammed() -> bool:
        nonlocal sent
        count = 0
        with contextlib.suppress(BlockingIOError):
            count = program.send(piece)
        sent += count
        assert sent < 200 << 20, "nothing holds it back"
        return count == 0 and stands_still(path, sent)

    until(jammed)
    assert path.relay.memory_bytes() - before < 8 << 20
    before = path.relay.busy_seconds()
    path.beats(20)
    assert path.relay.busy_seconds() - before < 0.1  # it waits, and does not look again and again
    # Others go on meanwhile.
    second = path.connect()
    second[0].sendall(b"hello")
    assert second[1].recv(5) == b"hello"
    # And it goes on when it is read.
    found = 0
    while found < sent:
        found += len(server.recv(1 << 20))
    for sock in (program, server, *second):
        sock.close()


def stands_still(path: Path, sent: int) -> bool:
    """Whether no more goes through the relay."""
    seen = path.relay.daemon.states[path.ticket.id].bytes_in
    path.beats(3)
    drain(path.relay)
    return 0 < path.relay.daemon.states[path.ticket.id].bytes_in == seen < sent


def drain(relay: RelayProcess) -> None:
    relay.daemon.socket.setblocking(False)
    try:
        while True:
            relay.daemon.read()
    except BlockingIOError:
        pass
    relay.daemon.socket.settimeout(SLOW)


def test_a_flood_does_not_starve_others(path: Path) -> None:
    floods = [path.connect() for _ in range(6)]
    stop = threading.Event()

    def flood(sock: socket.socket) -> None:
        piece = bytes(1 << 20)
        while not stop.is_set():
            sock.sendall(piece)

    def swallow(sock: socket.socket) -> None:
        while sock.recv(1 << 20):
            pass

    threads = [threading.Thread(target=flood, args=(program,)) for program, _ in floods]
    threads += [threading.Thread(target=swallow, args=(server,)) for _, server in floods]
    for thread in threads:
        thread.start()
    quiet = path.connect()
    for number in range(50):
        quiet[0].sendall(struct.pack("I", number))
        assert quiet[1].recv(4) == struct.pack("I", number)
    stop.set()
    for thread in threads[: len(floods)]:
        thread.join()
    for program, _ in floods:
        program.shutdown(socket.SHUT_WR)
    for thread in threads[len(floods) :]:
        thread.join()
    for pair in (*floods, quiet):
        for sock in pair:
            sock.close()


@pytest.mark.promise("server-before-ticket")
def test_another_certificate_gets_no_ticket(relay: RelayProcess, echo: Echo) -> None:
    supervisor = Supervisor(echo.address)
    ticket = relay.daemon.add(Ticket("certificate"), supervisor)
    control = relay.attach(ticket)
    with ClientRelay(relay, ticket, secrets.token_bytes(32)) as client:
        program = client.connect()
        assert program.recv(1) == b""
        assert client.refused == ["the relay has another certificate than the node has told"]
        program.close()
    assert supervisor.connections == 0
    control.close()


def test_refused_ticket_is_said(relay: RelayProcess, echo: Echo) -> None:
    for link in ("tls", "plain"):
        ticket = relay.daemon.add(Ticket(f"refused-{link}", link), Supervisor(echo.address))
        with ClientRelay(relay, ticket) as client:
            program = client.connect()
            assert program.recv(1) == b""
            assert client.refused == ["the relay has refused the ticket"]
            program.close()
        relay.daemon.send(messages.End(ticket.grant, "", "released"))


def test_no_relay_there(relay: RelayProcess, echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()
    with relay.through(free), ClientRelay(relay, Ticket("nowhere")) as client:
        program = client.connect()
        assert program.recv(1) == b""
        assert client.refused == ["Connection refused"]
        program.close()


# Link checks.


def check(relay: RelayProcess, ticket: Ticket, kind: int, seconds: float) -> socket.socket:
    sock = relay.use(ticket, Purpose.CHECK)
    sock.sendall(struct.pack("<Bd", kind, seconds))
    return sock


def test_link_check(relay: RelayProcess, echo: Echo) -> None:
    supervisor = Supervisor(echo.address)
    ticket = relay.daemon.add(Ticket("check", "plain"), supervisor)
    control = relay.attach(ticket)
    sock = check(relay, ticket, 1, 1.0)
    for number in range(20):
        sock.sendall(struct.pack("I", number))
        assert sock.recv(4) == struct.pack("I", number)
    sock.close()
    sock = check(relay, ticket, 2, 1.0)
    sock.sendall(bytes(3_000_000))
    sock.shutdown(socket.SHUT_WR)  # or when its time is over:
    assert read_all(sock) == struct.pack("<Q", 3_000_000)
    sock.close()
    sock = check(relay, ticket, 2, 0.05)
    assert read_all(sock) == struct.pack("<Q", 0)
    sock.close()
    sock = check(relay, ticket, 3, 0.05)
    assert len(read_all(sock)) > 100_000
    sock.close()
    for kind, seconds in ((0, 1.0), (4, 1.0), (1, 2.1), (1, -1.0), (1, float("nan")), (1, float("inf"))):
        sock = check(relay, ticket, kind, seconds)
        with pytest.raises(ConnectionResetError):
            assert sock.recv(1)
        sock.close()
    assert supervisor.connections == 0
    state = relay.daemon.states[ticket.id]
    assert (state.bytes_in, state.bytes_out) == (0, 0)
    control.close()


def test_a_defect_costs_one_connection(capsys: pytest.CaptureFixture[str]) -> None:
    loop = Loop()
    one, other = socket.socketpair()
    served = []

    def defect(_: int) -> None:
        raise KeyError("a defect")

    loop.watch(one.fileno(), IN, defect)
    loop.watch(other.fileno(), IN, served.append)
    loop.after(0, lambda: defect(0))
    one.send(b"x")
    other.send(b"x")
    for _ in range(2):
        loop.turn(0)
    assert served == [IN, IN]
    assert capsys.readouterr().err.count("KeyError: ") == 2
    loop.close()
    one.close()
    other.close()


@pytest.mark.slow
def test_who_reads_again_after_long_is_not_lost(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A connection for data may stand still for longer than a silent client is waited for."""
    with RelayProcess(tmp_path_factory.mktemp("relay"), silent=1.0) as relay:
        path = Path(relay, "plain")
        with path.client:  # unused here
            pass
        data = relay.use(path.ticket, Purpose.DATA)
        server = path.server.accept()
        server.setblocking(False)
        sent, piece = 0, bytes(1 << 20)
        for number in range(80):  # beats of 0.05 s
            with contextlib.suppress(BlockingIOError):
                sent += server.send(piece)
            path.control.send(lines.FromClient(beat=number))
            path.control.until(lambda line: line.beat)
        found = 0
        while found < sent:
            found += len(data.recv(1 << 20))
        assert not relay.daemon.states[path.ticket.id].ending
        server.close()
        path.server.listener.close()
