"""The HTTP server. Anyone who reaches its address may ask, so a connection gets one answer and limited time."""

import asyncio
import contextlib
import logging
import time

from gpushare.adapters.prometheus import dcgm
from gpushare.client import Client
from gpushare.errors import GpushareError

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
HEADER_MAX = 8 << 10
CONNECTION_SECONDS = 10.0
"""Maximum time from connecting until the answer has been read."""
ANSWER_SECONDS = 1.0
"""How long an answer is reused, so that any number of clients cause one query of the daemon."""
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def request_of(header: bytes) -> tuple[int, str]:
    """Checks the request line; returns the status to answer with, and the reason if it is not 200."""
    words = header.split(b"\r\n", 1)[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return 400, "this is no HTTP request"
    if words[1].split(b"?", 1)[0] != b"/metrics":
        return 404, "there is /metrics here and nothing else"
    if words[0] != b"GET":
        return 405, "/metrics is read with GET"
    return 200, ""


def answer(status: int, text: str) -> bytes:
    """Returns a whole HTTP response."""
    words = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
    body = text.encode()
    allow = "Allow: GET\r\n" if status == 405 else ""
    return (
        f"HTTP/1.1 {status} {words[status]}\r\nContent-Type: {_TEXT}\r\nContent-Length: {len(body)}\r\n"
        f"X-Content-Type-Options: nosniff\r\n{allow}Connection: close\r\n\r\n"
    ).encode() + body


class Server:
    """Serves one daemon's metrics."""

    def __init__(self, client: Client, dcgm: dcgm.Names | None = None) -> None:
        """`dcgm`: adds metrics under dcgm-exporter's names; None: none."""
        self._client, self._dcgm = client, dcgm
        self._open: dict[asyncio.StreamWriter, None] = {}
        """Connections that are being answered."""
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        """Connections whose requests are not there yet, in order of arrival."""
        self._asked: asyncio.Task[tuple[float, bytes]] | None = None

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Starts listening. Raises OSError."""
        if self._dcgm is not None:
            await asyncio.to_thread(self._read_first, self._dcgm)
        return await asyncio.start_server(self._serve, host, port, limit=HEADER_MAX, backlog=CONNECTIONS_MAX)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._waiting) + len(self._open) >= CONNECTIONS_MAX:
            self._make_room()
        self._waiting[writer] = None
        try:
            async with asyncio.timeout(CONNECTION_SECONDS):
                header = await _header(reader)
                if writer in self._waiting:
                    del self._waiting[writer]
                    self._open[writer] = None
                    writer.write(await self._answer(header))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError):
            pass
        finally:
            for connections in (self._waiting, self._open):
                connections.pop(writer, None)
            writer.transport.abort()

    def _make_room(self) -> None:
        """Closes the oldest connection, of those without a request if there are any: a client that opens many and asks
        nothing closes its own."""
        connections = self._waiting or self._open
        oldest = next(iter(connections))
        del connections[oldest]
        oldest.transport.abort()

    async def _answer(self, header: bytes) -> bytes:
        status, why = request_of(header)
        if status != 200:
            return answer(status, why + "\n")
        asked = self._asked
        if asked is None or (asked.done() and time.monotonic() - asked.result()[0] > ANSWER_SECONDS):
            asked = self._asked = asyncio.create_task(self._ask())
        # shield: the query continues if this client gives up; the next client gets its answer without a second query.
        return (await asyncio.shield(asked))[1]

    def _read_first(self, names: dcgm.Names) -> None:
        """Takes an initial reading, so that the first scrape has differences."""
        with contextlib.suppress(GpushareError):
            names.text(self._client.text("/metrics"), ())

    async def _ask(self) -> tuple[float, bytes]:
        """Returns an answer and its time. Never raises: a failure is not the answer to later requests."""
        try:
            found = answer(200, await asyncio.to_thread(self._text))
        except GpushareError as error:
            log.warning("%s", error)
            found = answer(503, f"{error}\n")
        except Exception as error:  # no thread can be started, or the daemon is of another version
            log.exception("the daemon's metrics are not known")
            found = answer(503, f"the adapter could not ask the daemon ({error!r}): its log says more\n")
        return time.monotonic(), found

    def _text(self) -> str:
        text = self._client.text("/metrics")
        return text if self._dcgm is None else text + self._dcgm.text(text, self._client.devices())


async def _header(reader: asyncio.StreamReader) -> bytes:
    """Reads up to the empty line; returns nothing if the request ends before it or is too long."""
    with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return await reader.readuntil(b"\r\n\r\n")
    return b""
