"""The daemon's end of a helper of the host pool (gpushare/hostpool): started at its first job, killed where a job takes
too long, and started again at the next one. Files that it has made live on in the descriptors of daemon and tenants."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess

from gpushare.daemon.timing import Timing
from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import FailedError
from gpushare.hostpool import memory_file, messages
from gpushare.processes import helper

log = logging.getLogger(__name__)

_STUCK_MAX = 4
"""Killed helpers that do not end, since the kernel does not return to them. With this many no more are started."""


class _EndedError(Exception):
    """The helper ended during the job."""


class MemoryHelper:
    """Belongs to the event loop; does one job at a time."""

    def __init__(self, timing: Timing, cgroup: Cgroup | None) -> None:
        """`cgroup`: what the files are charged to, made if need be; None: the daemon's own."""
        self.timing = timing
        self._cgroup = cgroup
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._killed: list[subprocess.Popen[bytes]] = []
        self.failures = 0
        """Processes that ended, or were killed, during a job."""

    @property
    def pid(self) -> int | None:
        """The present process; None before the first job and after a failure."""
        return self._process.pid if self._process is not None else None

    def start_ahead(self) -> None:
        """Starts the process before its first job, which then need not wait for an interpreter. A failure is that
        job's."""
        with contextlib.suppress(FailedError):
            self._started()

    async def make(self, size: int, numa: int) -> int:
        """A new file, which the caller closes. `numa`: as in messages.Make. Raises FailedError."""
        _, descriptors = await self._do(messages.Make(size, numa), None)
        if not descriptors:
            raise FailedError("the daemon has no descriptor left for a segment of the host pool: raise LimitNOFILE")
        if not memory_file.whole(descriptors[0], size):
            _close(descriptors)
            raise FailedError("the helper of the host pool made a file that is not sealed")
        return descriptors[0]

    async def empty(self, descriptor: int) -> None:
        """Gives back all memory of a file, which stays the caller's to close. Raises FailedError."""
        await self._do(messages.Empty(), descriptor)

    def close(self) -> None:
        """Ends the process; files stay."""
        self._end()
        for process in self._killed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)

    async def _do(self, job: messages.Job, descriptor: int | None) -> tuple[messages.Answer, list[int]]:
        try:
            answer, descriptors = await self._try(job, descriptor)
        except _EndedError:
            log.warning("a helper of the host pool ended during a job, which is done again")
            try:
                answer, descriptors = await self._try(job, descriptor)
            except _EndedError:
                raise FailedError("the helper of the host pool ended during the job, twice: see dmesg") from None
        if isinstance(answer, messages.Failed):
            raise FailedError(f"no memory for the host pool: {answer.reason}")
        return answer, descriptors

    async def _try(self, job: messages.Job, descriptor: int | None) -> tuple[messages.Answer, list[int]]:
        """Raises _EndedError, and FailedError where it takes too long. A job that is not awaited to its end leaves no
        process, whose answer the next job would take for its own."""
        channel = self._started()
        done = False
        try:
            async with asyncio.timeout(self.timing.pool_job):
                try:
                    socket.send_fds(channel, [messages.encode(job)], [] if descriptor is None else [descriptor])
                    data, descriptors = await _received(channel)
                except OSError:
                    raise _EndedError from None
            if not data:
                raise _EndedError
            done = True
        except TimeoutError:
            seconds = self.timing.pool_job
            raise FailedError(
                f"the host pool took longer than {seconds:g} s for a segment: the node is short of memory"
            ) from None
        finally:
            if not done:
                self.failures += 1
                self._end()
        return messages.answer(data), descriptors

    def _started(self) -> socket.socket:
        """Raises FailedError."""
        if self._channel is not None:
            return self._channel
        self._killed = [process for process in self._killed if process.poll() is None]
        if len(self._killed) >= _STUCK_MAX:
            raise FailedError("helpers of the host pool hang in the kernel: see dmesg, and restart the node")
        try:
            process, channel = _begun()
        except OSError as error:
            raise FailedError(f"no helper of the host pool can be started: {error.strerror}") from None
        self._process, self._channel = process, channel
        if self._cgroup is not None:
            try:
                if not self._cgroup.path.is_dir():
                    self._cgroup.make()
                self._cgroup.add(process.pid)
            except FailedError:
                self._end()
                raise
        return channel

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            self._process.kill()
            self._killed.append(self._process)
            self._process = None


def _begun() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A new process, and our end of the socket to it. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            ours.setblocking(False)
            process = subprocess.Popen(
                helper.command("hostpool"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=helper.ENVIRONMENT,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


async def _received(channel: socket.socket) -> tuple[bytes, list[int]]:
    """The next message. Raises OSError."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(channel, ready)
    try:
        await readable
    finally:
        loop.remove_reader(channel)
    data, descriptors, _, _ = socket.recv_fds(channel, messages.MESSAGE_MAX, 1, socket.MSG_CMSG_CLOEXEC)
    return data, list(descriptors)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
