"""Sockets that take no descriptors, with the kernel's refusal and without it. On failure a test hangs: the descriptors
sent here take a quarter of an hour to close."""

import contextlib
import errno
import os
import socket
import struct

import pytest
from run.waiting import until

from gpushare.processes import rights

KINDS = [socket.SOCK_STREAM, socket.SOCK_SEQPACKET]
LINGER_SECONDS = 900

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=KINDS, ids=["stream", "seqpacket"])
def kind(request):
    return request.param


@contextlib.contextmanager
def listening(tmp_path, kind, *, by_kernel=False):
    bound = socket.socket(socket.AF_UNIX, kind)
    bound.bind(str(tmp_path / "s"))
    listener = rights.refuse(bound, by_kernel=by_kernel)
    listener.listen()
    try:
        yield listener
    finally:
        listener.close()


@contextlib.contextmanager
def pair(tmp_path, kind, *, by_kernel=False):
    """A client, and the guarded end of its connection."""
    with listening(tmp_path, kind, by_kernel=by_kernel) as listener, socket.socket(socket.AF_UNIX, kind) as client:
        client.connect(str(tmp_path / "s"))
        served, _ = listener.accept()
        try:
            yield client, served
        finally:
            served.close()


class Slow:
    """A descriptor that blocks whoever closes it last: unsent data to a peer that does not read."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.socket = socket.create_connection(server.getsockname())
            self.reader, _ = server.accept()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_SECONDS))
        self.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.socket.send(bytes(1 << 20))

    def give(self, client, message=b"x", flags=0):
        """Sends the descriptor and closes it here. Raises OSError if the kernel refuses it."""
        rows = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", self.socket.fileno()))]
        try:
            client.sendmsg([message], rows, flags)
        except OSError:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            raise
        finally:
            self.socket.close()

    def ended(self):
        """Whether its last holder has closed it."""
        self.reader.setblocking(False)
        try:
            while self.reader.recv(1 << 20):
                pass
        except BlockingIOError:
            return False
        except ConnectionResetError:
            pass
        return True


@pytest.fixture
def slow():
    made = Slow()
    yield made
    made.reader.close()
    made.socket.close()


@pytest.mark.parametrize("by_kernel", [True, False])
def test_messages_pass(tmp_path, kind, by_kernel):
    with pair(tmp_path, kind, by_kernel=by_kernel) as (client, served):
        client.send(b"one")
        assert served.recv(64) == b"one"
        client.send(b"two")
        space = bytearray(64)
        assert served.recv_into(space) == 3
        assert space[:3] == b"two"
        served.send(b"three")
        assert client.recv(64) == b"three"
        served.setblocking(False)
        with pytest.raises(BlockingIOError):
            served.recv(64)
        client.close()
        assert served.recv(64) == b""


@pytest.mark.promise("descriptors-block-nothing")
def test_the_kernel_refuses_them_at_the_sender(tmp_path, kind, slow):
    with pair(tmp_path, kind, by_kernel=True) as (client, served):
        if isinstance(served, rights.GuardedSocket):
            pytest.skip("this kernel has no SO_PASSRIGHTS")
        with pytest.raises(PermissionError):
            slow.give(client)
        client.send(b"still served")
        assert served.recv(64) == b"still served"


@pytest.mark.promise("descriptors-block-nothing")
def test_one_that_comes_along_ends_the_connection(tmp_path, kind, slow):
    with pair(tmp_path, kind) as (client, served):
        client.send(b"before")
        assert served.recv(64) == b"before"
        slow.give(client)
        for _ in range(2):
            with pytest.raises(OSError, match="descriptors") as caught:
                served.recv(64)
            assert caught.value.errno == errno.ECONNABORTED
        served.close()
        assert client.recv(64) == b""
        until(slow.ended, "closed")
        until(lambda: rights.waiting() == 0, "nothing waits")


def test_one_that_was_not_read(tmp_path, kind, slow):
    with pair(tmp_path, kind) as (client, served):
        client.send(b"before")
        slow.give(client)
        client.send(b"after")
        served.close()
        until(slow.ended, "closed")


def test_one_with_an_empty_message(tmp_path, slow):
    with pair(tmp_path, socket.SOCK_SEQPACKET) as (client, served):
        for _ in range(20):
            client.send(b"")
        slow.give(client, b"")
        served.close()
        until(slow.ended, "closed")


def test_one_that_is_out_of_band(tmp_path, slow):
    with pair(tmp_path, socket.SOCK_STREAM) as (client, served):
        try:
            slow.give(client, b"!", socket.MSG_OOB)
        except OSError as error:
            pytest.skip(f"this kernel has no such data: {error}")
        client.send(b"rest")
        with pytest.raises(OSError, match="descriptors"):
            served.recv(64)
        served.close()
        until(slow.ended, "closed")


def test_a_listener_with_connections_that_nobody_accepted(tmp_path, kind, slow):
    with contextlib.ExitStack() as clients:
        with listening(tmp_path, kind) as listener:
            for _ in range(3):
                client = clients.enter_context(socket.socket(socket.AF_UNIX, kind))
                client.connect(str(tmp_path / "s"))
                client.send(b"x")
            slow.give(client)
            listener.close()
        until(slow.ended, "closed")
        with socket.socket(socket.AF_UNIX, kind) as late, pytest.raises(ConnectionRefusedError):
            late.connect(str(tmp_path / "s"))


def test_a_plain_end_needs_no_process(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(rights._closer, "take", lambda one: pytest.fail("not closed here"))
    with pair(tmp_path, kind) as (client, served):
        client.send(b"unread")
        before = len(os.listdir("/proc/self/fd"))
        served.close()
        assert len(os.listdir("/proc/self/fd")) == before - 1
