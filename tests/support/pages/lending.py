"""A hand-made grant that lends idle memory: the test writes the residency word and is the host pool."""

import fcntl
import os
import socket
from pathlib import Path

from pages import joinmessages
from pages.handmade import Grant, Simulator
from run.waiting import until

from gpushare._native import ffi, lib
from gpushare.binding.wire import SegmentRequest

SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


class Lender(Grant):
    """`pool`: bytes that the host pool still has. `segments`: sizes of those given out. `looks`: number of times that a
    process said that its words have changed. `lost_returns`, `lost_segments`: how many of the next requests to take
    segments back are not heard, and how many segments never arrive. `keeps`: it gives files out again that came back,
    with what is in them, which is faster than new ones."""

    def __init__(self, directory: Path, sim: Simulator, pool: int = 8 << 30) -> None:
        self.pool, self.looks = pool, 0
        self.segments: list[int] = []
        self.lost_returns = self.lost_segments = 0
        self.keeps = False
        self._kept: dict[int, list[int]] = {}
        self._given: list[tuple[int, int]] = []
        super().__init__(directory, sim)
        self.limits.idle_memory = lib.GS_IDLE_LEND
        self.limits.allocation_wait_ms = 60_000

    def _answer(self, connection: socket.socket, message: bytes) -> None:
        asked = SegmentRequest.parse(message)
        if asked is not None:
            self._segment(connection, asked.size)
        elif joinmessages.asked(message).magic == lib.GS_LOOK_MAGIC:
            self.looks += 1
            self._reply(connection)
        else:
            super()._answer(connection, message)

    def _reply(self, connection: socket.socket, error: int = lib.GS_JOIN_OK, files: list[int] | None = None) -> None:
        socket.send_fds(connection, [joinmessages.reply(error, 0, 0)], files or [])
        connection.close()

    def _segment(self, connection: socket.socket, size: int) -> None:
        if size == 0 and self.lost_returns:
            self.lost_returns -= 1
            connection.close()
        elif size and self.lost_segments:
            self.lost_segments -= 1
            self.pool -= size
            self.segments.append(size)
            connection.close()
        elif size == 0:
            self.pool += sum(self.segments)
            self.segments.clear()
            for length, file in self._given:
                self._kept.setdefault(length, []).append(file)
            self._given.clear()
            self._reply(connection)
        elif size > self.pool:
            self._reply(connection, lib.GS_JOIN_FULL)
        else:
            file = self._file(size)
            self.pool -= size
            self.segments.append(size)
            self._reply(connection, files=[file])
            if self.keeps:
                self._given.append((size, file))
            else:
                os.close(file)

    def _file(self, size: int) -> int:
        if self._kept.get(size):
            return self._kept[size].pop()
        file = os.memfd_create("segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.fill(file, size)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, SEALS)
        return file

    def close(self) -> None:
        super().close()
        for file in [*(file for _, file in self._given), *(file for kept in self._kept.values() for file in kept)]:
            os.close(file)

    def fill(self, file: int, size: int) -> None:
        """Gives a new segment its size, and no memory yet."""
        os.truncate(file, size)

    def want(self, residency: int) -> int:
        """Writes the residency word, and returns it."""
        word = ffi.addressof(self.limits.device[0], "residency")
        value = ((lib.gs_load32(word) >> lib.GS_RESIDENCY_SHIFT) + 1) << lib.GS_RESIDENCY_SHIFT | residency
        lib.gs_store32(word, value)
        lib.gs_futex_wake(word)
        return int(value)

    def carried_out(self, word: int, index: int = 0) -> int:
        """Waits until a process has carried the word out, or could not; returns its `move`."""
        until(lambda: self.slot(index).residency == word, f"residency word {word} is carried out")
        return self.slot(index).move

    def suspend(self) -> int:
        """As the daemon does: no lease, and the word. Returns how it went."""
        self.revoke()
        return self.carried_out(self.want(lib.GS_HOSTED))

    def resume(self, residency: int = lib.GS_RESIDENT) -> int:
        """The opposite."""
        how = self.carried_out(self.want(residency))
        self.lease()
        return how

    @property
    def wants(self) -> bool:
        """Whether a call of its first process waits for hosted memory."""
        return bool(self.slot().flags & lib.GS_SLOT_WANTS)
