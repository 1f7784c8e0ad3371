"""Attacks on the grant's socket: any message in any state, cut, repeated, with descriptors of any kind."""

import array
import contextlib
import ctypes
import os
import select
import socket
import struct
from collections.abc import Callable

from hostile.program import Hostile
from pages.joinmessages import answered, reply, request

libc = ctypes.CDLL(None, use_errno=True)


def connected(hostile: Hostile, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
    connection = hostile.hold(socket.socket(socket.AF_UNIX, kind))
    connection.settimeout(0.5)
    connection.connect(str(hostile.directory / "grant.sock"))
    return connection


def message(hostile: Hostile) -> bytes:
    good = request()
    words = (0, 1, 2, 0xFFFF, 1023, 1024, 1 << 31, (1 << 32) - 1, hostile.random.getrandbits(32))
    return hostile.random.choice(
        (
            good,
            good,
            request(slot=hostile.random.choice(words), generation=hostile.random.choice(words)),
            request(*(hostile.random.choice(words) for _ in range(4))),
            good[: hostile.random.randrange(len(good))],
            good + b"\0",
            good * 2,
            reply(),
            b"",
            hostile.random.randbytes(hostile.random.randrange(64)),
            bytes(hostile.random.randrange(60_000)),
        )
    )


def join(hostile: Hostile) -> socket.socket:
    """Joins as an honest process does; remembers the slot and the bell."""
    connection = connected(hostile)
    slot, generation = hostile.joined or (0xFFFF, 0)
    connection.send(request(slot=slot, generation=generation))
    text, descriptors, *_ = socket.recv_fds(connection, 4096, 4)
    if text:
        answer = answered(text)
        if answer.error == 0:
            hostile.joined = answer.slot, answer.generation
    for descriptor in descriptors:
        hostile.bell = hostile.hold(descriptor)
    return connection


def joins(hostile: Hostile) -> None:
    join(hostile)


# Descriptors.


LINGERING: list[int] = []
"""Never closed explicitly, as the close would block; the end of the process does not."""


def tcp() -> int:
    """A socket with unsent data that nobody reads, whose last close waits for it."""
    if len(LINGERING) == 8:
        return os.dup(LINGERING[0])
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        for _ in range(64):
            sender.send(bytes(1 << 16))
    listener.detach()
    LINGERING.append(sender.detach())
    return os.dup(LINGERING[-1])


def nested() -> int:
    """A socket with a socket in its queue, which has another in its queue, eight levels deep."""
    inner = os.open(os.devnull, os.O_RDONLY)
    for _ in range(8):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ours:
            socket.send_fds(ours, [b"x"], [inner, theirs.fileno()])
        os.close(inner)
        inner = theirs.detach()
    return inner


def epoll() -> int:
    """An epoll descriptor that watches another epoll descriptor."""
    one, other = select.epoll(), select.epoll()
    one.register(other.fileno())
    return os.dup(one.fileno())


def io_uring() -> int:
    descriptor = libc.syscall(425, 8, ctypes.create_string_buffer(120))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "io_uring_setup")
    return int(descriptor)


def userfault() -> int:
    descriptor = libc.syscall(323, os.O_CLOEXEC | os.O_NONBLOCK | 1)  # user mode only
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    return int(descriptor)


KINDS: tuple[Callable[[], int], ...] = (
    lambda: os.open(__file__, os.O_RDONLY),
    lambda: os.open("/", os.O_PATH),
    lambda: os.open("/proc/self/maps", os.O_RDONLY),
    lambda: os.pipe()[0],
    lambda: os.eventfd(0),
    lambda: os.memfd_create("x"),
    lambda: os.pidfd_open(os.getpid()),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach(),
    epoll,
    io_uring,
    userfault,
    tcp,
    nested,
)


def descriptor(hostile: Hostile) -> int:
    return int(hostile.hold(hostile.random.choice(KINDS)()))


def send(hostile: Hostile, connection: socket.socket) -> None:
    """Sends one message, with or without descriptors; the kernel may refuse them."""
    answer, rights = message(hostile), array.array("i")
    if hostile.random.random() < 0.5:
        with contextlib.suppress(OSError):
            rights.extend([descriptor(hostile)] * hostile.random.choice((1, 2, 7, 253)))
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
    try:
        connection.sendmsg([answer], ancillary)
    except PermissionError:
        connection.send(answer)


def conversation(hostile: Hostile) -> None:
    """Sends messages, perhaps after a join, then closes, shuts down, reads in part, or never reads."""
    connection = join(hostile) if hostile.random.random() < 0.3 else connected(hostile)
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        for _ in range(hostile.random.randint(1, 5)):
            send(hostile, connection)
    match hostile.random.randrange(5):
        case 0:
            connection.close()
        case 1:
            connection.shutdown(hostile.random.choice((socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR)))
        case 2:
            with contextlib.suppress(OSError):
                connection.recv(hostile.random.choice((1, 16, 4096)))
        case 3:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)


def silence(hostile: Hostile) -> None:
    for _ in range(hostile.count(1, 40)):
        connected(hostile)


def flood(hostile: Hostile) -> None:
    """Connections that send a request and close without waiting for the answer."""
    for _ in range(hostile.count(10, 100)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(2)
            one.connect(str(hostile.directory / "grant.sock"))
            one.send(request())


def talk(hostile: Hostile) -> None:
    """Sends requests on a joined connection until its queue is full."""
    connection = join(hostile)
    connection.setblocking(False)
    for _ in range(hostile.count(10, 1000)):
        connection.send(request())


def wrong_kind(hostile: Hostile) -> None:
    """Connects a stream to the grant's SOCK_SEQPACKET socket, and sends a join request to the node's socket."""
    with contextlib.suppress(OSError):
        connected(hostile, socket.SOCK_STREAM)
    node = hostile.hold(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    node.settimeout(2)
    node.connect(str(hostile.socket_path))
    with contextlib.suppress(PermissionError):
        socket.send_fds(node, [request()], [descriptor(hostile)])


def ring(hostile: Hostile) -> None:
    """Rings the bell in a loop; sometimes tries to fill its counter."""
    if hostile.bell is None:
        join(hostile)
    if hostile.bell is None:
        raise ValueError("refused")
    os.set_blocking(hostile.bell, False)
    for _ in range(hostile.count(1000, 5000)):
        os.eventfd_write(hostile.bell, 1)
    if hostile.random.random() < 0.2:
        os.eventfd_write(hostile.bell, 0xFFFFFFFFFFFFFFFE)


def hang_up(hostile: Hostile) -> None:
    """Closes everything that attacks left open, at once."""
    while hostile.held:
        thing = hostile.held.pop()
        with contextlib.suppress(OSError):
            thing.close() if hasattr(thing, "close") else os.close(thing)
    hostile.bell = None


MENU: dict[str, Callable[[Hostile], None]] = {
    attack.__name__: attack for attack in (joins, conversation, silence, flood, talk, wrong_kind, ring, hang_up)
}
