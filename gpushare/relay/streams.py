"""Non-blocking ends of a TCP connection, with TLS or without, of one form for who joins them.

TLS runs over memory, not over the socket: then what was read from the socket is decrypted to its end before a
close_notify is sent, where OpenSSL would drop what arrives meanwhile; and many records go with one system call.
"""

import contextlib
import hashlib
import socket
import ssl
import struct
import threading

from gpushare.relay import tcp

CHUNK = 256 << 10
"""Most bytes read from a connection at once."""
_RECORD = 16 << 10
"""Most bytes of one TLS record."""
_UNSENT_MAX = 4 * CHUNK
"""Only answers of TLS itself are added to what is unsent, without end if nothing is read there."""


class _Buffers(threading.local):
    """What a thread read last: of whichever stream, since each is passed on, or copied, before the next is read."""

    def __init__(self) -> None:
        self.received = memoryview(bytearray(CHUNK))
        self.decrypted = memoryview(bytearray(CHUNK + 2 * _RECORD))


_buffers = _Buffers()

Data = memoryview | bytes


class Plain:
    """A TCP connection as it is. Owns the socket.

    Where a method raises OSError (ssl.SSLError is one), the connection is of no more use, and is to be aborted.
    `unsent`: what the kernel has not taken yet. While there is something, `flush` is due when the socket is writable,
    and nothing more should be put. `over`: the other end has ended its half: nothing more comes. `received`: bytes so
    far. `rest`: what came behind the part that was meant for a former owner of the stream; to be handled first.
    `prompt`: what comes is acknowledged at once, so that the other end measures round trips of the network alone.
    """

    prompt = False

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.unsent: bytes = b""
        self.over = False
        self.received = 0
        self.rest: bytes = b""
        self._ended = False

    def fileno(self) -> int:
        """Of its socket, to be watched. -1: it is closed."""
        return self.socket.fileno()

    def take(self, most: int = CHUNK) -> Data:
        """Returns what has come, valid until this thread's next `take`; with the last of it, `over` is set. `most`:
        bytes to read from the socket."""
        try:
            received = _buffers.received
            count = self.socket.recv_into(received, min(most, CHUNK))
        except BlockingIOError:
            return b""
        self.over = not count
        self.received += count
        if self.prompt:
            tcp.acknowledge(self.socket)
        return received[:count]

    def put(self, data: Data) -> None:
        """Sends this after what is unsent. Keeps a copy of what the kernel does not take."""
        if self.unsent:
            if len(self.unsent) > _UNSENT_MAX:
                raise ConnectionError("the other end asks without reading")
            self.unsent += data
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent != len(data):
            self.unsent = bytes(data[sent:])

    def flush(self) -> None:
        """Sends what is unsent, or a part of it."""
        if self.unsent:
            data, self.unsent = self.unsent, b""
            Plain.put(self, data)
        if self._ended and not self.unsent:
            with contextlib.suppress(OSError):  # the other end has gone
                self.socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Ends this half, after what is unsent: nothing more may be put. What comes can still be taken."""
        self._ended = True
        self.flush()

    def close(self) -> None:
        """Closes it: what is unsent is lost. Harmless afterwards."""
        self.socket.close()

    def abort(self) -> None:
        """Closes it so that the other end sees that it was cut (RST). Never fails; harmless after `close`."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Tls(Plain):
    """TLS over a TCP connection. Nothing may be put, nor the half be ended, before it is `established`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        """The server's end waits for the client's first message. The client's begins with `shake`."""
        super().__init__(sock)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server)
        self.established = False

    def certificate_sha256(self) -> bytes:
        """32 bytes: of the other end's certificate (DER), once this is established. Raises OSError if it has none."""
        certificate = self._tls.getpeercert(binary_form=True)
        if not certificate:
            raise ssl.SSLError("the other end has no certificate")
        return hashlib.sha256(certificate).digest()

    def shake(self) -> None:
        """Does what can be done of the handshake now."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self.established = True
        self._send()

    def take(self, most: int = CHUNK) -> Data:
        """As Plain's; goes on with the handshake first."""
        data = super().take(most)
        if self.over:
            # Without close_notify it may be an end that somebody on the way has made.
            raise ssl.SSLEOFError("the connection ended inside TLS")
        if not data:
            return data
        self._in.write(data)
        if not self.established:
            self.shake()
        return self._decrypt() if self.established else b""

    def _decrypt(self) -> Data:
        read, incoming, decrypted = self._tls.read, self._in, _buffers.decrypted
        count = 0
        while incoming.pending:
            try:
                got = int(read(_RECORD, decrypted[count:]))
            except ssl.SSLWantReadError:  # a part of a record
                break
            except ssl.SSLZeroReturnError:  # close_notify, after ours
                got = 0
            if not got:
                self.over = True
                break
            count += got
        if self._out.pending:  # an answer to a change of keys
            self._send()
        return decrypted[:count]

    def put(self, data: Data) -> None:
        """As Plain's."""
        written = 0
        while written < len(data):
            written += self._tls.write(data[written:])
        self._send()

    def end(self) -> None:
        """As Plain's: sends close_notify."""
        with contextlib.suppress(ssl.SSLError):  # the other end's has not come: unwrap() would have it too
            self._tls.unwrap()
        self._send()
        super().end()

    def _send(self) -> None:
        if self._out.pending:
            super().put(self._out.read())
