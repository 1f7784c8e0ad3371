"""The node socket under a malicious member of the group: connections, partial requests, bodies, descriptors."""

import contextlib
import os
import resource
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from machine.members import answer, ask, connect, member, open_to_members
from run.waiting import until

from gpushare.client import Client
from gpushare.daemon.http import reception
from gpushare.daemon.http.api import LARGE_AT_ONCE
from gpushare.daemon.http.route import BODY_MAX, CONFIG_MAX
from gpushare.daemon.http.routes import ROUTES
from gpushare.errors import UnreachableError

MIB = 1 << 20
VERSION = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def public(daemon):
    before = daemon.layout.socket.stat()
    open_to_members(daemon.layout.socket)
    yield daemon
    if daemon.layout.socket.exists():
        os.chown(daemon.layout.socket, before.st_uid, before.st_gid)
        daemon.layout.socket.chmod(before.st_mode & 0o777)


def status(pid, field):
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.promise("members-block-nobody")
def test_a_user_has_a_bounded_number_of_connections(public):
    path = public.layout.socket
    before = public.log.read_text()

    def take_all(tell):
        held = [connect(path) for _ in range(reception.USER_CONNECTIONS)]
        for one in held:
            one.sendall(VERSION[:20])
        tell([ask(path, VERSION)[0] for _ in range(20)])
        try:
            Client(path).version()
        except UnreachableError as error:
            tell(str(error))

    with member(take_all) as notified:
        assert notified() == [503] * 20
        assert f"{reception.USER_CONNECTIONS} connections" in notified()
        assert public.client.version()  # root is served

    def served(tell):
        until(lambda: ask(path, VERSION)[0] == 200, "served")
        tell("served")

    with member(served) as notified:
        assert notified() == "served"
    lines = public.log.read_text()[len(before) :].splitlines()
    assert len(lines) <= 1, lines


@pytest.mark.promise("stalled-requests-end")
def test_halves_of_requests_end(make_daemon):
    daemon = make_daemon().quicken(idle=0.3, body=0.3, linger=0.1).start()
    path = daemon.layout.socket
    with connect(path) as nothing, connect(path) as half, connect(path) as drip, connect(path) as body:
        half.sendall(VERSION[:-2])
        body.sendall(b"POST /v1/grants HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        drip.sendall(b"GET ")
        drip.setblocking(False)

        def ended():
            with contextlib.suppress(BlockingIOError):
                return not drip.recv(1)
            drip.send(b"x")
            return False

        def dripped():
            try:
                return ended()
            except OSError:
                return True

        until(dripped, "header bytes one by one end")
        assert (nothing.recv(1), half.recv(1)) == (b"", b"")
        found, _, text = answer(body)
        assert found == 400
        assert b"did not arrive" in text
        assert body.recv(1) == b""


def test_without_descriptors_it_waits_and_root_gets_in(make_daemon):
    daemon = make_daemon().start()
    open_to_members(daemon.layout.socket)
    pid, path = daemon.process.pid, daemon.layout.socket
    before = daemon.log.read_text()
    limit = len(os.listdir(f"/proc/{pid}/fd")) + 10
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.ExitStack() as held:

        def member_is_refused():
            with member(lambda tell: tell(ask(path, VERSION)[0])) as notified:
                return notified() == 503

        # Root's connections are not limited: they use up all descriptors but the reserve.
        while not member_is_refused():
            held.enter_context(connect(path)).sendall(VERSION)
        assert daemon.client.version()
        assert ask(path, VERSION)[0] == 200
        # Beyond the reserve no connection is accepted, and the loop must not spin.
        waiting = [held.enter_context(connect(path)) for _ in range(30)]
        until(lambda: "takes no connections" in daemon.log.read_text(), "the pause")
        started, used = time.monotonic(), processor_seconds(pid)
        until(lambda: time.monotonic() - started > 0.5, "half a second")
        assert processor_seconds(pid) - used < 0.25 * (time.monotonic() - started) + 0.05
        # What fails every second for each device is logged in one line, once.
        until(lambda: "device 1 is not audited" in daemon.log.read_text(), "the audit met it")
        lines = daemon.log.read_text()[len(before) :].splitlines()
        assert len(lines) <= 5, lines
        assert len(set(lines)) == len(lines)
        del waiting
    until(daemon.answers, "it serves again")


@pytest.mark.promise("requests-take-little-memory")
def test_large_bodies_are_few_and_their_memory_is_returned(make_daemon):
    daemon = make_daemon().start()
    path, pid = daemon.layout.socket, daemon.process.pid
    before = status(pid, "VmRSS")
    body = b'{"bundle":"/x","config":"' + b"x" * (CONFIG_MAX - 100) + b'"}'
    text = b"POST /v1/oci/edit HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    count = 5
    with ThreadPoolExecutor(count) as pool:
        found = [code for code, _, _ in pool.map(ask, [path] * count, [text] * count)]
    assert found == [400] * count
    assert status(pid, "VmHWM") - before < 16 * LARGE_AT_ONCE * CONFIG_MAX
    until(lambda: status(pid, "VmRSS") - before < CONFIG_MAX, "the memory is returned")


def test_bodies_of_members_are_small_and_those_for_root_are_not_read(public):
    path, pid = public.layout.socket, public.process.pid
    before = status(pid, "VmHWM")

    def send(tell):
        body = b" " * (4 * MIB)
        for target in (b"/v1/oci/edit", b"/v1/grants"):
            head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (target, len(body))
            tell([ask(path, head + body)[0] for _ in range(10)])

    with member(send) as notified:
        assert notified() == [403] * 10
        assert notified() == [400] * 10
    assert status(pid, "VmHWM") - before < 4 * MIB
    assert BODY_MAX < MIB


def test_an_answer_that_nobody_reads_ends_the_connection(make_daemon):
    daemon = make_daemon().quicken(send=0.3).start()
    path, pid = daemon.layout.socket, daemon.process.pid
    before = status(pid, "VmRSS")
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(connect(path)) for _ in range(20)]
        for one in held:
            one.setblocking(False)
        until(lambda: sum(not ended(one, asked) for one in held) == 0, "they are dropped", 60)
        assert status(pid, "VmRSS") - before < 40 * MIB
    assert daemon.client.version()


def ended(one, text):
    try:
        one.send(text)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


@pytest.mark.promise("stalled-requests-end")
@pytest.mark.slow
def test_a_watcher_that_does_not_read_is_dropped(make_daemon):
    daemon = make_daemon().quicken(send=0.3).start()
    with connect(daemon.layout.socket) as watcher:
        watcher.sendall(b"GET /v1/watch HTTP/1.1\r\nHost: x\r\n\r\n")

        def dropped():
            daemon.client.release(daemon.client.create(memory="1GiB", time="1%")["id"])
            return ended(watcher, b"x")

        until(dropped, "dropped", 100)
    assert daemon.client.version()


@pytest.mark.promise("descriptors-block-nothing")
@pytest.mark.parametrize("by_kernel", [True, False])
def test_descriptors_do_not_reach_the_loop(make_daemon, by_kernel):
    way = ("from gpushare.daemon.http import reception", f"reception.REFUSED_BY_KERNEL = {by_kernel}")
    daemon = make_daemon().patch(*way).start()
    open_to_members(daemon.layout.socket)
    path, pid = daemon.layout.socket, daemon.process.pid
    before = len(os.listdir(f"/proc/{pid}/fd"))

    def send(tell):
        for text in (VERSION, VERSION[:9], b"x"):
            with socket.create_server(("127.0.0.1", 0)) as server:
                slow = socket.create_connection(server.getsockname())
                reader, _ = server.accept()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 900))
            slow.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    slow.send(bytes(MIB))
            with connect(path) as one:
                try:
                    socket.send_fds(one, [text], [slow.fileno()])
                except PermissionError:  # refused: the socket is this process's alone again
                    slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            slow.close()
            reader.detach()  # kept open, but never read
        tell("sent")

    with member(send) as notified:
        assert notified() == "sent"
        assert daemon.client.version()
        until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= before + 1, "nothing stays")


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PATCH", "BREW", "get"])
def test_a_method_that_a_path_does_not_have(daemon, method):
    found, headers, _ = ask(daemon.layout.socket, f"{method} /v1/node HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (found, headers["allow"]) == (405, "GET")


def test_allow_names_all_methods_of_a_path(daemon):
    for path in ("/v1/grants/{id}", "/v1/tenants/{name}"):
        wanted = {route.method for route in ROUTES if route.path == path}
        target = path.replace("{", "").replace("}", "")
        _, headers, _ = ask(daemon.layout.socket, f"OPTIONS {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert set(headers["allow"].split(", ")) == wanted


def post(target, body, *lines):
    head = [b"POST " + target + b" HTTP/1.1", b"Content-Length: %d" % len(body), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@pytest.mark.promise("invalid-requests-answered")
@pytest.mark.parametrize(
    "text",
    [
        b"GET /v1/\xff HTTP/1.1\r\n\r\n",
        b"GET /v1/grants/%ff HTTP/1.1\r\n\r\n",
        b"GET /v1/grants/%ed%a0%80 HTTP/1.1\r\n\r\n",
        b"GET /v1/grants?ended=%ff HTTP/1.1\r\n\r\n",
        b"GET /v1/events?tenant=%C3%28 HTTP/1.1\r\n\r\n",
        b"GET /v1/%ff=%ff HTTP/1.1\r\n\r\n",
        b"GET /v1/grants/a%00b HTTP/1.1\r\n\r\n",
        b"GET /v1/version HTTP/1.1\r\nX-Name: \xff\xfe\r\n\r\n",
        b"DELETE /v1/tenants/%0a%0d HTTP/1.1\r\n\r\n",
        b"DELETE /v1/grants/%c0%80 HTTP/1.1\r\n\r\n",
        post(b"/v1/grants", b'{"memory":"\xff","time":1}'),
        post(b"/v1/grants", b'{"memory":1,"time":1,"tenant":"\\ud800"}'),
        post(b"/v1/grants", b'{"memory":1,"time":1,"\xed\xa0\x80":1}'),
        post(b"/v1/grants", b"{}", b"Content-Length: 3"),
        post(b"/v1/grants", b"{}", b"Transfer-Encoding: chunked"),
        post(b"/v1/grants", b"{}", b"Expect: something"),
        post(b"/v1/grants", b"{}", b"Content-Encoding: gzip"),
        post(b"/v1/grants?grant=g", b"{}"),
        b"POST /v1/grants HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/grants HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        b"POST /v1/grants HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        b"POST /v1/grants HTTP/1.1\r\nContent-Length: -1\r\n\r\n{}",
        b"GET http://[ HTTP/1.1\r\n\r\n",
        b"GET http://x:99999999/v1/version HTTP/1.1\r\n\r\n",
        b"GET v1/version HTTP/1.1\r\n\r\n",
        b"GET /v1/version HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /v1/watch?since=1&since=2 HTTP/1.1\r\n\r\n",
        b"GET /v1/events?limit=9223372036854775808 HTTP/1.1\r\n\r\n",
        b"GET /v1/events?grant= HTTP/1.1\r\n\r\n",
        b"GET /v1/grants?ende=1 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_and_not_logged(daemon, text):
    before = daemon.log.read_text()
    found, headers, body = ask(daemon.layout.socket, text.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nHost: x\r\n", 1))
    assert found == 400, body
    assert headers["content-type"].startswith("application/json")
    assert daemon.log.read_text() == before
    assert daemon.client.version()


def test_requests_that_wait_in_one_piece_are_answered_in_order(daemon):
    with connect(daemon.layout.socket) as one:
        one.sendall(VERSION * 200)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 200:
            answers += one.recv(1 << 16)
    with connect(daemon.layout.socket) as one:
        one.sendall(b"POST /v1/grants HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert one.recv(64).startswith(b"HTTP/1.1 100")
        one.sendall(b"{}")
        assert answer(one)[0] == 400


def test_users_take_turns():
    import asyncio

    async def scene():
        turns, order = reception.Turns(), []

        async def call(uid):
            await turns.take(uid)
            order.append(uid)

        await asyncio.gather(*(call(1) for _ in range(6)), *(call(2) for _ in range(2)), call(3))
        return order

    assert asyncio.run(scene()) == [1, 1, 2, 3, 1, 2, 1, 1, 1]
