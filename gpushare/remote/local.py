"""The relay on the program's machine: takes connections of this user's programs on loopback, and joins each to one to
the node's relay."""

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpushare.errors import UnreachableError
from gpushare.relay.loop import IN, Loop
from gpushare.relay.opening import Opening
from gpushare.relay.splice import Splice
from gpushare.relay.streams import Plain
from gpushare.relay.wire import Purpose
from gpushare.remote.containers.offering import connection
from gpushare.remote.control import Held
from gpushare.remote.far import Far
from gpushare.remote.owners import owner

HOST = "127.0.0.1"
_WAITING_MAX = 128
"""Connections that wait to be accepted."""
_ANSWER_SECONDS = 30.0
"""Longer than an opening may take."""
_WHY = {
    "lost": "nothing was heard over it for too long",
    "server": "the carrier's server there has ended",
    "released": "its grant there was released",
    "relay": "the relay there has ended",
    "gone": "its connection broke",
}

Opened = Callable[[Plain | None, str], None]
"""Called with the stream and an empty text, or with the reason why there is none."""


class Local:
    """`port`: where programs connect to, on HOST. `over`: set when the attachment has ended by itself. It works in a
    thread of its own between `start` and `pause`; its methods belong to the thread that made it."""

    def __init__(self, far: Far, heard: Callable[[str], None], lost: str) -> None:
        """`heard`: called in its own thread with each line for the program's user. `lost`: what programs notice when
        the link is gone, for such a line."""
        self._loop, self._far, self._heard, self._lost = Loop(), far, heard, lost
        self._thread: threading.Thread | None = None
        self._paused = False
        self._held: Held | None = None
        self._splices: set[Splice] = set()
        self._openings: dict[Opening, Opened] = {}
        self._up = self._down = 0
        self.over = threading.Event()
        self._closed = False
        self._listener = _listener()
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._loop.watch(self._listener.fileno(), IN, self._accept)

    # For the caller.

    def start(self) -> None:
        """Begins or goes on with its work."""
        self._paused = False
        self._thread = threading.Thread(target=self._run, name="client relay", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Ends its thread, so that this process may fork; connections stay."""
        if self._thread is not None:
            self._loop.call(self._pause)
            self._thread.join()
            self._thread = None

    def attach(self) -> None:
        """Opens the connection for control; it works already. Raises UnreachableError."""
        self._await(lambda answer: self._open(Purpose.CONTROL, lambda stream, why: answer(self._attached(stream, why))))

    def checking(self) -> socket.socket:
        """Returns a connection for a link check, which takes the way of the programs' own. Raises UnreachableError."""
        mine, theirs = _pair()

        def joined(stream: Plain | None, why: str) -> str:
            self._join(theirs, stream, counted=False)
            return why

        try:
            self._await(lambda answer: self._open(Purpose.CHECK, lambda stream, why: answer(joined(stream, why))))
        except UnreachableError:
            mine.close()
            raise
        return mine

    def report(self, found: dict[str, Any]) -> None:
        """Tells the node's relay what a link check found. `found`: a LinkReport in JSON."""
        self._loop.call(lambda: self._held.report(found) if self._held is not None else None)

    @contextlib.contextmanager
    def serving(self, channel: socket.socket) -> Iterator[None]:
        """Takes connections of containers' programs inside `with`, too. `channel`: of their offer; it works already."""
        channel.setblocking(False)
        self._loop.call(lambda: self._loop.watch(channel.fileno(), IN, lambda _: self._receive(channel)))
        try:
            yield
        finally:

            def forget(answer: Callable[[str], None]) -> None:
                self._loop.forget(channel.fileno())
                answer("")

            self._await(forget)

    def moved(self) -> tuple[int, int]:
        """Bytes that programs have sent and got, once this is closed."""
        return self._up, self._down

    def close(self) -> None:
        """Ends the attachment, with all connections. Harmless afterwards."""
        if self._closed:
            return
        self._closed = True
        if (held := self._held) is not None:
            if self._thread is None:
                self.start()
            with contextlib.suppress(UnreachableError):
                self._await(lambda answer: held.part(lambda: answer("")))
        self.pause()
        self._cut()
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        self._loop.close()

    def _await(self, ask: Callable[[Callable[[str], None]], object]) -> None:
        """Returns once the loop has answered without a reason. Raises UnreachableError with the reason."""
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()

        def begin() -> None:
            ask(answers.put)

        self._loop.call(begin)
        try:
            why = answers.get(timeout=_ANSWER_SECONDS)
        except queue.Empty:
            why = "it does not answer"
        if why:
            raise self._far.unreachable(why)

    # The loop's thread.

    def _run(self) -> None:
        while not self._paused:
            self._loop.turn(None)

    def _pause(self) -> None:
        self._paused = True

    def _open(self, purpose: Purpose, done: Opened) -> None:
        far = self._far

        def opened(stream: Plain | None, why: str) -> None:
            del self._openings[opening]
            done(stream, why)

        opening = Opening(self._loop, far.address, far.context, far.cert_sha256, far.preamble(purpose), opened)
        self._openings[opening] = done

    def _attached(self, stream: Plain | None, why: str) -> str:
        if stream is not None:
            self._held = Held(self._loop, stream, self._heard, self._ended)
        return why

    def _accept(self, _: int) -> None:
        try:
            program, _address = self._listener.accept()
        except OSError:
            return
        try:
            is_own = owner(program) == os.geteuid()
        except OSError:  # it was reset meanwhile, or no descriptor is left to look
            is_own = False
        if is_own:
            self._take(program)
        else:
            program.close()

    def _receive(self, channel: socket.socket) -> None:
        try:
            program = connection(channel)
        except BlockingIOError:
            return
        if program is not None:
            self._take(program)
            return
        self._loop.forget(channel.fileno())
        self._heard("what lets containers use it has ended: new containers cannot")

    def _take(self, program: socket.socket) -> None:
        if self.over.is_set():
            program.close()
        else:
            self._open(Purpose.DATA, lambda stream, why: self._opened(program, stream, why))

    def _opened(self, program: socket.socket, stream: Plain | None, why: str) -> None:
        if stream is None and not self.over.is_set():
            self._heard(f"a connection of a program to {self._far.node} fails: {why}")
        self._join(program, stream)

    def _join(self, program: socket.socket, stream: Plain | None, *, counted: bool = True) -> None:
        if stream is None:
            Plain(program).abort()
            return

        def parted(splice: Splice) -> None:
            self._splices.discard(splice)
            if counted:
                self._up += splice.there
                self._down += splice.back

        self._splices.add(Splice(self._loop, Plain(program), stream, parted))

    def _ended(self, why: str, text: str) -> None:
        """The attachment has ended by itself."""
        self.over.set()
        self._cut()
        reason = text or _WHY.get(why, "it has ended")
        self._heard(f"the link to {self._far.node} is gone: {reason}: {self._lost}")

    def _cut(self) -> None:
        for opening, done in self._openings.items():
            opening.cancel()
            done(None, "the attachment has ended")
        self._openings.clear()
        for splice in tuple(self._splices):
            splice.close()


def _listener() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((HOST, 0))
    listener.listen(_WAITING_MAX)
    return listener


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection on loopback: a socket pair of another kind would take another way."""
    with _listener() as listener:
        mine = socket.create_connection(listener.getsockname())
        while True:
            theirs, address = listener.accept()
            if address == mine.getsockname():
                mine.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return mine, theirs
            theirs.close()
