"""Requests and answers of the node API: what is accepted, how it is read, and how failures are answered."""

import asyncio
import contextlib
import itertools
import logging
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from gpushare.daemon.host.peer import Peer
from gpushare.daemon.http.reception import Connection, refusal
from gpushare.daemon.http.route import Route
from gpushare.errors import FailedError, GpushareError, MethodError, NotFoundError, UsageError
from gpushare.text import names

BODY = web.RequestKey("body", bytearray)

log = logging.getLogger(__name__)

T = TypeVar("T")


def json_answer(value: Any, status: int = 200) -> web.Response:
    """Any value as JSON."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def socket_of(request: web.Request) -> Any:
    """The socket that the request came over. Raises UsageError where it is gone."""
    if request.transport is None:
        raise UsageError("the connection is gone")
    return request.transport.get_extra_info("socket")


def connection_of(request: web.Request) -> Connection:
    """The connection that serves the request."""
    assert isinstance(request.protocol, Connection)
    return request.protocol


def peer_of(request: web.Request) -> Peer:
    """The peer that sent the request."""
    return connection_of(request).peer


def check_there(request: web.Request) -> None:
    """To be called before a request makes a grant. Raises ConnectionResetError where nobody waits for its answer any
    more: a grant that nobody hears of would stay."""
    if connection_of(request).gone:
        connection_of(request).force_close()
        raise ConnectionResetError


def decoded(request: web.Request, kind: type[T]) -> T:
    """Decodes the request's body, once only. Raises UsageError that says where it is not a `kind`."""
    try:
        return msgspec.json.decode(request.pop(BODY), type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise UsageError(f"the request's body is not what {request.path} takes: {error}") from None
    except RecursionError:
        raise UsageError(f"the request's body is nested deeper than {request.path} takes") from None


def has_field(request: web.Request, name: str) -> bool:
    """Whether the request's body is an object with this field; `decoded` reports any other body."""
    try:
        return name in msgspec.json.decode(request[BODY], type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False


async def read_body(request: web.Request, limit: int, seconds: float) -> bytearray:
    """Reads the request's body, of `limit` bytes at most, in at most so many seconds. Raises UsageError."""
    too_large = UsageError(f"the request's body is larger than {limit} bytes")
    if (request.content_length or 0) > limit:
        raise too_large
    if "Transfer-Encoding" in request.headers:
        # One-byte chunks cost a hundred times what they carry.
        connection_of(request).do_not_linger()
        raise UsageError("the request's body is in chunks: send it with a Content-Length")
    if "Content-Encoding" in request.headers:
        raise UsageError("the request's body has a Content-Encoding: send it as it is")
    body = bytearray()
    if request.content.is_eof():  # all of it came with the header
        body += request.content.read_nowait()
        if len(body) > limit:
            raise too_large
        return body
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise UsageError(f"the request's body did not arrive within {seconds:g} s") from None
    return body


def check_query(request: web.Request, route: Route) -> None:
    """Raises UsageError where the query has what the route does not take, or lacks what it requires."""
    for name in request.query:
        if name not in route.query:
            raise UsageError(f"{request.path} takes no ?{name[:40]}=: GET /openapi.json lists what it takes")
        if len(request.query.getall(name)) > 1:
            raise UsageError(f"{request.path} takes {name} once")
    for name in route.required:
        if not request.query.get(name):
            raise UsageError(f"{request.path} needs ?{name}=")
    for name, schema in route.query.items():
        value = request.query.get(name)
        if value == "":
            raise UsageError(f"{name} is empty: leave it out")
        if value is not None and "enum" in schema and value not in schema["enum"]:
            raise UsageError(f"{value[:40]!r} is no {schema['title']}: {', '.join(schema['enum'])}")


def number(request: web.Request, name: str) -> int | None:
    """A number in the request's query; None: it is not there. Raises UsageError."""
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) >= 1 << 63:
        raise UsageError(f"{name}={text[:40]!r} is not a number")
    return int(text)


def tenant(request: web.Request) -> str | None:
    """The tenant in the request's query, in whichever form it was typed; None: there is none."""
    name = request.query.get("tenant")
    return None if name is None else names.composed(name)


def ascending(request: web.Request, name: str, most: int) -> tuple[int, ...]:
    """Numbers in the request's query with commas between them, each larger than the one before; empty: there are none.
    Raises UsageError."""
    parts = request.query[name].split(",") if name in request.query else []
    for part in parts:
        if not part.isascii() or not part.isdecimal() or len(part) > 19 or int(part) >= 1 << 62:
            raise UsageError(f"{name} is out of range: {part[:40]!r} is not a number below 2^62")
    found = tuple(map(int, parts))
    if len(found) > most or any(one >= other for one, other in itertools.pairwise(found)):
        raise UsageError(f"{name} is out of range: give at most {most} numbers, each larger than the one before")
    return found


def _check_text(request: web.Request) -> None:
    """Checks that headers, and the target with escapes undone, are UTF-8, and that the target has no control
    characters. Raises UsageError."""
    try:
        for _, value in request.raw_headers:
            value.decode()
        path = request.raw_path
        if path.isascii() and path.isprintable() and "%" not in path:
            return
        text = unquote_to_bytes(path.encode()).decode()
    except UnicodeError:
        raise UsageError("the request's target and headers are not UTF-8") from None
    if not text.isprintable() and any(unicodedata.category(character) == "Cc" for character in text):
        raise UsageError("the request's target has control characters")


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Turns every exception of a handler into an answer with the error tree's status and one line."""
    # No error is kept beyond its clause: its traceback and this frame would form a cycle that keeps the body alive.
    try:
        connection_of(request).begins(request)
        _check_text(request)
        return await handler(request)
    except GpushareError as error:
        log.debug("refuse call=%s path=%r code=%s reason=%r", request.method, request.path, error.code, str(error))
        answer = refusal(error)
    except web.HTTPMethodNotAllowed as error:
        answer = refusal(_http_error(request, error), {"Allow": ", ".join(sorted(error.allowed_methods))})
    except web.HTTPException as error:
        answer = refusal(_http_error(request, error))
    except web.RequestPayloadError:
        answer = refusal(UsageError("the request's body does not arrive as its header says"))
    except ConnectionResetError:
        raise  # by the caller: nobody is there to answer
    except Exception:
        log.exception("%s %r", request.method, request.path)
        answer = refusal(FailedError("internal error: the daemon's log says which"))
    await send(request, answer)
    return answer


async def expected(request: web.Request) -> web.Response | None:
    """Answers an `Expect` header: only 100-continue is supported."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return refusal(UsageError("the request expects what is not there: send it without Expect"))
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return None


def _http_error(request: web.Request, error: web.HTTPException) -> GpushareError:
    path = request.path[:80]
    match error:
        case web.HTTPNotFound():
            return NotFoundError(f"no such call: {path}: GET /openapi.json lists them")
        case web.HTTPMethodNotAllowed():
            return MethodError(f"{path} has no {request.method[:10]}: GET /openapi.json lists the calls")
        case _:
            return UsageError(f"{path}: {error.reason}")


async def send(request: web.Request, answer: web.StreamResponse) -> None:
    """Sends the answer; the connection ends if the peer does not read it in time (reception.Connection)."""
    if request.transport is None:
        return  # nobody is there to read it
    with contextlib.suppress(ConnectionError):  # the peer went away, or read too slowly
        await answer.prepare(request)
        await answer.write_eof()
