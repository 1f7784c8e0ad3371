"""Lets root's dashboard, which has become nobody, reach daemons whose sockets nobody cannot open: a relay process, also
nobody but able to open any file, only connects to these sockets and copies data. The daemons see nobody as the peer,
who may read, but change nothing of other users."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from gpushare.processes.helper import CAP_DAC_OVERRIDE, become_nobody, end_with_parent

_COPY_BYTES = 64 << 10
_CREDENTIALS = struct.Struct("iII")


def start(listeners: Sequence[socket.socket], targets: Sequence[Path]) -> None:
    """Forks the relay from this process, which must be root's. Each listening socket then leads to its target, for
    connections from this process only, until this process ends. Raises OSError."""
    parent = os.getpid()
    if os.fork() == 0:
        _child(parent, listeners, targets)


def _child(parent: int, listeners: Sequence[socket.socket], targets: Sequence[Path]) -> NoReturn:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it too, but it must end with its parent
        become_nobody(keep={CAP_DAC_OVERRIDE})
        end_with_parent()  # after become_nobody: the kernel clears it when credentials change
        if os.getppid() == parent:
            asyncio.run(_serve(parent, listeners, targets))
    finally:
        os._exit(1)


async def _serve(parent: int, listeners: Sequence[socket.socket], targets: Sequence[Path]) -> None:
    for listener, target in zip(listeners, targets, strict=True):

        async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Path = target) -> None:
            # Other processes of nobody could find the socket.
            raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(raw)[0] == parent:
                with contextlib.suppress(OSError):
                    await _joined(reader, writer, target)
            writer.transport.abort()

        await asyncio.start_unix_server(lead, sock=listener)
    await asyncio.Event().wait()


async def _joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Path) -> None:
    """Copies in both directions until one side ends. Raises OSError."""
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
