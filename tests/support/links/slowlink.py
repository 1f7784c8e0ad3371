"""A network link between two TCP addresses, slower than this machine's: each byte comes later by a delay, no faster
than a rate, and the link can be cut. For tests, since not every kernel has netem.

As a process of its own, controlled by a test:

    with SlowLink(("127.0.0.1", port), delay=0.0005, rate=10e9) as link:
        connect(link.address)
        link.cut(); link.mend()

or by hand, with commands as lines on its stdin: `python slowlink.py 127.0.0.1:0 127.0.0.1:7433 0.0005 10e9`.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from types import TracebackType

Address = tuple[str, int]

_HELD = 16 << 20
"""Most bytes on the way in one direction of one connection."""
_SPIN = 80e-6
"""The last part of a delay is spun away: a timer of the kernel is that late."""
_CHUNK = 64 << 10
_PIECE_SECONDS = 200e-6
"""A rate lets bytes through in pieces of about this much time."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Alarm:
    """A timerfd: epoll's own timeout is of whole milliseconds."""

    def __init__(self) -> None:
        self.descriptor = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def at(self, moment: float | None) -> None:
        """Rings at this time of the monotonic clock; None: not at all."""
        nanoseconds = 0 if moment is None else max(1, int(moment * 1e9))
        when = struct.pack("qqqq", 0, 0, nanoseconds // 10**9, nanoseconds % 10**9)
        _libc.timerfd_settime(self.descriptor, 1, when, None)  # TFD_TIMER_ABSTIME

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.descriptor, 8)


class _Way:
    """One direction of one connection: what has left `source` and is not at `sink` yet."""

    def __init__(self, wire: "Wire", source: socket.socket, sink: socket.socket) -> None:
        self.wire, self.source, self.sink = wire, source, sink
        self.queue: deque[tuple[float, bytes]] = deque()
        self.held = 0
        self.free_at = 0.0
        """When the link has sent what it was given."""
        self.over = self.ended = self.stuck = False

    def read(self) -> None:
        """Takes what `source` has sent."""
        piece = _CHUNK if not self.wire.rate else int(min(_CHUNK, max(1500, self.wire.rate / 8 * _PIECE_SECONDS)))
        try:
            data = self.source.recv(piece)
        except BlockingIOError:
            return
        now = time.monotonic()
        self.free_at = max(now, self.free_at) + (len(data) * 8 / self.wire.rate if self.wire.rate else 0)
        self.queue.append((self.free_at + self.wire.delay, data))
        self.held += len(data)
        self.over = not data

    def deliver(self, now: float) -> None:
        """Passes on what is due."""
        self.stuck = False
        while self.queue and self.queue[0][0] <= now:
            due, data = self.queue[0]
            if not data:
                self.queue.popleft()
                self.ended = True
                if not self.wire.half_open:
                    with contextlib.suppress(OSError):
                        self.sink.shutdown(socket.SHUT_WR)
                return
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                sent = 0
            self.held -= sent
            if sent == len(data):
                self.queue.popleft()
            else:
                self.queue[0] = (due, data[sent:])
                self.stuck = True
                return


class _Both:
    """One connection through the link."""

    def __init__(self, wire: "Wire", near: socket.socket, far: socket.socket) -> None:
        self.ways = (_Way(wire, near, far), _Way(wire, far, near))
        self.ends = (near, far)
        self.events = {near: -1, far: -1}

    def close(self, broken: bool) -> None:
        for end in self.ends:
            with contextlib.suppress(OSError):
                if broken:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


class Wire:
    """The link itself. `serve` runs in any process or thread; commands come over a socket or pipe, a line each:
    `cut`, `mend`, `half-open 0|1`, `delay SECONDS`, `rate BITS_PER_SECOND`. Each is answered by a line: `ok`, and how
    many connections there are."""

    def __init__(self, listener: socket.socket, to: Address, delay: float = 0.0, rate: float = 0.0) -> None:
        self._listener, self._to = listener, to
        self.delay, self.rate = delay, rate
        self.half_open = self._is_cut = False
        self._poll = select.epoll()
        self._alarm = _Alarm()
        self._by_end: dict[int, _Both] = {}
        listener.setblocking(False)
        self._poll.register(listener, select.EPOLLIN)
        self._poll.register(self._alarm.descriptor, select.EPOLLIN)

    def serve(self, commands: int, answers: int) -> None:
        """Until `commands` ends. Both are descriptors."""
        self._poll.register(commands, select.EPOLLIN)
        soonest: float | None = None
        while True:
            spin = soonest is not None and soonest - time.monotonic() <= _SPIN
            self._alarm.at(None if spin or soonest is None else soonest - _SPIN)
            for descriptor, events in self._poll.poll(0 if spin else None):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif descriptor == self._alarm.descriptor:
                    self._alarm.silence()
                elif descriptor != commands:
                    self._happened(descriptor, events)
                elif not self._command(os.read(commands, 4096).decode(), answers):
                    break
            else:
                soonest = self._deliver()
                continue
            break
        for both in set(self._by_end.values()):
            both.close(broken=True)
        self._listener.close()

    def _command(self, text: str, answers: int) -> bool:
        for line in text.splitlines():
            match line.split():
                case ["cut"]:
                    self._is_cut = True
                case ["mend"]:
                    self._is_cut = False
                case ["half-open", value]:
                    self.half_open = value == "1"
                case ["delay", value]:
                    self.delay = float(value)
                case ["rate", value]:
                    self.rate = float(value)
            self._poll.modify(self._listener, 0 if self._is_cut else select.EPOLLIN)
            for both in set(self._by_end.values()):
                self._watch(both)
            os.write(answers, f"ok {len(set(self._by_end.values()))}\n".encode())
        return bool(text)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._to, timeout=10)
        except OSError:
            near.close()
            return
        both = _Both(self, near, far)
        for end in both.ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
            self._by_end[end.fileno()] = both
        self._watch(both)

    def _happened(self, descriptor: int, events: int) -> None:
        both = self._by_end.get(descriptor)
        if both is None:
            return
        try:
            for way in both.ways:
                if way.source.fileno() == descriptor and events & ~select.EPOLLOUT and not way.over:
                    way.read()
        except OSError:
            self._break(both, descriptor)

    def _break(self, both: _Both, descriptor: int) -> None:
        """One end was reset, which is passed on unless the link hides it."""
        if not self.half_open:
            self._drop(both, broken=True)
            return
        for way in both.ways:
            if way.source.fileno() == descriptor:
                way.over = True
            else:
                way.ended = True
                way.queue.clear()
        self._watch(both)

    def _deliver(self) -> float | None:
        """Passes on what is due everywhere. Returns when something is again."""
        if self._is_cut:
            return None
        soonest = None
        for both in set(self._by_end.values()):
            try:
                now = time.monotonic()
                for way in both.ways:
                    way.deliver(now)
                    if way.queue and not way.stuck and (soonest is None or way.queue[0][0] < soonest):
                        soonest = way.queue[0][0]
            except OSError:
                self._break(both, way.sink.fileno())
                continue
            if all(way.ended for way in both.ways) and not self.half_open:
                self._drop(both, broken=False)
            else:
                self._watch(both)
        return soonest

    def _watch(self, both: _Both) -> None:
        for out, back in (both.ways, both.ways[::-1]):
            events = 0
            if not self._is_cut:
                events = select.EPOLLIN if not out.over and out.held < _HELD else 0
                events |= select.EPOLLOUT if back.stuck else 0
            before, both.events[out.source] = both.events[out.source], events
            if before == events:
                continue
            if before > 0:
                self._poll.unregister(out.source)  # with no events it would still tell of errors, which a cut hides
            if events:
                self._poll.register(out.source, events)

    def _drop(self, both: _Both, *, broken: bool) -> None:
        for end in both.ends:
            if both.events[end] > 0:
                self._poll.unregister(end)
            del self._by_end[end.fileno()]
        both.close(broken)


class SlowLink:
    """A link in a process of its own. `delay`: seconds, each way; `rate`: bits per second, each way; 0: all there is.
    `address`: where it takes connections for `to`. `prefix`: command that starts it elsewhere, as in a network
    namespace: `("nsenter", "--net=/run/netns/NAME")`."""

    def __init__(
        self,
        to: Address,
        *,
        delay: float = 0.0,
        rate: float = 0.0,
        listen: Address = ("127.0.0.1", 0),
        prefix: tuple[str, ...] = (),
    ) -> None:
        words = (f"{listen[0]}:{listen[1]}", f"{to[0]}:{to[1]}", str(delay), str(rate))
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-I", __file__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        host, _, port = self._answer().rpartition(":")
        self.address: Address = (host, int(port))

    def cut(self) -> None:
        """Nothing goes through any more, and no end is told. New connections wait."""
        self._tell("cut")

    def mend(self) -> None:
        """Everything goes on, beginning with what was on the way."""
        self._tell("mend")

    def half_open(self, on: bool = True) -> None:
        """The ends of connections are not passed on, as from a machine that lost its power."""
        self._tell(f"half-open {int(on)}")

    def delay(self, seconds: float) -> None:
        """Each way, from now on."""
        self._tell(f"delay {seconds}")

    def rate(self, bits_per_second: float) -> None:
        """Each way, from now on; 0: all there is."""
        self._tell(f"rate {bits_per_second}")

    def connections(self) -> int:
        """How many go through it."""
        return self._tell("count")

    def close(self) -> None:
        """Ends it, and cuts its connections."""
        with self._process as process:
            process.stdin.close()
            process.wait(10)

    def __enter__(self) -> "SlowLink":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, line: str) -> int:
        self._process.stdin.write(line + "\n")
        return int(self._answer().split()[1])

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the slow link has ended")
        return line.strip()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """See the module."""
    listen, to, delay, rate = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the test's processes too
    listener = socket.create_server(_address(listen), backlog=256)
    host, port = listener.getsockname()[:2]
    print(f"{host}:{port}", flush=True)
    Wire(listener, _address(to), float(delay), float(rate)).serve(0, 1)


if __name__ == "__main__":
    main()
