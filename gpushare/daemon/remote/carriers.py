"""The carriers that this node can serve: contracts that its administrator has put there, and the version of each
server, which the client's has to equal."""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.api import remote as types
from gpushare.carriers import contract, files
from gpushare.carriers.contract import Server
from gpushare.errors import GpushareError, NotFoundError, RefusedError, UsageError
from gpushare.processes import helper
from gpushare.text.printable import printable

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where servers are looked for, and theirs."""
_UID = 1_900_065_536
"""Of programs that are asked for their version: no other process has it. One of user nobody could end the relay."""
_VERSION_S = 5.0
_VERSION_BYTES = 4096
_AGAIN_S = 10.0
"""Until a program that said no version is asked again: the machine was busy, or it lacked a library."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A carrier with its server. `program`: where argv[0] was found; `version_program`: that of the command that says
    the version, with what tells the file from a later one; None: it has no such command."""

    name: str
    server: Server
    program: str
    version_program: tuple[str, int, int, int, int] | None


class Carriers:
    """Belongs to the event loop. Contracts are read for each question; a server's version is asked once for each file
    that the server has been, and again where it said none."""

    def __init__(self, extra: Path | None, driver: Mapping[str, str]) -> None:
        """`extra`: another directory of contracts, after those of the system. `driver`: variables with which programs
        find the driver."""
        self._driver = driver
        self._directories = (*files.DIRECTORIES, *((extra,) if extra is not None else ()))
        self._versions: dict[tuple[object, ...], asyncio.Future[str]] = {}

    async def all(self) -> list[types.Carrier]:
        """All carriers of which this node has a contract with a server."""
        found = await asyncio.to_thread(self._read)
        return list(await asyncio.gather(*(self._shown(name, one) for name, one in found.items())))

    async def chosen(self, name: str | None, version: str | None) -> tuple[Serving, types.Carrier]:
        """The carrier of this name, or the only one. `version`: of the client's half; None: it has none.

        Raises NotFoundError where there is none, UsageError where none is named and there are several, and RefusedError
        where it cannot be served, or has another version.
        """
        found = await asyncio.to_thread(self._read)
        if name is None:
            if len(found) > 1:
                raise UsageError(f"the node has several carriers, {', '.join(found)}: name one")
            if not found:
                raise NotFoundError(f"the node has no carrier with a server: on it, {files.HOW}")
            [name] = found
        if (serving := found.get(name)) is None:
            known = ", ".join(found) or "none"
            raise NotFoundError(f"the node has no carrier {printable(name[:80])!r}, it has {known}: on it, {files.HOW}")
        shown = await self._shown(name, serving)
        if shown.trouble or not isinstance(serving, Serving):
            raise RefusedError(f"the node cannot serve carrier {name}: {shown.trouble}")
        contract.same_version(name, shown.version, printable((version or "")[: contract.VERSION_MAX]))
        return serving, shown

    def _read(self) -> dict[str, Serving | str]:
        """By name; a text: why it cannot be served. In a thread: it reads files, and looks for programs."""
        found: dict[str, Serving | str] = {}
        for name in files.names(self._directories):
            try:
                if (server := files.load(name, self._directories).server) is not None:
                    found[name] = _serving(name, server)
            except (GpushareError, OSError) as error:
                found[name] = str(error)
        return found

    async def _shown(self, name: str, found: Serving | str) -> types.Carrier:
        if isinstance(found, str):
            return types.Carrier(name=name, version="", trouble=found)
        try:
            return types.Carrier(name=name, version=await self._version(found))
        except RefusedError as error:
            return types.Carrier(name=name, version="", trouble=str(error))

    async def _version(self, found: Serving) -> str:
        """Raises RefusedError."""
        if found.version_program is None:
            return ""
        words = found.server.version
        key = (words, found.version_program)
        if key not in self._versions:
            command = [found.version_program[0], *words[1:]]
            asked = asyncio.ensure_future(asyncio.to_thread(_ask_version, command, self._driver))
            asked.add_done_callback(lambda asked: self._answered(key, asked))
            self._versions[key] = asked
        return await asyncio.shield(self._versions[key])

    def _answered(self, key: tuple[object, ...], asked: asyncio.Future[str]) -> None:
        if not asked.cancelled() and asked.exception() is not None:
            asyncio.get_running_loop().call_later(_AGAIN_S, self._versions.pop, key, None)


def _serving(name: str, server: Server) -> Serving:
    """Raises RefusedError where a program is not there, and OSError."""
    version = None
    if server.version:
        program = _program(server.version[0])
        file = Path(program).stat()
        version = (program, file.st_dev, file.st_ino, file.st_mtime_ns, file.st_size)
    return Serving(name, server, _program(server.argv[0]), version)


def _program(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        raise RefusedError(f"its program {name} is not there: install it on the node")
    return found


def _ask_version(command: Sequence[str], driver: Mapping[str, str]) -> str:
    """Runs it without rights, for a few seconds at most: the contract is root's, the program may be anybody's. Raises
    RefusedError."""
    words, root = " ".join(command), os.geteuid() == 0
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**helper.ENVIRONMENT, **driver, "PATH": PATH},
            start_new_session=True,
            user=_UID if root else None,
            group=_UID if root else None,
            extra_groups=[] if root else None,
        )
    except OSError as error:
        raise RefusedError(f"`{words}`, run as a user without rights, does not start: {error.strerror}") from None
    assert process.stdout is not None
    try:
        output = _first_bytes(process.stdout.fileno(), time.monotonic() + _VERSION_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
    try:
        return contract.version_of(output)
    except UsageError as error:
        raise RefusedError(
            f"`{words}`, run as a user without rights, says no version in {_VERSION_S:g} s: {error}"
        ) from None


def _first_bytes(pipe: int, deadline: float) -> bytes:
    """What it prints, to the end of the first line."""
    os.set_blocking(pipe, False)
    poll, data = select.poll(), b""
    poll.register(pipe, select.POLLIN)
    while b"\n" not in data and len(data) < _VERSION_BYTES and (left := deadline - time.monotonic()) > 0:
        if not poll.poll(left * 1000) or not (part := os.read(pipe, _VERSION_BYTES)):
            break
        data += part
    return data
