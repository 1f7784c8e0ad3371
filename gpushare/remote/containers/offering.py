"""How the client relay offers its attachment to containers."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpushare.carriers import contract
from gpushare.errors import BY_CODE, FailedError, ForbiddenError
from gpushare.inject import mounts
from gpushare.paths import Layout
from gpushare.processes import helper
from gpushare.remote.containers import libraries, messages, spec

RUN = Path("/run/gpushare/attached")
_ADDRESS = "127.0.0.1"
_START_SECONDS = 10.0
_END_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Offered:
    """`device`: for an engine's `--device`. `channel`: each message on it is one byte with one descriptor, a connected
    TCP socket of a container's program; its end: the helper has ended, and no further container can use the device.
    `helper`: its pid."""

    device: str
    channel: socket.socket
    helper: int


@contextlib.contextmanager
def offer(
    carrier: str, client: contract.Client, name: str, port: int, *, cdi: Path | None = None, run: Path = RUN
) -> Iterator[Offered]:
    """Offers an attachment as a CDI device of this name, inside `with`. `port`: on which the client relay listens, and
    on which it is found in containers. `cdi`: directory of the specs, instead of the usual one.

    Raises UsageError for a name that CDI does not take, ForbiddenError to others than root, RefusedError where it is
    in use, and FailedError.
    """
    spec.check_name(name)
    if os.geteuid() != 0:
        raise ForbiddenError("only root may offer a CDI device: run this with sudo, or use `gpushare run --remote`")
    if not mounts.placeable():
        raise FailedError("a CDI device of a remote grant needs Linux 5.12, to mount into containers")
    wanted = messages.Offer(
        carrier=carrier,
        name=name,
        port=port,
        env=[f"{name}={value}" for name, value in contract.client_env(client, _ADDRESS, port).items()],
        libraries=libraries.wanted(Path(client.dir), client.libraries),
        cdi=str(cdi or Layout.of().cdi),
        run=str(run / name),
    )
    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with channel:
        with theirs:
            process = _started(theirs)
        try:
            _begin(channel, wanted)
            yield Offered(f"{spec.KIND}={name}", channel, process.pid)
        finally:
            channel.close()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def connection(channel: socket.socket) -> socket.socket | None:
    """Receives the next connection of a container's program; None: the helper has ended. Raises BlockingIOError."""
    data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if descriptors:
        return socket.socket(fileno=descriptors[0])
    if data:
        raise BlockingIOError  # this process has no descriptor left for it
    return None


def _started(theirs: socket.socket) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            helper.command("remote.containers", "serve"),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            cwd="/",
            env=helper.ENVIRONMENT,
        )
    except OSError as error:
        raise FailedError(f"no helper for containers can be started: {error.strerror}") from None


def _begin(channel: socket.socket, wanted: messages.Offer) -> None:
    channel.settimeout(_START_SECONDS)
    try:
        channel.send(messages.encode(wanted))
        answer = channel.recv(messages.MESSAGE_MAX)
    except OSError as error:
        raise FailedError(f"the helper for containers does not answer: {error}") from None
    channel.settimeout(None)
    if not answer:
        raise FailedError("the helper for containers ended: see its lines above")
    if answer != messages.BEGUN:
        code, line = msgspec.json.decode(answer, type=tuple[str, str])
        raise BY_CODE[code](line)
