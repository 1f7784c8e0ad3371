"""An end of an attachment's connection for control: the relay's, or the client's."""

from collections.abc import Callable
from typing import Generic, TypeVar

from gpushare.relay import lines
from gpushare.relay.loop import IN, OUT, Loop
from gpushare.relay.streams import Plain
from gpushare.relay.wire import LINE_MAX

_UNSENT_MAX = 64 << 10
_TAKEN_MAX = 4 * LINE_MAX

Line = TypeVar("Line", lines.FromClient, lines.FromRelay)


class Control(Generic[Line]):
    """Owns the stream. `said` gets the other end's lines; `gone` is called once when the connection has ended by
    itself, with the error, or None where the other end has closed it."""

    def __init__(
        self,
        loop: Loop,
        stream: Plain,
        decode: Callable[[bytes], Line],
        said: Callable[[Line], None],
        gone: Callable[[OSError | None], None],
        greeting: bytes = b"",
    ) -> None:
        """Calls nothing from here. `decode`: of gpushare/relay/lines.py, for the lines of the other end. `greeting`:
        what the other end gets first."""
        self._loop, self._gone = loop, gone
        self._decode: Callable[[bytes], Line] = decode
        self._said: Callable[[Line], None] = said
        self.stream = stream
        stream.prompt = True
        self._splitter = lines.Splitter()
        self._parting = False
        """The last line was sent: nothing is heard any more."""
        self._closed = False
        self._greeting = greeting
        loop.after(0, self._begin)

    def send(self, line: lines.FromRelay | lines.FromClient) -> None:
        """Sends a line, or ends the connection where it cannot take more."""
        if self._parting or self._closed:
            return
        try:
            if len(self.stream.unsent) > _UNSENT_MAX:
                raise TimeoutError("the other end does not read")
            self._put(lines.encode(line))
        except OSError as error:
            self._finish(error)
            return
        self._watch()

    def part(self, line: lines.FromRelay | lines.FromClient, seconds: float, parted: Callable[[], None]) -> None:
        """Sends the last line, and closes the connection when the other end has, at the latest after that time.
        `parted` is called then."""
        self.send(line)
        if self._closed:
            self._loop.after(0, parted)
            return
        self._parting = True
        self._gone = lambda _: parted()
        self._loop.after(seconds, lambda: self._finish(None))
        try:
            self.stream.end()
        except OSError as error:
            self._finish(error)
            return
        self._watch()

    def cut(self) -> None:
        """Closes it at once, without a word to anybody."""
        if not self._closed:
            self._closed = True
            self._loop.forget(self.stream.fileno())
            self.stream.abort()

    def _put(self, data: bytes) -> None:
        data, self._greeting = self._greeting + data, b""
        if data:
            self.stream.put(data)

    def _begin(self) -> None:
        if self._closed:
            return
        try:
            self._put(b"")
        except OSError as error:
            self._finish(error)
            return
        self._hear(self.stream.rest)
        if self.stream.over:
            self._finish(None)
        self._watch()

    def _happened(self, events: int) -> None:
        try:
            if events & OUT:
                self.stream.flush()
            if events & ~OUT:
                self._hear(self.stream.take(_TAKEN_MAX))
        except OSError as error:
            self._finish(error)
            return
        if self.stream.over:
            self._finish(None)
        self._watch()

    def _hear(self, data: bytes | memoryview) -> None:
        try:
            heard = [self._decode(line) for line in self._splitter.feed(data)]
        except ValueError as error:
            self._finish(ConnectionError(str(error)))
            return
        for line in heard:
            if not self._parting and not self._closed:
                self._said(line)

    def _watch(self) -> None:
        if not self._closed:
            self._loop.watch(self.stream.fileno(), IN | OUT if self.stream.unsent else IN, self._happened)

    def _finish(self, error: OSError | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.forget(self.stream.fileno())
        if error is None:
            self.stream.close()
        else:
            self.stream.abort()
        self._gone(error)
