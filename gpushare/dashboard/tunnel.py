"""Forwards a node's socket on another machine to a local one by ssh. No port is opened on either side."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from gpushare.processes import ssh
from gpushare.processes.helper import end_with_parent

_FIRST_SECONDS, _LAST_SECONDS = 1.0, 30.0
"""Pause between two starts, doubled after each short run."""
_GOOD_SECONDS = 30.0
"""A run longer than this counts as a working connection."""
_LINE_MAX = 4096


class Tunnel:
    """`socket` leads to the daemon while ssh runs."""

    def __init__(self, host: str, remote: Path, socket: Path, ended: Callable[[str], None]) -> None:
        """`ended`: called with the reason each time ssh ends or cannot be started."""
        self.socket, self._ended = socket, ended
        self._host, self._command = host, ssh.forwarding(socket, remote, host)

    async def run(self) -> None:
        """Keeps ssh running until it is cancelled."""
        loop, pause = asyncio.get_running_loop(), _FIRST_SECONDS
        while True:
            began = loop.time()
            await self._once()
            if loop.time() - began > _GOOD_SECONDS:
                pause = _FIRST_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_SECONDS)

    async def _once(self) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_MAX,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            self._ended(f"ssh cannot be started: {error.strerror or error}")
            return
        try:
            assert process.stderr is not None
            last = await _last_line(process.stderr)
            status = await process.wait()
            self._ended(f"ssh to {self._host} ended: {last or f'status {status}'}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(OSError):
                self.socket.unlink()  # a stale socket would refuse connections
            await process.wait()


async def _last_line(stream: asyncio.StreamReader) -> str:
    """Reads to the end of the stream; returns its last line, made printable for the page and messages."""
    last = b""
    while part := await stream.read(_LINE_MAX):
        last = (last + part)[-_LINE_MAX:]
    return ssh.last_line(last)
