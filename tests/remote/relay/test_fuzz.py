"""Whatever a client sends in its preamble, its lines or its handshake, the relay goes on serving others."""

import random
import secrets
import socket
import ssl

import msgspec
import pytest
from links.relayed import Echo, RelayProcess, Supervisor, Ticket

from gpushare.relay import lines
from gpushare.relay.certificate import client_context
from gpushare.relay.wire import LINE_MAX, PREAMBLE, Preamble, Purpose

ROUNDS = pytest.mark.parametrize("rounds", [60, pytest.param(1500, marks=pytest.mark.slow)])


def mutated(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(4):
            case 0:
                made[at : at + 1] = rng.randbytes(1)
            case 1:
                del made[at : at + rng.randrange(1, 8)]
            case 2:
                made[at:at] = rng.randbytes(rng.randrange(1, 8))
            case 3:
                made[at:at] = made[: rng.randrange(len(made) + 1)]
    return bytes(made)


def pushed(sock: socket.socket, data: bytes) -> None:
    """Sends it all, and waits for the end of the connection."""
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(4096):
            pass
    except OSError:
        pass
    finally:
        sock.close()


@ROUNDS
def test_preambles(relay: RelayProcess, echo: Echo, rounds: int) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    ticket = relay.daemon.add(Ticket(f"fuzz-{seed}", "plain"), Supervisor(echo.address))
    control = relay.attach(ticket)
    good = ticket.preamble(Purpose.DATA).pack()
    for _ in range(rounds):
        data = mutated(rng, good)
        before = echo.connections
        if data[: PREAMBLE.size] == good or data[: PREAMBLE.size] == ticket.preamble(Purpose.CHECK).pack():
            continue
        pushed(relay.connect("plain"), data)
        assert echo.connections == before, (seed, data)
    relay.use(ticket, Purpose.DATA).close()
    control.close()


@ROUNDS
def test_lines_of_control(relay: RelayProcess, echo: Echo, rounds: int) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    supervisor = Supervisor(echo.address)
    keeper = relay.daemon.add(Ticket(f"lines-{seed}"), supervisor)
    kept = relay.attach(keeper)
    good = (
        lines.encode(lines.FromClient(beat=7)),
        b'{"checked":{"checked":"good","rtt_us":1.5,"up_bps":1e9,"down_bps":1e9}}\n',
        b'{"bye":true}\n',
        b"[" * 2000 + b"\n",
        b'{"x":' + b"[" * 4000 + b"\n",
        b'{"beat":' + b"9" * 400 + b"}\n",
        b"x" * (LINE_MAX + 1),
        b"\n" * 5000,
        rng.randbytes(3000),
    )
    for _ in range(rounds):
        ticket = relay.daemon.add(Ticket(keeper.grant, "plain"))
        sock = relay.use(ticket, Purpose.CONTROL)
        line = rng.choice(good)
        pushed(sock, mutated(rng, line) if rng.random() < 0.7 else line)
        assert relay.daemon.ended(ticket).ending == "detached"
    kept.until(lambda line: line.beat)
    kept.close()


@ROUNDS
def test_handshakes(relay: RelayProcess, echo: Echo, rounds: int) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    context = client_context()
    for _ in range(rounds):
        out = ssl.MemoryBIO()
        tls = context.wrap_bio(ssl.MemoryBIO(), out)
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        pushed(relay.connect("plain"), mutated(rng, out.read()))
    ticket = relay.daemon.add(Ticket(f"shakes-{seed}"), Supervisor(echo.address))
    relay.attach(ticket).close()


def test_preamble_is_what_it_packs() -> None:
    for purpose in Purpose:
        made = Preamble(purpose, secrets.token_bytes(16), secrets.token_bytes(32))
        assert Preamble.unpack(made.pack()) == made
        assert len(made.pack()) == PREAMBLE.size == 64
    with pytest.raises(msgspec.DecodeError):
        lines.from_client(b"[]")
