"""The door, which has the sockets of all grants, is killed, stopped, flooded and blocked; the daemon is not
disturbed."""

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pages.joinmessages import answered, request
from pages.madepages import limits_page, usage_page
from run import doors
from run.built import SUPPORT
from run.waiting import until

from gpushare.binding.page_words import DeviceLimits
from gpushare.binding.wire import JoinError
from gpushare.daemon.workloads import door
from gpushare.daemon.workloads.door import Door
from gpushare.daemon.workloads.tenant_socket import Rules, TenantSocket
from gpushare.door import grants
from gpushare.door.messages import Asked, Ended
from gpushare.processes import helper

# Many mappings, then many joins: a scan of the mappings at the end of each connection took 40 ms.
CROWDED = """
import ctypes, mmap, os, socket, sys
from pathlib import Path
sys.path.insert(0, {support!r})
from pages.joinmessages import answered, request
libc = ctypes.CDLL(None)
room = mmap.mmap(-1, 60_000 * 4096)
at = ctypes.addressof(ctypes.c_char.from_buffer(room))
for page in range(0, 60_000, 2):
    libc.mprotect(ctypes.c_void_p(at + page * 4096), 4096, 0)
directory = Path(os.environ["GPUSHARE_GRANT_DIR"])
print(directory.parent.name, flush=True)
crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(500)]
for connection in crowd:
    connection.connect(str(directory / "grant.sock"))
    connection.send(request())
print(sum(answered(connection.recv(128)).error == 0 for connection in crowd), flush=True)
for connection in crowd:
    connection.close()
sys.stdin.readline()
"""


def tell(child, word):
    child.stdin.write(word + "\n")
    return child.stdout.readline().split()


def held(client, grant_id):
    return client.grant(grant_id)["devices"][0]["memory_bytes"]


def listens(daemon, grant_id):
    """Whether the grant's socket accepts connections. A joining process retries for 5 s."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        return connection.connect_ex(str(daemon.layout.grants / grant_id / "self" / "grant.sock")) == 0


def door_failures(client):
    [line] = [
        line
        for line in client.text("/metrics").splitlines()
        if line.startswith('gpushare_helper_failures_total{helper="door"}')
    ]
    return int(line.split()[-1])


def test_processes_keep_their_slots_when_the_door_is_killed(daemon, client):
    child, grant_id = daemon.join()
    tell(child, "hold 4096")
    first = doors.pid(daemon.process.pid)
    os.kill(first, signal.SIGKILL)
    until(lambda: doors.pid(daemon.process.pid) not in (None, first), "another door")
    until(lambda: listens(daemon, grant_id), "it has the grant's socket")
    word, _, slot, generation, *_ = tell(child, "rejoin")
    assert (word, slot, generation) == ("joined", "0", "1")
    assert (client.grant(grant_id)["processes"], held(client, grant_id)) == ([child.pid], 4096)
    other, _ = daemon.join()
    assert tell(child, "fork")[0] == "joined"
    assert other.poll() is None


@pytest.mark.promise("socket-delays-own-grant")
def test_a_door_that_hangs_is_replaced_and_the_daemon_answers_meanwhile(daemon, client):
    child, grant_id = daemon.join()
    first = doors.pid(daemon.process.pid)
    failures = door_failures(client)
    os.kill(first, signal.SIGSTOP)
    slowest = 0.0
    while doors.pid(daemon.process.pid) in (None, first):
        began = time.monotonic()
        client.grants()
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1.0
    assert door_failures(client) == failures + 1
    until(lambda: listens(daemon, grant_id), "it has the grant's socket")
    assert tell(child, "rejoin")[0] == "joined"
    assert client.grant(grant_id)["processes"] == [child.pid]


def test_a_door_that_gets_no_processor_does_not_hang(monkeypatch):
    asked = []

    def always_waited(_):
        asked.append(time.monotonic_ns())
        return asked[-1]

    async def run():
        end = Door()
        try:
            await end.system_call(os.getpid())  # the door has started, which takes longer than several pings
            monkeypatch.setattr(door, "_PING_S", 0.02)
            monkeypatch.setattr(Door, "_run_delay_ns", always_waited)
            os.kill(doors.pid(os.getpid()), signal.SIGSTOP)
            async with asyncio.timeout(20):
                while len(asked) < 6:  # two calls for each missed ping
                    await asyncio.sleep(0.01)
                assert end.restarts == 0
                monkeypatch.setattr(Door, "_run_delay_ns", lambda _: 0)
                while not end.restarts:
                    await asyncio.sleep(0.01)
        finally:
            end.close()

    asyncio.run(run())


def test_the_door_ends_with_a_killed_daemon(daemon):
    watched = os.pidfd_open(doors.pid(daemon.process.pid))
    daemon.kill()
    assert select.select([watched], [], [], 20)[0]
    os.close(watched)
    daemon.start()


def test_the_door_may_do_nothing(daemon):
    if os.geteuid() != 0:
        pytest.skip("another user has no capabilities to give up")
    status = Path(f"/proc/{doors.pid(daemon.process.pid)}/status")
    kept = f"{1 << helper.CAP_SYS_PTRACE | 1 << helper.CAP_DAC_READ_SEARCH:016x}"
    lines = [f"{name}:\t{kept}\n" for name in ("CapEff", "CapPrm", "CapBnd")] + ["NoNewPrivs:\t1\n"]
    until(lambda: all(line in status.read_text() for line in lines), "confined")


RESTRICTED = """
import os, sys
from gpushare.processes import helper
helper.confine(str(os.getppid()), keep={helper.CAP_DAC_READ_SEARCH, helper.CAP_SYS_PTRACE})
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0])
"""


@pytest.mark.parametrize("lacks", ["sys_ptrace", "setgid", "setuid,setpcap", "sys_ptrace,dac_read_search,setgid"])
def test_where_root_has_fewer_capabilities_helpers_keep_what_there_is(lacks):
    if os.geteuid() != 0:
        pytest.skip("another user has no capabilities to give up")
    without = ",".join(f"-{name}" for name in lacks.split(","))
    ended = subprocess.run(
        ["setpriv", f"--bounding-set={without}", sys.executable, "-c", RESTRICTED],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    kept = {"sys_ptrace": helper.CAP_SYS_PTRACE, "dac_read_search": helper.CAP_DAC_READ_SEARCH}
    assert int(ended.stdout, 16) == sum(1 << number for name, number in kept.items() if name not in lacks.split(","))


@pytest.mark.promise("socket-delays-own-grant")
def test_a_process_with_many_mappings_delays_nobody(daemon, client):
    """It joins 500 times at once, and then all of its connections end at once."""
    program = CROWDED.format(support=str(SUPPORT))
    child = daemon.tenant(sys.executable, "-c", program)
    grant_id = child.stdout.readline().strip()
    slowest = answers = 0
    while answers < 200 or not select.select([child.stdout], [], [], 0)[0]:
        began = time.monotonic()
        client.call("GET", "/v1/version")
        slowest = max(slowest, time.monotonic() - began)
        answers += 1
    assert child.stdout.readline().strip() == "500"
    print(f"{answers} answers, the slowest after {slowest * 1000:.0f} ms")
    assert slowest < 1.0
    assert client.grant(grant_id)["phase"] == "active"


# A descriptor whose close lasts as long as its sender wants: a TCP socket with unsent data that nobody reads. It is
# sent, and the sender ends, while the door is stopped, so that the receiver makes the last close.
LINGERING = """
import contextlib, os, socket, struct, sys
sys.path.insert(0, {support!r})
from pages.joinmessages import answered, request

def connected():
    hostile = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hostile.connect({path!r})
    return hostile

def lingering():
    sender = socket.create_connection(("127.0.0.1", {port}))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(1 << 16))
    return sender

sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(1))
joined = connected()
joined.send(request())
answered(joined.recv(128))
kept, sent = [], 0
print("joined", flush=True)
sys.stdin.readline()
# In the first message, behind the request, behind an empty message, before the request, and after the answer.
for words in (["rights"], ["join", "rights"], ["nothing", "rights"], ["rights", "join"], ["joined", "rights"]):
    hostile = joined if words[0] == "joined" else connected()
    with contextlib.suppress(ConnectionError, PermissionError):
        for word in words:
            if word == "rights":
                kept.append(lingering())
                socket.send_fds(hostile, [b"x"], [kept[-1].fileno()])
                sent += 1
            elif word != "joined":
                hostile.send(request() if word == "join" else b"")
    kept.append(hostile)
print(sent, flush=True)
os._exit(0)  # an exit does not linger, here or where something fails
"""


@contextlib.contextmanager
def unread():
    """The port of a server that accepts, never reads, and resets all connections in the end."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def pages(tmp_path):
    limits = limits_page(tmp_path / "limits", "g-1", [DeviceLimits(bytes(16), 1 << 30, 0, 100, 1000)])
    usage = usage_page(tmp_path / "usage", "g-1")
    with limits, usage:
        yield limits, usage


def play(tmp_path, pages, scene, *, guarded):
    async def run():
        bell, end = os.eventfd(0), Door(guarded=guarded)
        rules = Rules(lambda _: (JoinError.OK, ""), lambda _: None, lambda: None, lambda: None)
        tenant = TenantSocket(tmp_path, *pages, bell, rules, end)
        tenant.listen()
        try:
            await asyncio.to_thread(scene, str(tmp_path / "grant.sock"))
            assert end.restarts == 0
        finally:
            tenant.close()
            end.close()
            os.close(bell)

    asyncio.run(run())


def connected(path):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(20)
    connection.connect(path)
    return connection


def joins(path):
    with connected(path) as honest:
        honest.send(request())
        return answered(honest.recv(128)).error == JoinError.OK


@pytest.mark.promise("socket-delays-own-grant")
@pytest.mark.parametrize("guarded", [False, True], ids=["kernel", "guarded"])
def test_descriptors_that_cannot_be_closed_keep_nobody_waiting(tmp_path, pages, guarded, monkeypatch):
    monkeypatch.setattr(door, "_PINGS_MISSED", 80)

    def attack(path):
        with unread() as port:
            support = str(SUPPORT)
            script = LINGERING.format(support=support, path=path, port=port)
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
            pid = until(lambda: doors.pid(os.getpid()), "the door")
            with subprocess.Popen([sys.executable, "-c", script], **pipes) as hostile:
                assert hostile.stdout.readline() == "joined\n"
                os.kill(pid, signal.SIGSTOP)
                hostile.stdin.write("go\n")
                sent = hostile.stdout.readline()
            os.kill(pid, signal.SIGCONT)
            # Either the kernel refuses all descriptors (guarded), or they were sent and the door handles them.
            assert int(sent) >= 4 if guarded else int(sent) == 0
            for _ in range(10):
                assert joins(path)

    play(tmp_path, pages, attack, guarded=guarded)


# Without a daemon: the bounds that the door itself enforces.


class Sockets:
    """The door's sockets in this process, with one grant."""

    def __init__(self, path):
        self.path, self.sent = str(path), []
        self.poll = select.epoll()
        self.grants = grants.Grants(self.poll, lambda message, _: self.sent.append(message))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.path)
        listener.listen(128)
        self.grants.open(1, listener)

    def settle(self):
        """Handles events until there are no more."""
        self.grants.tick()
        while events := self.poll.poll(0.02):
            for descriptor, _ in events:
                self.grants.happened(descriptor)

    def asked(self):
        return [message.connection for message in self.sent if isinstance(message, Asked)]


@pytest.fixture
def sockets(tmp_path):
    made = Sockets(tmp_path / "grant.sock")
    yield made
    made.grants.shut(1)
    made.poll.close()


def test_one_grant_has_few_requests_with_the_daemon_at_once(sockets):
    crowd = [connected(sockets.path) for _ in range(100)]
    for connection in crowd:
        connection.send(request())
    sockets.settle()
    assert len(sockets.asked()) == grants._ASKED_MAX
    answered_so_far = 0
    while answered_so_far < len(sockets.asked()):
        for connection in sockets.asked()[answered_so_far:]:
            sockets.grants.answer(connection, b"no", None)
            answered_so_far += 1
        sockets.settle()
    assert answered_so_far == 100
    assert {connection.recv(16) for connection in crowd} == {b"no"}
    for connection in crowd:
        connection.close()


def test_those_that_wait_and_go_do_not_hold_up_the_rest(sockets):
    crowd = [connected(sockets.path) for _ in range(grants._ASKED_MAX + 10)]
    for connection in crowd:
        connection.send(request())
    sockets.settle()
    for connection in crowd[:-1]:
        connection.close()
    for connection in sockets.asked():
        sockets.grants.answer(connection, b"no", None)
    sockets.settle()
    for connection in sockets.asked()[grants._ASKED_MAX :]:
        sockets.grants.answer(connection, b"no", None)
    sockets.settle()
    assert crowd[-1].recv(16) == b"no"
    crowd[-1].close()


def test_a_connection_that_sends_nothing_is_closed(sockets, monkeypatch):
    silent, joined = connected(sockets.path), connected(sockets.path)
    joined.send(request())
    sockets.settle()
    sockets.grants.answer(sockets.asked()[0], b"yes", os.eventfd(0))
    monkeypatch.setattr(grants, "_SILENT_S", 0.0)
    monkeypatch.setattr(grants, "_TICK_S", 0.0)
    sockets.settle()
    assert silent.recv(16) == b""
    assert joined.recv(16) == b"yes"
    joined.setblocking(False)
    with pytest.raises(BlockingIOError):
        joined.recv(16)
    joined.close()
    sockets.settle()
    assert sockets.sent[-1] == Ended(sockets.asked()[0], answered=True)
    silent.close()


def test_a_grant_that_keeps_joining_waits(sockets, monkeypatch):
    monkeypatch.setattr(grants, "_CROWD", 5)
    monkeypatch.setattr(grants, "_PER_SECOND", 0.001)
    crowd = [connected(sockets.path) for _ in range(10)]
    for connection in crowd:
        connection.send(request())
    sockets.grants._grants[1].credit = 5
    sockets.settle()
    assert len(sockets.asked()) == 5
    for connection in crowd:
        connection.close()
