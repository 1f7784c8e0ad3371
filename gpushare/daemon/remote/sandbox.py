"""The daemon's end of the sandbox (gpushare/sandbox): the process that starts carriers' servers, each inside its grant.
Servers outlive it; what it was about to start when it ended has failed."""

import asyncio
import contextlib
import itertools
import logging
import socket
import subprocess

import msgspec

from gpushare.daemon.remote.channel import Channel
from gpushare.errors import FailedError
from gpushare.processes import helper
from gpushare.sandbox import messages

log = logging.getLogger(__name__)

START_S = 20.0
"""How long making a supervisor may take: an interpreter on a busy machine, and a fork for each that wants one."""
_END_S = 1.0
_AGAIN_S = 1.0
_REASON_MAX = 300


class Sandbox:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._closed = False
        self._waiting: dict[int, asyncio.Future[messages.FromSandbox]] = {}

    def start(self) -> None:
        """Starts the process, if there is none. Raises FailedError."""
        if self._channel is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    helper.command("sandbox"),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env=helper.ENVIRONMENT,
                )
            except OSError as error:
                ours.close()
                raise FailedError(
                    f"the process that starts carriers' servers cannot be started: {error.strerror}"
                ) from None
        self._channel = Channel(ours, messages.MESSAGE_MAX, self._received, self._gone)

    def close(self) -> None:
        """Ends the process. Servers that listen go on."""
        self._closed = True
        if self._channel is not None and self._process is not None:
            self._channel.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it removes the cgroups of what it has made ahead
                self._process.wait(_END_S)
            self._gone()
        for process in self._ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)

    async def begin(self, connector: socket.socket) -> tuple[int, int]:
        """Makes a supervisor, with its end of a connector. Returns its number and pid. Raises FailedError."""
        self.start()
        number = next(self._numbers)
        self._send(messages.Start(number), connector.fileno())
        try:
            answer = await self._answer(number, START_S)
        except TimeoutError:
            self._hangs()
            raise FailedError("the process that starts carriers' servers hangs, and is started again") from None
        except BaseException:
            self.cancel(number)
            raise
        assert isinstance(answer, messages.Started)
        return number, answer.pid

    async def go(self, message: messages.Go) -> None:
        """Starts the server of a supervisor whose grant is bound to it; returns once it listens. Raises FailedError:
        then nothing of it is left, or soon will be."""
        self._send(message)
        # What it does after its own limit is no more than ending what it started.
        try:
            await self._answer(message.number, message.seconds + START_S)
        except TimeoutError:
            raise FailedError(f"the carrier's server did not start within {message.seconds + START_S:g} s") from None

    def cancel(self, number: int) -> None:
        """Ends a supervisor whose server does not listen yet, with what it started."""
        self._send(messages.Cancel(number))

    def _send(self, message: messages.FromDaemon, descriptor: int | None = None) -> None:
        if self._channel is not None:
            self._channel.send(messages.encode(message), descriptor)

    async def _answer(self, number: int, seconds: float) -> messages.FromSandbox:
        """The next message about a supervisor. Raises FailedError, and TimeoutError where there is none."""
        if self._channel is None:
            raise FailedError("the process that starts carriers' servers has ended: try again")
        answer = self._waiting[number] = self._loop.create_future()
        try:
            async with asyncio.timeout(seconds):
                found: messages.FromSandbox = await answer
        finally:
            self._waiting.pop(number, None)
        if isinstance(found, messages.Failed):
            raise FailedError(f"the carrier's server does not start: {found.reason[:_REASON_MAX]}")
        return found

    def _received(self, data: bytes) -> None:
        try:
            message = messages.from_sandbox(data)
        except msgspec.DecodeError:
            log.exception("the process that starts carriers' servers says what makes no sense")
            return
        answer = self._waiting.get(message.number)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _hangs(self) -> None:
        """It does not even fork: it is killed, and started again."""
        if self._channel is not None:
            self._channel.close()
            self._gone()

    def _gone(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._ending.append(self._process)
        self._process = self._channel = None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(FailedError("the process that starts carriers' servers ended: try again"))
        if not self._closed:
            log.warning("the process that starts carriers' servers has ended: it is started again")
            self._loop.call_later(_AGAIN_S, self._start_again)

    def _start_again(self) -> None:
        self._ending = [process for process in self._ending if process.poll() is None]
        if not self._closed:
            with contextlib.suppress(FailedError):  # who needs it tries again, and is told
                self.start()
