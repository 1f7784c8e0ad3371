"""The slow link of the tests is as slow as it says, and hides what it should hide."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from links.relayed import Echo
from links.slowlink import SlowLink
from run.waiting import until


@pytest.fixture(scope="module")
def link(echo: Echo) -> Iterator[SlowLink]:
    with SlowLink(echo.address) as made:
        yield made


def trip(sock: socket.socket, size: int = 64) -> float:
    """Seconds until as many bytes are back."""
    began = time.monotonic()
    sender = threading.Thread(target=sock.sendall, args=(bytes(size),))
    sender.start()
    while size > 0:
        size -= len(sock.recv(1 << 18))
    sender.join()
    return time.monotonic() - began


def connected(link: SlowLink) -> socket.socket:
    return socket.create_connection(link.address, timeout=30)


def test_delay_and_rate(link: SlowLink) -> None:
    with connected(link) as sock:
        without = min(trip(sock) for _ in range(20))
        link.delay(0.004)
        assert min(trip(sock) for _ in range(5)) >= 0.008 > without
        link.delay(0)
        link.rate(80e6)
        assert trip(sock, 1 << 20) >= 0.1
        link.rate(0)
        assert min(trip(sock) for _ in range(20)) < 0.008


def test_cut_link_keeps_everything(link: SlowLink) -> None:
    with connected(link) as sock:
        trip(sock)
        link.cut()
        sock.sendall(b"held")
        with connected(link) as later:
            later.sendall(b"too")
            for end in (sock, later):
                end.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    end.recv(1)
                end.settimeout(30)
            link.mend()
            assert sock.recv(4) == b"held" and later.recv(3) == b"too"


def test_half_open_link_hides_an_end(link: SlowLink, echo: Echo) -> None:
    with SlowLink(echo.address) as other:
        before = echo.connections
        gone = connected(other)
        trip(gone)
        assert echo.connections == before + 1
        other.half_open()
        gone.close()
        with connected(other) as sock:
            trip(sock)
            assert other.connections() == 2  # the server has not been told
    with connected(link) as sock:
        trip(sock)
    until(lambda: link.connections() == 0)
