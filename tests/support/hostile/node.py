"""Attacks of a member of group gpushare on the node's socket."""

import contextlib
import json
import socket
from collections.abc import Callable
from functools import partial

from hostile.program import Hostile

from gpushare.client import Client
from gpushare.errors import GpushareError

PATHS = (
    "/v1/version", "/v1/node", "/v1/grants", "/v1/grants?ended=1", "/v1/devices", "/v1/tenants", "/v1/events",
    "/v1/events?limit=99999999", "/v1/waits", "/v1/watch", "/metrics", "/openapi.json", "/v1/sim/stats",
    "/v1/grants/..%2f..%2fx", "/v1/grants/%00", "/v1/grants/" + "a" * 5000, "/v1/oci/edit", "/%ff%fe", "*",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "CONNECT", "X" * 100, "g\xebt")
BODIES = (
    b"", b"{", b"null", b"[]", b"{}", b'{"memory":"1GiB","time":"1%"}', b'{"memory":-1,"time":1e999}', b"\xff\xfe",
    b"[" * 50_000, b'{"a":' * 50_000, json.dumps({"memory": "1GiB", "time": "1%", "key": "k" * 100_000}).encode(),
)  # fmt: skip


def connected(hostile: Hostile) -> socket.socket:
    connection = hostile.hold(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    connection.settimeout(0.5)
    connection.connect(str(hostile.socket_path))
    return connection


HEADERS: tuple[list[str], ...] = (
    [], [], ["Transfer-Encoding: chunked"], ["Host: a", "Host: b"], ["X: " + "y" * 9000], ["Expect: 100-continue"],
    ["Upgrade: websocket", "Connection: Upgrade"], ["Content-Encoding: gzip"], [": "], ["a: b\0c"],
)  # fmt: skip


def say(hostile: Hostile) -> bytes:
    """A request, mostly an odd one."""
    pick, body = hostile.random.choice, hostile.random.choice(BODIES)
    length = pick((len(body), len(body), len(body), 0, len(body) + 10, 1 << 40, -1, "x"))
    first = f"{pick(METHODS)} {pick(PATHS)} HTTP/{pick(('1.1', '1.1', '1.0', '2.0', '9'))}"
    lines = [first, f"Content-Length: {length}", *pick(HEADERS), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def odd(hostile: Hostile) -> None:
    connection = connected(hostile)
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        for _ in range(hostile.count(1, 5)):
            connection.sendall(say(hostile))
        if hostile.random.random() < 0.7:
            connection.settimeout(0.05)
            connection.recv(65536)
    if hostile.random.random() < 0.7:
        connection.close()


def half(hostile: Hostile) -> None:
    """Sends incomplete requests; their connections stay open."""
    for _ in range(hostile.count(1, 20)):
        connection, text = connected(hostile), say(hostile)
        connection.sendall(text[: hostile.random.randrange(len(text))])


def silence(hostile: Hostile) -> None:
    for _ in range(hostile.count(1, 40)):
        connected(hostile)


def noise(hostile: Hostile) -> None:
    connection = connected(hostile)
    for _ in range(hostile.count(1, 10)):
        connection.sendall(hostile.random.randbytes(hostile.random.choice((1, 100, 10_000))))


def pipelined(hostile: Hostile) -> None:
    """Sends many requests at once on a connection whose answers nobody reads."""
    connection = connected(hostile)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    connection.settimeout(0.2)
    path = hostile.random.choice(PATHS[:12])
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * hostile.count(20, 200))


def big_body(hostile: Hostile) -> None:
    connection = connected(hostile)
    length = hostile.random.choice((1 << 20, 16 << 20, (16 << 20) + 1, 1 << 30))
    connection.sendall(f"POST /v1/grants HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
    for _ in range(min(length >> 20, 4 * hostile.scale)):
        connection.sendall(bytes(1 << 20))


def watchers(hostile: Hostile) -> None:
    """Watches that never read."""
    for _ in range(hostile.count(1, 10)):
        connection = connected(hostile)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        connection.sendall(b"GET /v1/watch?since=0 HTTP/1.1\r\nHost: x\r\n\r\n")


def churn(hostile: Hostile) -> None:
    """Creates, resizes and releases grants, with odd sizes and keys."""
    client, made = Client(hostile.socket_path), []
    for number in range(hostile.count(3, 20)):
        with contextlib.suppress(GpushareError):
            asked = {"memory": hostile.random.choice(("1GiB", "512MiB", "99999GiB", "-1")), "time": "1%"}
            made.append(client.create(**asked, key=f"{hostile.random.random()}-{number}", ttl_seconds=2)["id"])
    for grant in made:
        with contextlib.suppress(GpushareError):
            client.resize(grant, time=hostile.random.choice(("2%", "1000%", "0%")))
        with contextlib.suppress(GpushareError):
            client.release(grant)


def grab(hostile: Hostile) -> None:
    """Takes all the device time that is left, and releases it at once."""
    client = Client(hostile.socket_path)
    with contextlib.suppress(GpushareError):
        client.release(client.create(memory="8GiB", time="10%", ttl_seconds=1)["id"])


def others(hostile: Hostile) -> None:
    """Tries to use and change root's grants, a tenant and the simulator."""
    client = Client(hostile.socket_path)
    for grant in [one["id"] for one in client.grants() if one["uid"] == 0][:5]:
        calls: tuple[Callable[[], object], ...] = (
            partial(client.release, grant),
            partial(client.resize, grant, time="1%"),
            partial(client.bind, grant, "process"),
            partial(client.debug, grant),
        )
        for call in calls:
            with contextlib.suppress(GpushareError):
                call()
    for change in (lambda: client.set_tenant("x", {"time": "50%"}), lambda: client.set_sim_lost(0, lost=True)):
        with contextlib.suppress(GpushareError):
            change()


def hang_up(hostile: Hostile) -> None:
    while hostile.held:
        hostile.held.pop().close()


MENU: dict[str, Callable[[Hostile], None]] = {
    attack.__name__: attack
    for attack in (odd, half, silence, noise, pipelined, big_body, watchers, churn, grab, others, hang_up)
}
