"""A client's connection to a relay, up to where the relay has taken it."""

import errno
import os
import socket
import ssl
from collections.abc import Callable

from gpushare.relay import tcp, wire
from gpushare.relay.loop import IN, OUT, Loop
from gpushare.relay.streams import Plain, Tls

_REFUSED = "the relay has refused the ticket"

Done = Callable[[Plain | None, str], None]


class Opening:
    """Connects, makes sure of the relay's certificate, and shows the ticket, without blocking."""

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        context: ssl.SSLContext | None,
        cert_sha256: bytes,
        preamble: wire.Preamble,
        done: Done,
        *,
        seconds: float = wire.PREAMBLE_SECONDS,
        silent_seconds: float = wire.SILENT_SECONDS,
    ) -> None:
        """`address`: an IP address and port. `context`: of `certificate.client_context`; None: no TLS. `cert_sha256`:
        32 bytes that the relay's certificate must have.

        `done` is called once, not from here: with the stream, which is then the caller's and watched by nobody, and ""
        or with None and the reason, for people. Nothing of the ticket is sent to a relay with another certificate.
        `seconds`: for all of it. `silent_seconds`: after which the kernel gives a silent relay up.
        """
        self._loop, self._cert_sha256, self._preamble, self._done = loop, cert_sha256, preamble, done
        self._silent_seconds = silent_seconds
        self._stream: Plain | None = None
        self._shown = self._over = False
        self._timer = loop.after(seconds, lambda: self._fail("the relay does not answer"))
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            self._stream = Plain(sock) if context is None else Tls(sock, context, server=False)
            tcp.prepare(sock, silent_seconds)
            error = sock.connect_ex(address)
        except OSError as failed:
            error = failed.errno or errno.EIO
        if error not in (0, errno.EINPROGRESS):
            loop.after(0, lambda: self._fail(os.strerror(error)))
        else:
            loop.watch(sock.fileno(), OUT, self._connected)

    def cancel(self) -> None:
        """Closes it; `done` is not called. Harmless once it was."""
        if not self._over:
            self._end()
            if self._stream is not None:
                self._stream.abort()

    def _connected(self, _: int) -> None:
        stream = self._stream
        assert stream is not None
        error = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._fail(os.strerror(error))
            return
        try:
            if isinstance(stream, Tls):
                stream.shake()
            else:
                self._show(stream)
        except OSError as failed:
            self._fail(self._why(failed))
            return
        self._loop.watch(stream.fileno(), IN | OUT if stream.unsent else IN, self._happened)

    def _happened(self, events: int) -> None:
        stream = self._stream
        assert stream is not None
        try:
            if events & OUT:
                stream.flush()
            # One byte: what follows is for whoever gets the stream. TLS hands over what one record has.
            taken = bytes(stream.take(1 if not isinstance(stream, Tls) else 1 << 14)) if events & ~OUT else b""
            if isinstance(stream, Tls) and stream.established and not self._shown:
                if not wire.same(stream.certificate_sha256(), self._cert_sha256):
                    self._fail("the relay has another certificate than the node has told")
                    return
                self._show(stream)
        except OSError as failed:
            self._fail(self._why(failed))
            return
        if taken[:1] == wire.TAKEN and self._shown:
            self._succeed(stream, taken[1:])
        elif taken or stream.over:
            self._fail(_REFUSED)
        else:
            self._loop.watch(stream.fileno(), IN | OUT if stream.unsent else IN, self._happened)

    def _show(self, stream: Plain) -> None:
        self._shown = True
        stream.put(self._preamble.pack())

    def _succeed(self, stream: Plain, rest: bytes) -> None:
        self._end()
        if self._preamble.purpose is wire.Purpose.CONTROL:
            stream.prompt = True
        else:
            tcp.prepare_data(stream.socket, self._silent_seconds)
        stream.rest = rest
        self._done(stream, "")

    def _why(self, error: OSError) -> str:
        if isinstance(error, (ssl.SSLEOFError, ConnectionResetError, BrokenPipeError)):
            return _REFUSED if self._shown else "the relay has closed the connection"
        if isinstance(error, ssl.SSLError):
            return f"no TLS with the relay: {error.reason or error}"
        return error.strerror or str(error)

    def _fail(self, reason: str) -> None:
        if not self._over:
            self._end()
            if self._stream is not None:
                self._stream.abort()
            self._done(None, reason)

    def _end(self) -> None:
        self._over = True
        self._timer.cancel()
        if self._stream is not None:
            self._loop.forget(self._stream.fileno())
