"""Notifies a process that is stopped, and why, on its own standard error: its user would otherwise see one that hangs.

A helper writes (gpushare/teller), since what a tenant has open as standard error can keep a writer waiting.
"""

import asyncio
import contextlib
import logging
import os
import subprocess

from gpushare.daemon.host import peer
from gpushare.daemon.state.live import Live
from gpushare.inject import grantdir
from gpushare.paths import INTERPOSER, LIB_DIR, PROCESS_SELF, Layout
from gpushare.policy.audit.audit import Act, Rules
from gpushare.policy.grants.lifecycle import Kind
from gpushare.processes import helper

log = logging.getLogger(__name__)

_SECONDS = 20.0
"""For an interpreter to start on a fully loaded machine, and for the helper's own ten seconds."""
_WAITING_MAX = 64


class Notifier:
    """Belongs to the event loop."""

    def __init__(self, layout: Layout, rules: Rules) -> None:
        self._layout, self._rules = layout, rules
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: list[subprocess.Popen[bytes]] = []

    def notify(self, live: Live, pid: int, started: int) -> None:
        """Tells a process of the grant that it is stopped since it has not joined. Best effort, one at a time: the line
        is missing where the process has closed its standard error, or nobody reads that."""
        if len(self._tasks) >= _WAITING_MAX:
            return
        places = str(grantdir.self_dir(self._layout, live.id)), str(INTERPOSER)
        task = asyncio.get_running_loop().create_task(self._tell(pid, started, *self._lines(live, pid), *places))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lines(self, live: Live, pid: int) -> tuple[str, str]:
        """The line for a process that sees its grant and the interposer, and for one that does not."""
        end = "until it ends"
        if self._rules.evader is Act.KILL:
            end = f"and is killed after {self._rules.grace_ns / 1e9:g} s"
        what = f"process {pid} uses a device past its share {live.id}, and is stopped {end}"
        if live.record.life.kind is Kind.CONTAINER:
            line = f"{what}: it has to open the driver as libcuda.so.1, and not by its path or a copy of it"
            return line, line
        needed = "LD_PRELOAD or LD_LIBRARY_PATH, and GPUSHARE_GRANT_DIR, as `gpushare run` sets them"
        return (
            f"{what}: gpushare's library is not in it. It needs {needed}, and has to open the driver as libcuda.so.1",
            f"{what}: it is in a sandbox, or under another root, that hides its share. Bind {self._places(live)} there "
            f"(bwrap --bind PATH PATH, apptainer --bind PATH), and keep {needed}",
        )

    def _places(self, live: Live) -> str:
        """What the share of a plain process consists of on the host."""
        if live.record.run_uid == 0:
            return f"{PROCESS_SELF} and {LIB_DIR}"
        run, grants = self._layout.run, self._layout.grants
        more = "" if grants.is_relative_to(run) else f" {grants},"
        return f"{run},{more} {LIB_DIR} and the driver's libraries"

    async def _tell(self, pid: int, started: int, *words: str) -> None:
        async with self._turn:
            self._left = [process for process in self._left if process.poll() is None]
            pidfd = peer.reopen_pidfd(pid, started)
            if pidfd is None:
                return
            try:
                process = subprocess.Popen(
                    helper.command("teller", *words),
                    stdin=pidfd,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=helper.ENVIRONMENT,
                )
            except OSError as error:
                log.warning("process %d is not notified that it is stopped: %s", pid, error.strerror)
                return
            finally:
                os.close(pidfd)
            self._left.append(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, _SECONDS)
            process.kill()

    def close(self) -> None:
        """Stops telling."""
        for task in self._tasks:
            task.cancel()
        for process in self._left:
            process.kill()
