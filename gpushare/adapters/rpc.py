"""gRPC over unix sockets, with messages of gpushare/adapters/messages.py.

A server and a client for the protocols of engines and schedulers. A service is defined by its full name and methods;
messages are dicts, so no code is generated. Needs grpcio, which the extras `kubernetes` and `nomad` bring.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from gpushare.adapters.messages import Table
from gpushare.errors import (
    FailedError,
    ForbiddenError,
    GpushareError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)

log = logging.getLogger(__name__)

_THREADS = 16
_OPTIONS = [("grpc.so_reuseport", 0), ("grpc.enable_http_proxy", 0)]
_SOCKET_NAME_MAX = 107  # bytes, the kernel's limit

_STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (UsageError, grpc.StatusCode.INVALID_ARGUMENT),
    (ForbiddenError, grpc.StatusCode.PERMISSION_DENIED),
    (RefusedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (UnreachableError, grpc.StatusCode.UNAVAILABLE),
    (GpushareError, grpc.StatusCode.INTERNAL),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
)


@dataclass(frozen=True)
class Method:
    """`handler`: takes the request and a function for whether the caller still waits; returns the answer, or for a
    `stream` an iterable of answers. Its GpushareError or ValueError becomes the call's status. `listens`: the
    requests are a stream too, of which the handler gets only the first."""

    request: Table
    answer: Table
    handler: Callable[[dict[str, Any], Callable[[], bool]], Any]
    stream: bool = False
    listens: bool = False


class Server:
    """Services at a unix socket, which replaces one left by a killed server."""

    def __init__(self, path: Path, services: Mapping[str, Mapping[str, Method]], *, threads: int = _THREADS) -> None:
        """Starts serving. Each open stream occupies one of the `threads`. Raises FailedError if it cannot."""
        # gRPC unlinks the path that it was given when it stops, even if that is another server's socket by then: give
        # it a temporary name, and rename.
        made = path.with_name(f".{path.name}")
        if len(os.fsencode(made)) > _SOCKET_NAME_MAX:
            raise FailedError(
                f"{made}: a socket's path has at most {_SOCKET_NAME_MAX} bytes: choose a shorter directory"
            )
        self.path = path
        self._server = grpc.server(ThreadPoolExecutor(threads, thread_name_prefix=path.name), options=_OPTIONS)
        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, {verb: _handler(one) for verb, one in methods.items()})
                for name, methods in services.items()
            )
        )
        try:
            _check_name(path)
            made.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix:{made}")
            made.chmod(0o600)
            self._made = made.stat().st_ino
            self._server.start()
            made.rename(path)
        except (OSError, RuntimeError) as error:
            raise FailedError(f"cannot serve at {path} ({error}): is its directory there, and writable?") from None

    @property
    def there(self) -> bool:
        """Whether callers can still find the socket: it may have been removed or replaced."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_ino == self._made
        return False

    def stop(self, grace: float | None = None) -> None:
        """Stops serving; ends all calls after at most `grace` seconds."""
        if self.there:
            self.path.unlink()
        self._server.stop(grace).wait()


def _check_name(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FailedError(f"{path} is there and is no socket: move it away")


def _handler(method: Method) -> "grpc.RpcMethodHandler[bytes, bytes]":
    def one(request: bytes, context: grpc.ServicerContext) -> bytes:
        with _as_status(context):
            return method.answer.encode(method.handler(method.request.decode(request), context.is_active))
        raise AssertionError("unreachable")

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with _as_status(context):
            answers: Iterable[dict[str, Any]] = method.handler(method.request.decode(request), context.is_active)
            yield from map(method.answer.encode, answers)

    def both(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from stream(next(requests, b""), context)

    if method.listens:
        return grpc.stream_stream_rpc_method_handler(both)
    return grpc.unary_stream_rpc_method_handler(stream) if method.stream else grpc.unary_unary_rpc_method_handler(one)


@contextlib.contextmanager
def _as_status(context: grpc.ServicerContext) -> Iterator[None]:
    """Turns errors into the call's status."""
    try:
        yield
    except (GpushareError, ValueError) as error:
        code = next(code for kind, code in _STATUS if isinstance(error, kind))
        log.info("refused: %s", error)
        context.abort(code, f"gpushare: {error}")


class Caller:
    """Calls the services at a unix socket. Raises UnreachableError if nobody answers, FailedError for a refusal."""

    def __init__(self, path: Path, *, timeout: float = 10.0) -> None:
        self.path, self._timeout = path, timeout
        # Without default_authority gRPC would send the path as authority, which Go servers reject.
        options = [*_OPTIONS, ("grpc.default_authority", "localhost")]
        self._channel = grpc.insecure_channel(f"unix:{path}", options=options)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all calls."""
        self._channel.close()

    def call(self, method: str, request: Table, answer: Table, **given: Any) -> dict[str, Any]:
        """Calls `/service/method` and returns the answer. `given`: the request's fields."""
        try:
            called: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
            return answer.decode(called(request.encode(given), timeout=self._timeout))
        except grpc.RpcError as error:
            raise self._error(method, error) from None

    def stream(self, method: str, request: Table, answer: Table, **given: Any) -> Iterator[dict[str, Any]]:
        """Calls `/service/method` and yields its answers until it ends; closing the iterator cancels the call."""
        begin: grpc.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(method)
        call = begin(request.encode(given))
        try:
            yield from map(answer.decode, call)
        except grpc.RpcError as error:
            raise self._error(method, error) from None
        finally:
            call.cancel()

    def _error(self, method: str, error: grpc.RpcError) -> GpushareError:
        code, words = error.code(), error.details() or ""
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            return UnreachableError(f"nobody answers {method} at {self.path} ({words or code.name}): try again")
        return FailedError(f"{method} at {self.path} was refused ({code.name}): {words}")
