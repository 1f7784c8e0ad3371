"""The processes that read for the daemon (gpushare/reader), as the event loop uses them: a job has a time limit, and a
process that exceeds it is killed. A bundle or image can thus delay or fail only the start of its own container."""

import asyncio
import contextlib
import logging
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import msgspec

from gpushare.api.tenants import Accounts
from gpushare.daemon.timing import Timing
from gpushare.errors import BY_CODE, FailedError, GpushareError, RefusedError
from gpushare.processes import helper
from gpushare.reader import messages

log = logging.getLogger(__name__)

# With _START_SECONDS and the time for two jobs, less than the runtime wrapper waits (hooks/edit.c: 15 s).
_QUEUE_SECONDS = 5.0
_START_SECONDS = 5.0  # for an interpreter to start on a fully loaded machine
_AT_ONCE = 4
_LARGE_BYTES = 1 << 20  # a process that has read this much keeps the memory: it is replaced
# A killed process stays while it waits for a file system that does not answer. With this many of them no more are
# started.
_STUCK_MAX = 8

_Wanted = TypeVar("_Wanted", messages.Asks, messages.Edited, messages.Found, messages.Unknown)


class _Worker:
    def __init__(self, job_seconds: float) -> None:
        self._job_seconds = job_seconds
        self._channel, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = subprocess.Popen(
                    helper.command("reader"),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env=helper.ENVIRONMENT,
                )
            except OSError as error:
                self._channel.close()
                raise FailedError(f"no process to read bundles can be started: {error.strerror}") from None
        self._channel.setblocking(False)
        self._begun = self._amid = False
        self._bytes = 0
        """Read and answered since it was last idle."""
        self.failed = False
        """It ended, or took too long, during a job."""

    @property
    def reusable(self) -> bool:
        """Whether it waits for another job, and is small enough for one."""
        small, self._bytes = self._bytes < _LARGE_BYTES, 0
        return small and not self._amid

    async def do(self, job: messages.Job, wanted: type[_Wanted], what: str) -> _Wanted:
        """Does a job. Raises the error that it is answered with, or FailedError where it takes too long."""
        message = msgspec.msgpack.encode(job)
        self._amid = True
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._begin()
            async with asyncio.timeout(self._job_seconds):
                data = await self._ask(message)
        except TimeoutError:
            self.failed = True
            raise FailedError(f"{what} took longer than {self._job_seconds:.0f} s to read") from None
        except (OSError, EOFError):
            self.failed = True
            raise FailedError(f"the process that read {what} ended: try again") from None
        self._amid = False
        self._bytes += len(message) + len(data)
        answer = msgspec.msgpack.decode(data, type=messages.Answer)
        if isinstance(answer, messages.Refused):
            raise BY_CODE[answer.code](answer.line)
        assert isinstance(answer, wanted)
        return answer

    async def _begin(self) -> None:
        """Waits until it serves. Raises EOFError or OSError when the process has ended."""
        if not self._begun:
            await self._receive(messages.HEAD.size)
            self._begun = True

    async def _ask(self, message: bytes) -> bytes:
        """Sends a job and returns the answer. Raises EOFError or OSError when the process has ended."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._channel, messages.HEAD.pack(len(message)) + message)
        (size,) = messages.HEAD.unpack(await self._receive(messages.HEAD.size))
        if size > messages.MESSAGE_MAX:
            raise EOFError
        return await self._receive(size)

    async def _receive(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        got = 0
        while got < size:
            count = await loop.sock_recv_into(self._channel, memoryview(data)[got:])
            if not count:
                raise EOFError
            got += count
        return bytes(data)

    def kill(self) -> None:
        self._channel.close()
        self.process.kill()


class Reading:
    """One reading of a container's config.json, in one process."""

    def __init__(self, worker: _Worker, config: bytes, bundle: str | None) -> None:
        self._worker, self._config, self._bundle = worker, config, bundle
        self._sent = False

    async def asks(self, by: messages.By) -> messages.Asks:
        """What the container asks for. Raises UsageError, or FailedError when reading takes too long."""
        self._sent = True
        return await self._worker.do(
            messages.Config(text=self._config, by=by, bundle=self._bundle), messages.Asks, "config.json"
        )

    async def edited(self, edit: messages.Edit) -> messages.Edited:
        """The config with a grant in it, and what the container has to see of that. Raises UsageError or RefusedError,
        or FailedError when reading takes too long."""
        if not self._sent:
            edit.text = self._config
        where = f"the bundle {self._bundle}, or the image in it," if self._bundle is not None else "config.json"
        return await self._worker.do(edit, messages.Edited, where)


class Readers:
    """Belongs to the event loop. `start` before the first job, `close` at the end."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._killed: list[_Worker] = []
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._closed = False
        self._ahead: asyncio.TimerHandle | None = None
        self.failures = 0
        """Processes that ended, or were killed, during a job."""

    def start(self) -> None:
        """Schedules the start of one process ahead of the first job: an interpreter takes some 80 ms, which the
        daemon's own start does not wait for."""
        self._ahead = asyncio.get_running_loop().call_later(self._timing.reader_ahead, self._start_ahead)

    def _start_ahead(self) -> None:
        if not self._idle and not self._busy:
            try:
                self._idle.append(self._spawn())
            except GpushareError as error:
                log.warning("%s; each container's start tries again", error)

    def close(self) -> None:
        """Ends all processes; those that cannot be killed are left behind."""
        self._closed = True
        if self._ahead is not None:
            self._ahead.cancel()
        for worker in [*self._idle, *self._busy]:
            self._end(worker)
        self._idle.clear()
        for worker in self._killed:
            try:
                worker.process.wait(0.5)
            except subprocess.TimeoutExpired:
                log.warning("process %d, which reads bundles, does not end", worker.process.pid)

    @contextlib.asynccontextmanager
    async def reading(self, config: bytes, bundle: str | None) -> AsyncIterator["Reading"]:
        """One process that reads a container's config.json, in the `with` block. Raises FailedError where there is
        none."""
        async with self._worker("config.json") as worker:
            yield Reading(worker, config, bundle)

    async def is_member(self, uid: int, gid: int, users: Sequence[int | str], groups: Sequence[int | str]) -> bool:
        """As lookups.is_member. Raises FailedError when the user database takes long."""
        who = messages.Member(uid=uid, gid=gid, users=list(users), groups=list(groups))
        what = f"what the user database has of uid {uid}"
        async with self._worker(what) as worker:
            return bool((await worker.do(who, messages.Found, what)).text)

    async def unknown(self, users: Sequence[str], groups: Sequence[str]) -> Accounts:
        """As lookups.unknown. Raises FailedError when the user database takes long."""
        if not users and not groups:
            return Accounts(users=[], groups=[])
        what = "whether the user database has these names"
        async with self._worker(what) as worker:
            asked = messages.Names(users=list(users), groups=list(groups))
            found = await worker.do(asked, messages.Unknown, what)
            return Accounts(users=found.users, groups=found.groups)

    async def command(self, pid: int) -> str:
        """As lookups.command. Raises FailedError when that takes long."""
        what = f"the command line of process {pid}"
        async with self._worker(what) as worker:
            return (await worker.do(messages.Command(pid=pid), messages.Found, what)).text

    @contextlib.asynccontextmanager
    async def _worker(self, what: str) -> AsyncIterator[_Worker]:
        try:
            async with asyncio.timeout(_QUEUE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise FailedError(f"{what} was not read: others take all the time there is; try again") from None
        try:
            worker = self._take()
            self._busy.add(worker)
            try:
                yield worker
            finally:
                self._busy.discard(worker)
                self._give_back(worker)
        finally:
            self._free.release()

    def _give_back(self, worker: _Worker) -> None:
        self.failures += worker.failed
        if worker.reusable:
            self._idle.append(worker)
            return
        self._end(worker)
        if not self._closed:
            with contextlib.suppress(GpushareError):
                self._idle.append(self._spawn())

    def _take(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
            self._end(worker)
        return self._spawn()

    def _spawn(self) -> _Worker:
        self._killed = [worker for worker in self._killed if worker.process.poll() is None]
        if len(self._killed) >= _STUCK_MAX:
            raise RefusedError(
                f"{_STUCK_MAX} processes that read bundles wait for file systems that do not answer: unmount those"
            )
        return _Worker(self._timing.reader_job)

    def _end(self, worker: _Worker) -> None:
        worker.kill()
        self._killed.append(worker)
