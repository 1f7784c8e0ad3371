"""The processes that read for the daemon (gpushare/reader), as the event loop uses them: a job has a time limit, and a
process that exceeds it is killed. A bundle or image can thus delay or fail only the start of its own container."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
from collections.abc import Sequence

import msgspec

from gpushare.api.engines import PlacedMount
from gpushare.daemon.timing import Timing
from gpushare.errors import BY_CODE, FailedError, GpushareError, RefusedError
from gpushare.processes import helper
from gpushare.reader import HEAD, MESSAGE_MAX, Answer, Edit, Job, Member

log = logging.getLogger(__name__)

# With _START_SECONDS and the time for a job, less than the runtime wrapper waits (hooks/edit.c: 15 s).
_QUEUE_SECONDS = 6.0
_START_SECONDS = 5.0  # for an interpreter to start on a fully loaded machine
_AT_ONCE = 4
_LARGE_BYTES = 1 << 20  # a process that has read this much keeps the memory: it is replaced
# A killed process stays while it waits for a file system that does not answer. With this many of them no more are
# started.
_STUCK_MAX = 8


class _Worker:
    def __init__(self) -> None:
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
        self._begun = False

    async def begun(self) -> None:
        """Waits until it serves. Raises EOFError or OSError when the process has ended."""
        if not self._begun:
            await self._receive(HEAD.size)
            self._begun = True

    async def ask(self, message: bytes) -> bytes:
        """Sends a job and returns the answer. Raises EOFError or OSError when the process has ended."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._channel, HEAD.pack(len(message)) + message)
        (size,) = HEAD.unpack(await self._receive(HEAD.size))
        if size > MESSAGE_MAX:
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


def _where(edit: Edit) -> str:
    return f"the bundle {edit.bundle}, or the image in it," if edit.bundle is not None else "config.json"


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

    async def asks(self, config: bytes, *, environment: bool = False) -> dict[str, str | int] | None:
        """What a config.json asks for, by oci.request. `environment`: or else, by oci.request_by_environment.
        Raises UsageError, or FailedError when reading takes too long."""
        return (await self._do(Job(config=config, environment=environment), "config.json")).asks

    async def attempt(self, config: bytes, bundle: str | None) -> tuple[list[str], str]:
        """How a container asks for a GPU in NVIDIA's ways, and its name. Raises what `asks` does."""
        answer = await self._do(Job(config=config, attempt=True, bundle=bundle), "config.json")
        return answer.ways, answer.container

    async def edited(self, config: bytes, edit: Edit) -> tuple[bytes, list[str], bytes | None]:
        """The text of config.json with the edit in it, what the image preloads, and a loader cache, as oci.apply says.

        Raises UsageError or RefusedError, or FailedError when reading takes too long.
        """
        answer = await self._do(Job(config=config, edit=edit), _where(edit))
        return answer.config, [os.fsdecode(line) for line in answer.preload], answer.cache

    async def placed(self, config: bytes, edit: Edit) -> tuple[str, list[PlacedMount], list[str], bytes | None]:
        """The root file system of a container that is made already, and what it has to see of the edit, as
        placing.mounts says. Raises UsageError or RefusedError, or FailedError when reading takes too long."""
        answer = await self._do(Job(config=config, edit=edit), _where(edit))
        if not answer.seen:
            log.warning(
                "%s is not there for the daemon: copies of the driver in its image are not mounted over, they go past "
                "the interposer",
                answer.root,
            )
        mounts = msgspec.convert(answer.mounts, list[PlacedMount])
        return answer.root, mounts, [os.fsdecode(line) for line in answer.preload], answer.cache

    async def is_member(self, uid: int, gid: int, users: Sequence[int | str], groups: Sequence[int | str]) -> bool:
        """As members.is_member. Raises FailedError when the user database takes long."""
        who = Member(uid=uid, gid=gid, users=list(users), groups=list(groups))
        return (await self._do(Job(member=who), f"what the user database has of uid {uid}")).member

    async def command(self, pid: int) -> str:
        """As commands.command. Raises FailedError when that takes long."""
        return (await self._do(Job(command_of=pid), f"the command line of process {pid}")).command

    async def _do(self, job: Job, what: str) -> Answer:
        message = msgspec.msgpack.encode(job)
        try:
            async with asyncio.timeout(_QUEUE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise FailedError(f"{what} was not read: others take all the time there is; try again") from None
        try:
            answer = msgspec.msgpack.decode(await self._ask(message, what), type=Answer)
        finally:
            self._free.release()
        if answer.error is not None:
            code, line = answer.error
            raise BY_CODE[code](line)
        return answer

    async def _ask(self, message: bytes, what: str) -> bytes:
        worker = self._take()
        self._busy.add(worker)
        done = False
        try:
            async with asyncio.timeout(_START_SECONDS):
                await worker.begun()
            async with asyncio.timeout(self._timing.reader_job):
                answer = await worker.ask(message)
            done = True
        except TimeoutError:
            self.failures += 1
            raise FailedError(f"{what} took longer than {self._timing.reader_job:.0f} s to read") from None
        except (OSError, EOFError):
            self.failures += 1
            raise FailedError(f"the process that read {what} ended: try again") from None
        finally:
            self._busy.discard(worker)
            if done and len(message) + len(answer) < _LARGE_BYTES:
                self._idle.append(worker)
            else:
                self._end(worker)
                if not self._closed:
                    with contextlib.suppress(GpushareError):
                        self._idle.append(self._spawn())
        return answer

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
        return _Worker()

    def _end(self, worker: _Worker) -> None:
        worker.kill()
        self._killed.append(worker)
