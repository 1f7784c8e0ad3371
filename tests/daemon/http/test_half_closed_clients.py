"""Clients that close their sending half after the request, as socat and `nc -N` do, and clients that are gone."""

import json
import re
import signal
import socket

import pytest
from run.waiting import until

from gpushare.daemon.http import reception

SHARE = json.dumps({"memory": "1GiB", "time": "10%"}).encode()


def request(method, target, body=b"", *headers, length=None):
    lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


@pytest.fixture
def asked(daemon):
    """Sends text, closes the sending half, and returns all that comes until the daemon closes."""

    def ask(*parts):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(daemon.layout.socket))
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
            got = b""
            while more := connection.recv(65536):
                got += more
            return got

    return ask


def statuses(answers):
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d+) ", answers)]


def test_each_request_is_answered_and_then_the_connection_ends(asked, client):
    for _ in range(8):
        assert statuses(asked(request("GET", "/v1/devices"))) == [200]  # without `Connection: close`
    answer = asked(request("POST", "/v1/grants", SHARE))
    assert statuses(answer) == [201]
    client.release(json.loads(answer.partition(b"\r\n\r\n")[2])["id"])
    assert statuses(asked(request("GET", "/v1/nothing"))) == [404]
    several = [request("GET", "/v1/devices"), request("GET", "/v1/nothing"), request("GET", "/v1/node")] * 5
    assert statuses(asked(*several)) == [200, 404, 200] * 5
    assert asked() == b"" and asked(b"GET /v1/devices HT") == b""


def test_a_body_that_does_not_come_is_not_waited_for(asked, client):
    for text in (request("POST", "/v1/grants", SHARE[:-5], length=len(SHARE)), request("POST", "/v1/grants", length=9)):
        answer = asked(text)
        assert statuses(answer) == [400] and b"does not arrive as its header says" in answer
    assert client.grants() == []


def test_a_watch_goes_on_for_one_that_only_listens(daemon, client):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(daemon.layout.socket))
        connection.sendall(request("GET", "/v1/watch"))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        grant = client.create(memory="1GiB", time="10%")["id"]
        got = b""
        while grant.encode() not in got:
            got += connection.recv(65536)
    client.release(grant)


@pytest.mark.parametrize("half", [True, False])
def test_one_that_is_gone_makes_no_grant(daemon, client, half):
    before = client.grants(ended=True)
    daemon.process.send_signal(signal.SIGSTOP)  # the request is not read before its sender has gone
    try:
        for _ in range(8):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(daemon.layout.socket))
                connection.sendall(request("POST", "/v1/grants", SHARE))
                if half:
                    connection.shutdown(socket.SHUT_WR)
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    client.node()  # asked after them: users' calls are served in turn, and root's in order
    until(lambda: client.grants(ended=True) == before, "nothing was made", 5)


def test_connections_of_half_closed_clients_are_given_back(asked, daemon, client):
    for _ in range(reception.USER_CONNECTIONS + 2):
        assert statuses(asked(request("GET", "/v1/version"))) == [200]
