"""The node API for programs that run on asyncio."""

import asyncio
import copy
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from yarl import URL

from gpushare.client.blocking import (
    ANSWER_SECONDS,
    AWAY_AGAIN_SECONDS,
    FOLLOW_AGAIN_SECONDS,
    WATCH_SECONDS,
    Absence,
    check_socket,
    no_answer,
    refusal,
    why,
)
from gpushare.client.verbs import Course, Patience, encoded, watching
from gpushare.errors import GoneError, LaterError, UnreachableError
from gpushare.paths import client_socket

if TYPE_CHECKING:
    from gpushare.client import types
    from gpushare.client.awaited import AwaitedVerbs as Verbs
else:
    from gpushare.client.verbs import Verbs

_LINE_MAX = 16 << 20
_ERRORS = (OSError, aiohttp.ClientError, TimeoutError)


class AsyncClient(Verbs):
    """One daemon's node API: the verbs of gpushare.client.Client, to be awaited. Any number of tasks of one event loop
    may share it. An asynchronous context manager. Cancelling a task closes its connection, but its request may still
    take effect: give a grant a `key`."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = client_socket(os.fspath(path) if path is not None else None)
        self._away_seconds = 0.0
        self._open: aiohttp.ClientSession | None = None

    def patient(self, seconds: float) -> Self:
        """As Client.patient. Has connections of its own, and is closed by itself."""
        other = copy.copy(self)
        other._away_seconds, other._open = seconds, None
        return other

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes its connections."""
        if self._open is not None:
            await self._open.close()
            self._open = None

    def _session(self) -> aiohttp.ClientSession:
        if self._open is None:
            # One connection per call: the daemon may restart between calls, and a POST is not sent twice.
            connector = aiohttp.UnixConnector(os.fspath(self.path), force_close=True, limit=0)
            self._open = aiohttp.ClientSession(
                connector=connector, skip_auto_headers=("User-Agent",), read_bufsize=_LINE_MAX, auto_decompress=False
            )
        return self._open

    async def call(self, method: str, target: str, body: Any = None, *, timeout: float | None = ANSWER_SECONDS) -> Any:
        """The decoded JSON answer, None for an empty one. `timeout`: seconds for the whole call."""
        text = await self._text(method, target, body, timeout)
        return json.loads(text) if text else None

    async def text(self, target: str, *, timeout: float | None = ANSWER_SECONDS) -> str:
        """The body of an answer as text, such as that of /metrics."""
        return str(await self._text("GET", target, None, timeout), "utf-8")

    async def lines(self, target: str, timeout: float | None = None) -> AsyncIterator[Any]:
        """Decoded lines of an NDJSON stream, until it ends. `timeout`: seconds to wait for the next line."""
        try:
            async with await self._ask(
                "GET", target, None, aiohttp.ClientTimeout(total=None, sock_read=timeout)
            ) as response:
                if response.status >= 400:
                    raise refusal(response.status, await response.read())
                async for line in response.content:
                    yield json.loads(line)
        except _ERRORS as error:
            raise self._gone(error) from None

    async def _text(self, method: str, target: str, body: Any, timeout: float | None) -> bytes:
        try:
            async with await self._ask(method, target, body, aiohttp.ClientTimeout(total=timeout)) as response:
                text: bytes = await response.read()
        except _ERRORS as error:
            raise self._gone(error) from None
        if response.status >= 400:
            raise refusal(response.status, text)
        return text

    async def _ask(self, method: str, target: str, body: Any, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        data = None if body is None else encoded(body)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        url = URL(f"http://localhost{target}", encoded=True)
        absence = Absence(self.path, self._away_seconds)
        while True:
            try:
                check_socket(self.path)
                return await self._session().request(
                    method, url, data=data, headers=headers, timeout=timeout, allow_redirects=False
                )
            except UnreachableError as error:
                absence.check(error)
            except aiohttp.ClientConnectorError as error:
                absence.check(no_answer(self.path, error.os_error), error.os_error)
            await asyncio.sleep(AWAY_AGAIN_SECONDS)

    def _gone(self, error: Exception) -> UnreachableError:
        return UnreachableError(f"the daemon at {self.path} went away ({why(error)}): try again")

    async def _field(self, name: str, target: str) -> Any:
        return (await self.call("GET", target))[name]

    async def _repeated(self, target: str, body: Any, patience: Patience) -> Any:
        while True:
            try:
                return await self.call("POST", target, body)
            except LaterError as later:
                pause = patience.pause(later)
            await asyncio.sleep(pause)

    def watch(self, since: int | None = None, timeout: float | None = None) -> "AsyncIterator[types.Event]":
        """Events after number `since`, or from now on, without end. `timeout`: seconds to wait for the next line."""
        return self.lines(watching(since), timeout)

    async def follow(self) -> "AsyncIterator[types.FollowEvent]":
        """As Client.follow."""
        course = Course()
        while True:
            try:
                listed = await self.call("GET", "/v1/grants")
                yield course.listed(listed)
                async for event in self.watch(listed["rv"], WATCH_SECONDS):
                    if event["kind"] != "bookmark":
                        yield event
            except (GoneError, UnreachableError) as error:
                if (away := course.failed(error)) is not None:
                    yield away
            await asyncio.sleep(FOLLOW_AGAIN_SECONDS)
