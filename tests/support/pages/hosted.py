"""A grant's socket with a host pool in this process's event loop, and real processes that take segments of it."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pages.madepages import limits_page, usage_page
from run.built import SUPPORT

from gpushare.binding.page_words import DeviceLimits
from gpushare.binding.wire import JoinError
from gpushare.daemon.residency.pool import GrantPool, HostPool
from gpushare.daemon.timing import Timing
from gpushare.daemon.workloads.door import Door
from gpushare.daemon.workloads.tenant_socket import Rules, TenantSocket

MIB = 1 << 20
GRANT = "g-000000000001"

# A line is a Python expression as JSON text, and is answered with its value.
_PROCESS = """
import ctypes, fcntl, json, mmap, os, socket, sys
sys.path.insert(0, {support!r})
from pages.joinmessages import answered, request, segment_request
from gpushare._native import ffi
sealed = []
def ask(message):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect({path!r})
    connection.send(message)
    data, files, _, _ = socket.recv_fds(connection, 256, 1)
    if not data:
        return None, files, connection
    return answered(data), files, connection
def join():
    global own
    answer, _, kept = ask(request())
    own = answer.slot, answer.generation, kept
    return answer.error
def segment(size, slot=None, generation=None, device=0):
    slot, generation = (own[0] if slot is None else slot), (own[1] if generation is None else generation)
    answer, files, connection = ask(segment_request(size, slot, generation, device))
    connection.close()
    sealed.extend(files)
    return None if answer is None else [answer.error, ffi.string(answer.message).decode(), len(files)]
def hang_up(size):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect({path!r})
    connection.send(segment_request(size, *own[:2]))
    connection.close()
def write(number, byte=b"x"):
    size = os.fstat(sealed[number]).st_size
    with mmap.mmap(sealed[number], size) as mapped:
        for at in range(0, size, 4096):
            mapped[at:at + 1] = byte
    return size
def fails(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return error.errno
    return 0
def become_nobody():
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its own /proc is its own again
def none_if_refused(act):
    try:
        return act()
    except OSError:
        return None
for line in sys.stdin:
    print(json.dumps(eval(json.loads(line))), flush=True)
"""


class Process:
    """A process of the grant: `await process("segment(2 << 20)")`."""

    def __init__(self, path: Path, command: tuple[str, ...] = ()) -> None:
        program = _PROCESS.format(support=str(SUPPORT), path=path.name)
        pipe = subprocess.PIPE
        self.running = subprocess.Popen(
            [*command, sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True, bufsize=1, cwd=path.parent
        )

    @property
    def pid(self) -> int:
        return self.running.pid

    async def __call__(self, expression: str) -> Any:
        return json.loads(await asyncio.to_thread(self._ask, expression))

    def _ask(self, expression: str) -> str:
        assert self.running.stdin is not None
        assert self.running.stdout is not None
        self.running.stdin.write(f"{json.dumps(expression)}\n")
        return self.running.stdout.readline()

    def kill(self) -> None:
        self.running.kill()
        self.running.communicate()


class House:
    """`pool`: of which the grant has reserved nothing yet."""

    def __init__(self, home: Path, pool: HostPool, stack: contextlib.ExitStack) -> None:
        self.pool, self.home, self._stack = pool, home, stack
        self.broken: Exception | None = None
        self.written: list[list[int]] = []
        """What each member had of the pool, at each write."""
        self.door = Door()
        stack.callback(self.door.close)
        self.bell = os.eventfd(0)
        stack.callback(os.close, self.bell)
        self.limits = stack.enter_context(
            limits_page(home / "limits", GRANT, [DeviceLimits(bytes(16), 1 << 30, 0, 100, 1000)])
        )
        self.usage = stack.enter_context(usage_page(home / "usage", GRANT))
        self.socket = self._listen()
        stack.callback(lambda: self.socket.close())

    def _listen(self) -> TenantSocket:
        rules = Rules(
            lambda _: (JoinError.OK, ""), lambda _: None, lambda: None, self._write, GrantPool(self.pool, GRANT, [-1])
        )
        made = TenantSocket(self.home, self.limits, self.usage, self.bell, rules, self.door)
        made.listen()
        return made

    def _write(self) -> None:
        if self.broken is not None:
            raise self.broken
        self.written.append([record.pool_bytes for record in self.socket.records])

    def restart(self, pool: HostPool) -> None:
        """As at a start of the daemon: another pool, and what the ledger has of the members."""
        records = self.socket.records
        self.socket.close()
        self.pool = pool
        self.socket = self._listen()
        self.socket.adopt(records)

    async def joined(self, *command: str) -> Process:
        process = Process(self.home / "grant.sock", command)
        self._stack.callback(process.kill)
        assert await process("join()") == JoinError.OK
        return process


def in_a_house(home: Path, scene: Callable[[House], Awaitable[None]], size: int = 64 * MIB, **options: Any) -> None:
    """Plays `scene` with a pool of `size` bytes. `options`: those of HostPool."""

    async def play() -> None:
        with contextlib.ExitStack() as stack:
            pool = HostPool(size, options.pop("timing", Timing()), **options)
            house = House(home, pool, stack)
            stack.callback(lambda: house.pool.close())
            await scene(house)

    asyncio.run(play())


async def until(holds: Callable[[], Any], what: str) -> None:
    """Waits for something that the event loop brings about."""
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.005)
    assert holds(), what
