"""How root's dashboard, which is nobody by then, reaches daemons whose sockets it could not open: a process that can
open any file and does nothing but connect to these sockets, as nobody too, and copy what is said. To the daemons it is
nobody who asks, who may read and change nothing of others."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpushare.helper import CAP_DAC_OVERRIDE, become_nobody, end_with_parent

_COPY_BYTES = 64 << 10
_CREDENTIALS = struct.Struct("iII")


def start(listeners: Sequence[socket.socket], targets: Sequence[Path]) -> None:
    """In a child of this process, which is root's: each of these sockets, which listen, leads to its target from now
    on, for this process alone, and until it ends. Raises OSError."""
    parent = os.getpid()
    if os.fork() == 0:
        _child(parent, listeners, targets)


def _child(parent: int, listeners: Sequence[socket.socket], targets: Sequence[Path]) -> NoReturn:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; it ends with its parent
        become_nobody(keep={CAP_DAC_OVERRIDE})
        end_with_parent()  # the kernel forgets it at a change of credentials
        if os.getppid() == parent:
            asyncio.run(_serve(parent, listeners, targets))
    finally:
        os._exit(1)


async def _serve(parent: int, listeners: Sequence[socket.socket], targets: Sequence[Path]) -> None:
    for listener, target in zip(listeners, targets, strict=True):

        async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Path = target) -> None:
            # Other processes of nobody's could find the socket.
            raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(raw)[0] == parent:
                with contextlib.suppress(OSError):
                    await _joined(reader, writer, target)
            writer.transport.abort()

        await asyncio.start_unix_server(lead, sock=listener)
    await asyncio.Event().wait()


async def _joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Path) -> None:
    """Until one side ends. Raises OSError."""
    theirs, ours = await asyncio.open_unix_connection(target)
    copies = {asyncio.create_task(_copied(reader, ours)), asyncio.create_task(_copied(theirs, writer))}
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        ours.transport.abort()
    await writer.wait_closed()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(_COPY_BYTES):
        writer.write(part)
        await writer.drain()
