"""The node API for programs: synchronous, standard library only, one connection per call. gpushare.aio is for asyncio.

Answers are plain dicts, which gpushare.client.types describes to editors: importing this costs a CLI nothing.
"""

import copy
import grp
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gpushare.client.verbs import Course, Patience, Verbs, encoded, watching
from gpushare.errors import (
    BY_CODE,
    FailedError,
    GoneError,
    GpushareError,
    LaterError,
    MakingRoomError,
    UnreachableError,
    UsageError,
)
from gpushare.paths import DEFAULT_SOCKET, LOCK, Layout, client_socket

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from gpushare.client import types

ANSWER_SECONDS = 30.0
FOLLOW_AGAIN_SECONDS = 0.2
AWAY_SECONDS = 10.0
"""Maximum wait of callers on whom a start depends for a daemon that is away; a killed one is back within 3 s."""
AWAY_AGAIN_SECONDS = 0.05
_RESTART_SECONDS = 4.0
"""Maximum time between the end of a daemon and the start of the next: after that none is on its way."""
_STARTING_SECONDS = 30.0
"""Age until which a daemon without a socket is being started."""
WATCH_SECONDS = 30.0
"""Three of the daemon's bookmark intervals: a daemon that sends nothing for that long is gone."""


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _start(path: Path) -> str:
    if path != DEFAULT_SOCKET:
        return "`gpushare daemon`"
    from gpushare import advice  # here, since most calls do not need it

    return advice.daemon()


def check_socket(path: Path) -> None:
    """Raises UnreachableError unless the socket is root's or this user's: others could impersonate the daemon."""
    try:
        found = path.stat()
    except PermissionError:
        raise UnreachableError(f"{path}: permission denied: ask an administrator for access to its directory") from None
    except OSError:
        raise UnreachableError(
            f"no daemon at {path}: start one with {_start(path)}, or name its socket (--socket, GPUSHARE_SOCKET)"
        ) from None
    if not stat.S_ISSOCK(found.st_mode):
        raise UnreachableError(f"{path} is not a socket: name the daemon's socket with --socket or GPUSHARE_SOCKET")
    if found.st_uid not in (0, os.geteuid()):
        raise UnreachableError(f"{path} belongs to uid {found.st_uid}, neither root nor you: not talking to it")


class Client(Verbs):
    """One daemon's node API. Threads may share it."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = client_socket(os.fspath(path) if path is not None else None)
        self._away_seconds = 0.0

    def patient(self, seconds: float) -> Self:
        """The same client, but each call waits up to `seconds` for a daemon that has run here and is away, such as one
        that is restarted, and for one that is being started. Where there is neither, no call waits."""
        other = copy.copy(self)
        other._away_seconds = seconds
        return other

    def call(self, method: str, target: str, body: Any = None, *, timeout: float | None = ANSWER_SECONDS) -> Any:
        """The decoded JSON answer, None for an empty one."""
        text = self._text(method, target, body, timeout)
        return json.loads(text) if text else None

    def text(self, target: str, *, timeout: float | None = ANSWER_SECONDS) -> str:
        """The body of an answer as text, such as that of /metrics."""
        return str(self._text("GET", target, None, timeout), "utf-8")

    def _text(self, method: str, target: str, body: Any, timeout: float | None) -> bytes:
        with self._open(method, target, body, timeout) as response:
            return self._guarded(response.read)

    def lines(self, target: str, timeout: float | None = None) -> Iterator[Any]:
        """Decoded lines of an NDJSON stream, until it ends. `timeout`: seconds to wait for the next line."""
        with self._open("GET", target, None, timeout) as response:
            rest = b""
            # Not readline, which reports a truncated stream as a normal end.
            while part := self._guarded(response.read1):
                *lines, rest = (rest + part).split(b"\n")
                yield from map(json.loads, lines)

    def _guarded(self, read: Callable[[], bytes]) -> bytes:
        from gpushare.client.transport import ERRORS

        try:
            return read()
        except ERRORS as error:
            raise UnreachableError(f"the daemon at {self.path} went away ({why(error)}): try again") from None

    def _open(self, method: str, target: str, body: Any, timeout: float | None) -> "HTTPResponse":
        from gpushare.client import transport

        data = None if body is None else encoded(body)
        absence = Absence(self.path, self._away_seconds)
        while True:
            try:
                check_socket(self.path)
            except UnreachableError as error:
                absence.check(error)
                time.sleep(AWAY_AGAIN_SECONDS)
                continue
            try:
                response = transport.request(self.path, method, target, data, timeout)
                break
            except transport.ERRORS as error:
                absence.check(no_answer(self.path, error), error)
            time.sleep(AWAY_AGAIN_SECONDS)
        if response.status >= 400:
            with response:
                raise refusal(response.status, self._guarded(response.read))
        return response

    def _field(self, name: str, target: str) -> Any:
        return self.call("GET", target)[name]

    def _repeated(self, target: str, body: Any, patience: Patience) -> Any:
        while True:
            try:
                return self.call("POST", target, body)
            except LaterError as later:
                pause = patience.pause(later)
            time.sleep(pause)

    def watch(self, since: int | None = None, timeout: float | None = None) -> "Iterator[types.Event]":
        """Events after number `since`, or from now on, without end. `timeout`: seconds to wait for the next line."""
        return self.lines(watching(since), timeout)

    def follow(self) -> "Iterator[types.FollowEvent]":
        """Yields all grants, then every change, without end and without a gap: the events of `watch` without its
        bookmarks. An event of type `listed` has all grants: it comes first, and again wherever changes were missed
        because the daemon ended or this reader was slow. One of type `away` has the reason why no daemon answers, once
        per outage."""
        course = Course()
        while True:
            try:
                listed = self.call("GET", "/v1/grants")
                yield course.listed(listed)
                for event in self.watch(listed["rv"], WATCH_SECONDS):
                    if event["kind"] != "bookmark":
                        yield event
            except (GoneError, UnreachableError) as error:
                if (away := course.failed(error)) is not None:
                    yield away
            time.sleep(FOLLOW_AGAIN_SECONDS)


class Absence:
    """The time for which a daemon is away while it is called; waited out for at most `seconds`."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._began = time.monotonic()

    def check(self, error: UnreachableError, cause: Exception | None = None) -> None:
        """Returns if the call is to be tried again soon. Raises `error`, with the time waited, if that has passed, or
        if its reason is another than that the daemon is away. `cause`: of a failed connection."""
        waited = time.monotonic() - self._began
        # Any other failure of a connection may mean that the daemon has begun to carry the request out.
        if cause is not None:
            away = isinstance(cause, ConnectionRefusedError | FileNotFoundError)
        else:
            away = (waited < _RESTART_SECONDS and self._was_here()) or self._comes() or self._is_back()
        if away and waited < self._seconds:
            return
        if waited < AWAY_AGAIN_SECONDS:
            raise error from None
        raise UnreachableError(f"{error} (waited {waited:.1f} s for it to be back)") from None

    def _is_back(self) -> bool:
        """Whether there is a socket by now. To be asked last: it may come while the others are asked."""
        try:
            check_socket(self._path)
        except UnreachableError:
            return False
        return True

    def _was_here(self) -> bool:
        """Whether there is no socket, and a daemon has run here since the machine was started: each leaves its lock
        next to its socket (as in hooks/node_api.c)."""
        try:
            return not self._path.exists() and self._path.with_name(LOCK).is_file()
        except OSError:
            return False

    def _comes(self) -> bool:
        """Whether a daemon is being started that will have its socket here: it needs a second for that."""
        try:
            self._path.stat()
        except FileNotFoundError:
            pass
        except OSError:
            return False
        else:
            return False
        from gpushare.processes import starting  # here, since it is needed only while no daemon answers

        if starting.is_locked(self._path.with_name(LOCK)):
            return True
        return any(_socket_of(words) == self._path for words in starting.since(_STARTING_SECONDS, "gpushare", "daemon"))


def _socket_of(words: list[str]) -> Path:
    """The socket of a daemon that was started with these words."""
    given = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    given |= {option: value for option, value in pairwise(words) if option.startswith("--")}
    state, own = given.get("--state-dir"), given.get("--socket")
    return Layout.of(Path(state) if state else None, Path(own) if own else None).socket


def no_answer(path: Path, error: Exception) -> UnreachableError:
    """The error for a failed connection to the socket."""
    if isinstance(error, PermissionError):
        group = _group(path.stat().st_gid)
        return UnreachableError(
            f"{path}: permission denied: run as root" + ("" if group == "root" else f" or as a member of group {group}")
        )
    return UnreachableError(f"no daemon answers at {path} ({why(error)}): start one with {_start(path)}")


def why(error: Exception) -> str:
    """The error in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def refusal(status: int, body: bytes) -> GpushareError:
    """The error for an answer with this status."""
    try:
        error = json.loads(body)["error"]
        known = BY_CODE.get(error["code"], UsageError if status < 500 else FailedError)
        if known is MakingRoomError:
            return MakingRoomError(error["message"], error.get("estimate_seconds"))
        return known(error["message"])
    except (ValueError, KeyError, TypeError):
        return FailedError(f"the daemon answered status {status} without a reason")
