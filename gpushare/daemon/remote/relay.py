"""The daemon's end of the relay (gpushare/relay): a process that outlives the daemon, so that nobody who uses a grant
of this node notices a restart. It is adopted by the next daemon, stopped when the configuration has another address or
none, and started again when it ends. It is reached from the network: what it says is checked, and no more is believed
than that an attachment lives or has ended."""

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
from pathlib import Path
from typing import Protocol

import msgspec

from gpushare.api.remote import RelayAddress
from gpushare.daemon.host.peer import credentials
from gpushare.daemon.remote.channel import Channel
from gpushare.errors import FailedError
from gpushare.processes import helper
from gpushare.relay import messages
from gpushare.relay.limits import Times

log = logging.getLogger(__name__)

SOCKET = "relay.sock"  # in the run-time directory

_START_S = 10.0
"""From its start until it listens, and from our connection until it has said all: an interpreter on a busy machine."""
_STOP_S = 3.0
_AGAIN_S = 1.0
"""Until it is started again, where it lived for less or could not start."""
_REASON_MAX = 300


class Told(Protocol):
    """What is done with what the relay says."""

    def told(self, now: messages.Is) -> None:
        """An attachment, as it is now."""

    def told_all(self) -> None:
        """After the relay was found or started: it has told every attachment that it has."""

    def relay_gone(self) -> None:
        """The relay has ended, and with it every attachment."""


class Relay:
    """Belongs to the event loop. `address`: where it is, once it serves; None before and after. `reason`: why it does
    not serve."""

    def __init__(self, run: Path, listen: str, host: str, silent_s: float, told: Told) -> None:
        """`run`: the run-time directory. `listen`, `host`: as in gpushare.toml. `silent_s`: after which it takes an
        attachment for lost."""
        self._times = msgspec.json.encode(Times(silent=silent_s)).decode()
        self._path, self._listen, self._host, self._told = run / SOCKET, listen, host, told
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._here: messages.Here | None = None
        self._heard = asyncio.Event()
        self._ready = asyncio.Event()
        self.address: RelayAddress | None = None
        self.reason = "the relay is being started"

    def start(self) -> None:
        """Adopts the relay of an earlier daemon, or starts one."""
        self._task = self._loop.create_task(self._keep())

    def close(self, *, stop: bool) -> None:
        """`stop`: the relay ends too; else it goes on without a daemon."""
        if self._task is not None:
            self._task.cancel()
        if stop:
            self.send(messages.Stop())
        self._let_go()

    async def ready(self, seconds: float = _START_S) -> RelayAddress:
        """Waits until it serves. Raises FailedError with the reason where it does not within so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        if self.address is None:
            raise FailedError(f"the relay for remote grants does not serve: {self.reason}")
        return self.address

    def send(self, message: messages.FromDaemon, descriptor: int | None = None) -> None:
        """Sends a message; it is dropped where there is no relay, of which nothing is left then either."""
        if self._channel is not None:
            self._channel.send(messages.encode(message), descriptor)

    def hangs(self) -> None:
        """It does not answer: it is killed, and started again."""
        log.warning("the relay does not answer: it is killed, and started again")
        self._kill()

    # Its life.

    async def _keep(self) -> None:
        """Sees to it that there is one, until this is cancelled; where none is wanted, that there is none."""
        while True:
            began = self._loop.time()
            try:
                await self._begin()
                if not self._listen:
                    return
                await self._ended.wait()
                self.reason = "it has ended, and is started again"
                log.warning("the relay has ended, and all attachments with it: it is started again")
                self._over()
            except (OSError, FailedError) as error:
                reason = str(error)
                if reason != self.reason:
                    log.error("the relay cannot be started: %s", reason)  # noqa: TRY400 - the reason is in the line
                self.reason = reason
                self._over()
            if self._loop.time() - began < _AGAIN_S:
                await asyncio.sleep(_AGAIN_S)

    async def _begin(self) -> None:
        """Returns with a relay that serves, or without one where none is wanted. Raises OSError or FailedError."""
        if self._connect():
            here = await self._hear()
            if (here.version, here.listen) == (messages.VERSION, self._listen) and self._listen:
                self._serves(here)
                return
            await self._stop(here)
        if self._listen:
            await self._spawn()
            if not self._connect():
                raise FailedError(f"nothing listens at {self._path}")
            self._serves(await self._hear())
        else:
            self._told.told_all()

    def _connect(self) -> bool:
        """Raises OSError."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            end.connect(os.fspath(self._path))
            pidfd = os.pidfd_open(credentials(end).pid)
        except (FileNotFoundError, ConnectionRefusedError, ProcessLookupError):
            end.close()
            return False
        except BaseException:
            end.close()
            raise
        self._ended.clear()
        self._heard.clear()
        self._pidfd, self._here = pidfd, None
        self._channel = Channel(end, messages.MESSAGE_MAX, self._received, self._ended.set)
        return True

    async def _hear(self) -> messages.Here:
        """Waits until it has said all. Raises FailedError."""
        ended = self._loop.create_task(self._ended.wait())
        heard = self._loop.create_task(self._heard.wait())
        try:
            await asyncio.wait({ended, heard}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            heard.cancel()
        if not self._heard.is_set() or self._here is None:
            self._kill()
            raise FailedError("it does not answer" if not self._ended.is_set() else "it ended before it served")
        return self._here

    async def _stop(self, here: messages.Here) -> None:
        """Stops a relay that listens elsewhere, or is of another version."""
        log.info("the relay at %s is stopped, and its attachments end", here.listen or f"port {here.port}")
        self.send(messages.Stop())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._ended.wait()
        self._kill()
        await self._wait_for_end()
        self._over()

    async def _wait_for_end(self) -> None:
        """Its port is free once it has ended."""
        if self._pidfd is None:
            return
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        deadline = self._loop.time() + _STOP_S
        while not poll.poll(0) and self._loop.time() < deadline:
            await asyncio.sleep(0.01)

    async def _spawn(self) -> None:
        """Returns once it listens. Raises OSError or FailedError."""
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        try:
            self._process = subprocess.Popen(
                helper.command("relay", os.fspath(self._path), self._listen, self._times),
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                cwd="/",
                env=helper.ENVIRONMENT,
                start_new_session=True,
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        line = await self._line(ours)
        if line != "ready":
            self._process.kill()
            raise FailedError(line[:_REASON_MAX] or "it ended before it served")

    async def _line(self, pipe: int) -> str:
        """What it writes until it closes the pipe, which is closed too. Raises FailedError where it takes too long."""
        done, data = self._loop.create_future(), bytearray()

        def read() -> None:
            part = os.read(pipe, 4096)
            data.extend(part[: 4096 - len(data)])
            if (not part or b"\n" in part) and not done.done():
                done.set_result(None)

        self._loop.add_reader(pipe, read)
        try:
            async with asyncio.timeout(_START_S):
                await done
        except TimeoutError:
            self._kill()
            raise FailedError(f"it did not listen within {_START_S:g} s") from None
        finally:
            self._loop.remove_reader(pipe)
            os.close(pipe)
        return data.decode(errors="replace").partition("\n")[0].strip()

    def _serves(self, here: messages.Here) -> None:
        self.address = RelayAddress(host=self._host, port=here.port, cert_sha256=here.cert_sha256.hex())
        self.reason = ""
        log.info("remote grants: the relay listens at %s, port %d", self._listen, here.port)
        self._told.told_all()
        self._ready.set()

    def _over(self) -> None:
        """It has ended, is about to be killed, or was not wanted."""
        self._kill()
        self._let_go()
        self._told.relay_gone()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _let_go(self) -> None:
        self.address = None
        self._ready.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _received(self, data: bytes) -> None:
        try:
            message = messages.from_relay(data)
        except (msgspec.DecodeError, UnicodeError):
            log.warning("the relay says what makes no sense: it is killed, and started again")
            self._kill()
            return
        match message:
            case messages.Here():
                self._here = message
            case messages.All():
                self._heard.set()
            case messages.Is():
                self._told.told(message)
