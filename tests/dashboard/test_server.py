"""The dashboard's server, queried as any program on the machine can."""

import asyncio
import contextlib
import gzip
import os
import select
import shutil
import signal
import socket
import stat
import tempfile
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from run.running import GPUSHARE, alive, start
from run.waiting import until
from views.dashboards import Told, dashboard

from gpushare.dashboard import connections
from gpushare.dashboard.readers import QUEUE_BYTES_MAX, Readers

USER = 23456
OTHER = 23457


def status_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.mark.promise("dashboard-port")
def test_root_gives_up_its_rights(board):
    """Neither the server nor the relay, which connects for it, is root, and only the relay can open files."""
    (relay,) = board.children()
    until(lambda: status_of(relay)["NoNewPrivs"] == "1", "the relay has begun")  # connections wait until then
    for pid, held in (board.process.pid, 0), (relay, 1 << 1):
        status = status_of(pid)
        assert status["Uid"].split() == status["Gid"].split() == ["65534"] * 4
        assert status["Groups"].strip() == ""
        assert [int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")] == [
            *(held, held, held),
            *(0, 0),
        ]
        assert status["NoNewPrivs"] == "1"


def listening(pid):
    """Paths of a process's listening unix sockets."""
    links = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [words[7] for words in lines if len(words) > 7 and f"socket:[{words[6]}]" in links]


def test_one_that_closes_its_sending_half_is_answered(board):
    for _ in range(8):
        with board.connect() as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            got = b""
            while more := connection.recv(65536):
                got += more
        assert got.startswith(b"HTTP/1.1 ") and got.count(b"HTTP/1.1 ") == 1


def test_the_relay_is_for_the_dashboard_alone_and_ends_with_it(node):
    with dashboard("--socket", str(node.layout.socket)) as board:
        (relay,) = board.children()
        (path,) = set(listening(relay))
        own = Path(path).parent.stat()
        assert (own.st_uid, stat.S_IMODE(own.st_mode)) == (65534, 0o700)
        with socket.socket(socket.AF_UNIX) as mine:  # root, who can open it, is not the dashboard
            mine.settimeout(20)
            mine.connect(path)
            with contextlib.suppress(OSError):
                mine.sendall(b"GET /v1/version HTTP/1.0\r\n\r\n")
                assert mine.recv(100) == b""
        board.process.kill()
        until(lambda: not alive(relay), "the relay ends", 20)
        shutil.rmtree(Path(path).parent)


def test_every_answer_has_the_headers_of_a_strict_page(board):
    for path in ("/", "/main.js", "/nowhere", "/api/grant"):
        _, headers, _ = board.request("GET", path, Authorization=None)
        policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.promise("dashboard-port")
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"Authorization": None}, 200),
        ("/../main.py", {"Authorization": None}, 404),
        ("/server.py", {"Authorization": None}, 404),
        ("/", {"Host": "evil.example"}, 421),
        ("/", {"Host": "127.0.0.1.evil.example:80"}, 421),
        ("/", {"Host": "localhost:9000", "Authorization": None}, 200),
        ("/api/grant?node=0&id=x", {}, 404),
        ("/api/grant?node=1&id=x", {}, 400),
        ("/api/grant?node=-1&id=x", {}, 400),
        ("/api/grant?node=0&id=..%2F..%2Fnode", {}, 404),
        ("/api/grant?node=0&id=x", {"Authorization": None}, 401),
        ("/api/grant?node=0&id=x", {"Authorization": "Bearer "}, 401),
        ("/api/grant?node=0&id=x", {"Authorization": "Bearer " + "A" * 32}, 401),
        ("/api/grant?node=0&id=x", {"Authorization": "Bearer \xff\xe9"}, 401),
        ("/api/stream", {"Authorization": None}, 401),
        ("/api/stream?token=TOKEN", {"Authorization": None}, 401),
        ("/api/stream", {"Cookie": "token=TOKEN", "Authorization": None}, 401),
        ("/api/stream", {"Host": "evil.example"}, 421),
        ("/api/stream", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/api/stream", {"Sec-Fetch-Site": "same-site"}, 403),
        ("/api/stream", {"Origin": "http://evil.example"}, 403),
        ("/api/stream", {"Origin": "null"}, 403),
        ("/api/release", {}, 404),
    ],
)
def test_who_is_answered(board, path, headers, status):
    headers = {name: value and value.replace("TOKEN", board.token) for name, value in headers.items()}
    assert board.request("GET", path.replace("TOKEN", board.token), **headers)[0] == status


@pytest.fixture(scope="module")
def own(node):
    """A dashboard of an ordinary user, who may change his own grants."""
    node.layout.socket.chmod(0o666)
    with dashboard("--socket", str(node.layout.socket), "--allow-changes", uid=USER) as found:
        yield found
    node.layout.socket.chmod(0o600)


def test_a_user_changes_what_is_his_and_nothing_else(node, own):
    mine, other = (node.client.create(memory="1GiB", time="20%", uid=uid)["id"] for uid in (USER, OTHER))
    try:
        assert own.request("POST", "/api/resize", {"node": 0, "grant": mine, "memory": "2GiB"})[0] == 200
        assert node.client.grant(mine)["devices"][0]["memory_limit_bytes"] == 2 << 30
        status, _, body = own.request("POST", "/api/resize", {"node": 0, "grant": mine, "time": "<b>"})
        assert (status, b"is not a share" in body) == (400, True)
        status, _, body = own.request("POST", "/api/release", {"node": 0, "grant": other})
        assert (status, node.client.grant(other)["phase"]) == (403, "reserved")
        assert own.request("POST", "/api/release", {"node": 0, "grant": mine})[0] == 200
        assert node.client.grant(mine)["phase"] == "released"
    finally:
        node.client.release(other)


@pytest.mark.promise("dashboard-port")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Origin": None}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_no_change_without_token_and_same_origin(node, own, headers, status):
    grant = node.client.create(memory="1GiB", time="20%", uid=USER)["id"]
    try:
        assert own.request("POST", "/api/release", {"node": 0, "grant": grant}, **headers)[0] == status
        assert node.client.grant(grant)["phase"] == "reserved"
    finally:
        node.client.release(grant)


def test_bodies_are_small_objects_of_known_fields(own):
    for body, status in (
        (b"{", 400),
        (b"[" * 3000, 400),
        (b"[]", 400),
        ({"node": 0}, 400),
        ({"node": True, "grant": "x"}, 400),
        ({"node": 0, "grant": "x", "more": 1}, 400),
        ({"node": 9, "grant": "x"}, 400),
        ({"node": 0, "grant": "x" * 5000}, 413),
    ):
        assert own.request("POST", "/api/release", body)[0] == status, body


def test_roots_dashboard_changes_nothing(node, board):
    grant = node.client.create(memory="1GiB", time="20%")["id"]
    try:
        for path in ("/api/release", "/api/resize"):
            assert board.request("POST", path, {"node": 0, "grant": grant, "memory": "2GiB"})[0] == 403
        assert node.client.grant(grant)["phase"] == "reserved"
    finally:
        node.client.release(grant)


def test_those_who_send_nothing_or_take_nothing_stop_nobody(node, board):
    with contextlib.ExitStack() as ours:
        for number in range(150):
            silent = ours.enter_context(board.connect())
            with contextlib.suppress(OSError):  # the server has closed it to make room for another
                silent.sendall(b"GET / HTTP/1.1\r\nX-Half: " if number % 2 else b"")
        for _ in range(3):
            greedy = ours.enter_context(board.connect())
            greedy.sendall(
                f"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {board.token}\r\n\r\n".encode()
            )
        with board.stream() as messages:
            notified = Told(messages)
            notified.until("grants")
            grant = node.client.create(memory="1GiB", time="20%")["id"]
            notified.until("grants", lambda grants: grant in grants.get("set", ()))
            node.client.release(grant)
        assert board.request("GET", "/")[0] == 200


def test_bodies_that_grow_or_trickle_keep_the_server_for_no_time(node):
    """One needs no token to send them. What is not HTTP is answered, and not logged."""
    bomb = gzip.compress(bytes(200 << 20))
    head = "POST /api/release HTTP/1.1\r\nHost: localhost\r\n"
    with dashboard("--socket", str(node.layout.socket)) as board:
        schedstat = Path(f"/proc/{board.process.pid}/schedstat")
        assert board.request("GET", "/")[0] == 200
        before = int(schedstat.read_text().split()[0])
        with board.connect() as one, contextlib.suppress(OSError):
            one.sendall(f"{head}Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode() + bomb)
            assert b" 401 " in one.recv(100)
        assert board.request("GET", "/")[0] == 200
        assert int(schedstat.read_text().split()[0]) - before < 200_000_000
        for start, status in (f"{head}Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", 411), ("G\0T / X\r\n\r\n", 400):
            with board.connect() as one:
                one.sendall(start.encode())
                assert one.recv(100).split()[1] == str(status).encode()
        assert not select.select([board.process.stderr], [], [], 0)[0]


def test_headers_are_small(board):
    with board.connect() as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 20000 + b"\r\n\r\n")
        assert b" 400 " in one.recv(100)


class Tap:
    """A socket in front of the daemon's that records the requested paths."""

    def __init__(self, path, target):
        self.asked, self._target = [], target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._lead, args=(self._listener.accept()[0],), daemon=True).start()

    def _lead(self, here):
        with contextlib.suppress(OSError), here, socket.socket(socket.AF_UNIX) as there:
            there.connect(str(self._target))
            if not (data := here.recv(65536)):
                return  # the dashboard stopped before it asked
            self.asked.append(data.split(b" ")[1].split(b"?")[0].decode())
            there.sendall(data)
            while data := there.recv(65536):
                here.sendall(data)

    def close(self):
        self._listener.shutdown(socket.SHUT_RD)
        self._listener.close()


def test_the_daemon_is_asked_once_however_many_pages_are_open(node, tmp_path):
    tap = Tap(tmp_path / "tap", node.layout.socket)
    try:
        with dashboard("--socket", str(tmp_path / "tap")) as board:
            assert tap.asked == []
            with board.stream() as one, board.stream() as two, board.stream() as three:
                for notified in map(Told, (one, two, three)):
                    for section in "state", "devices", "tenants", "receipts", "facts", "observed", "hour", "day":
                        notified.until(section)
            assert tap.asked.count("/v1/watch") == tap.asked.count("/v1/node") == 1
    finally:
        tap.close()


class Other(Tap):
    """A server whose answers are not those of a daemon of the dashboard's version."""

    def _lead(self, here):
        with contextlib.suppress(OSError), here:
            here.recv(65536)
            here.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")


def test_answers_of_another_version_are_reported_to_be_that(tmp_path):
    other = Other(tmp_path / "other", None)
    try:
        with dashboard("--socket", str(tmp_path / "other")) as board, board.stream() as messages:
            next(messages)
            assert "of the same version" in Told(messages).away("its answers are not")
    finally:
        other.close()


def test_a_page_that_is_too_far_behind_is_cut_off_and_others_are_not():
    async def story():
        notified = []
        readers = Readers(notified.append, linger_seconds=0)
        slow, fast = readers.join(), readers.join()
        for _ in range(3):
            readers.publish(b"x" * (QUEUE_BYTES_MAX // 2))
            assert len(await fast.take(1)) == QUEUE_BYTES_MAX // 2
        assert await slow.take(1) == b""
        readers.leave(slow)
        assert notified == [True]
        readers.leave(fast)
        await asyncio.sleep(0.01)
        assert notified == [True, False]

    asyncio.run(story())


def test_connections_end_in_time_but_for_streams(monkeypatch):
    class Handler:
        """The used part of aiohttp's handler, which has a transport once its connection is made."""

        transport = None

        def connect(self):
            self.ended = asyncio.Event()
            self.transport = SimpleNamespace(abort=self.ended.set)

    async def story():
        open_connection = connections.Connections(Handler)
        stream, other = open_connection(), open_connection()  # both before either has a transport
        for one in stream, other:
            one.connect()
        open_connection.keep(SimpleNamespace(protocol=stream))
        await asyncio.wait_for(other.ended.wait(), 20)
        more = [open_connection() for _ in range(connections.CONNECTIONS_MAX)]
        for one in more:
            one.connect()
        open_connection()
        assert more[0].ended.is_set() and not more[1].ended.is_set() and not stream.ended.is_set()

    monkeypatch.setattr(connections, "CONNECTION_SECONDS", 0.05)
    asyncio.run(story())


def test_bad_options_are_one_line(node, tmp_path):
    path = str(node.layout.socket)
    cases = [
        (("--node", "a"), 2, "write NAME=SOCKET"),
        (("--node", "=x"), 2, "write NAME=SOCKET"),
        (("--node", "a=ssh:-oProxyCommand=x"), 2, "no host for ssh"),
        (("--node", "a=ssh:"), 2, "no host for ssh"),
        (("--node", f"a={path}", "--node", f"a={path}"), 2, "same name"),
        (("--node", f"a={path}", "--socket", path), 2, "--socket and --node"),
        (("--node", "a=ssh:there"), 2, "your own user"),
        (("--allow-changes",), 2, "changes nothing"),
        (("--port", "65536"), 2, "not a port"),
        (("--port", "x\ny"), 2, "not a port"),
    ]
    for options, status, words in cases:
        child = start([*GPUSHARE, "dashboard", *options], forked=True)
        out, err = child.communicate(30)
        assert (child.wait(), out) == (status, ""), (options, err)
        assert words in err and err.count("\n") == 1, (options, err)


def test_a_port_that_is_taken_is_one_line(node, board):
    child = start([*GPUSHARE, "dashboard", "--port", str(board.port), "--socket", str(node.layout.socket)])
    out, err = child.communicate(30)
    assert (child.wait(), out) == (1, "") and f"port {board.port}" in err and err.count("\n") == 1


SSH = textwrap.dedent("""\
    #!/usr/bin/python3
    import os, socket, sys, threading
    words = sys.argv[1:]
    local, remote = words[words.index("-L") + 1].split(":")
    with open(os.environ["STAND_IN_LOG"], "a") as log:
        print(os.getpid(), words[-2:], file=log, flush=True)
    if words[-1] == "nobody@home":
        sys.exit("tried\\n\\x1b[31mPermission denied (publickey).")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(local)
    listener.listen()
    def copy(a, b):
        while part := a.recv(65536):
            b.sendall(part)
        b.shutdown(socket.SHUT_WR)
    while True:
        here, _ = listener.accept()
        there = socket.socket(socket.AF_UNIX)
        there.connect(remote)
        for pair in ((here, there), (there, here)):
            threading.Thread(target=copy, args=pair, daemon=True).start()
    """)


@pytest.fixture
def open_path():
    """A directory that any user can enter; the next session of pytest closes those of tmp_path."""
    with tempfile.TemporaryDirectory(prefix="gst-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_a_node_on_another_machine(node, open_path):
    """A program replaces ssh: it is restarted, ends with the dashboard, and its messages are shown."""
    node.layout.socket.chmod(0o666)
    (open_path / "ssh").write_text(SSH)
    (open_path / "ssh").chmod(0o755)
    log = open_path / "log"
    log.touch()
    log.chmod(0o666)
    env = {"PATH": f"{open_path}:{os.environ['PATH']}", "STAND_IN_LOG": str(log), "HOME": "/"}
    nodes = ("--node", f"far=ssh:me@far.example:{node.layout.socket}", "--node", "off=ssh:nobody@home")
    with dashboard(*nodes, uid=USER, env=env) as board, board.stream() as messages:
        hello = next(messages)["hello"]["nodes"]
        assert [(one["name"], one["host"]) for one in hello] == [("far", "me@far.example"), ("off", "nobody@home")]
        notified = Told(messages)
        assert "\x1b" not in notified.away("Permission denied (publickey).", node=1)
        assert len(notified.until("devices")) == 2
        assert "'--', 'me@far.example'" in log.read_text()
        (first,) = far(log)
        os.kill(first, signal.SIGKILL)
        notified.away("ssh to me@far.example ended")
        notified.away(None)
        (second,) = far(log)
        board.process.kill()
        until(lambda: not alive(second), "ssh ends with the dashboard", 20)
    node.layout.socket.chmod(0o600)


def far(log):
    """Processes of the stand-in for ssh that are alive and forward."""
    pids = [int(line.split()[0]) for line in log.read_text().splitlines() if "far" in line]
    return [pid for pid in pids if alive(pid)]
