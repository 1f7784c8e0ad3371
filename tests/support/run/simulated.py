"""A simulator that belongs to one test, processes that use it, and its statistics."""

import array
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

from run import zygote
from run.waiting import until

from gpushare.paths import SIM_BINARY, SIM_LIB_DIR

MAGIC, VERSION = 0x67734D31, 5
HELLO, MEM_ALLOC, MEM_FREE, MEM_INFO, LANE_OPEN, STATS, PROCESSES, STOP = 1, 2, 3, 4, 5, 7, 8, 9
DEVICE, SETTING, SETTING_LOST = 10, 13, 4
CLIENT, VIEWER, CONTROL = 1, 2, 3
CONTEXT = 16 << 20
LOADED = CONTEXT + (2 << 20)  # a context with a small program in it


class Wire:
    """A raw protocol connection to the engine."""

    def __init__(self, path: Path, role: int | None = VIEWER) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(10)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.hello = self.raw(struct.pack("<IIIIQQ", MAGIC, VERSION, HELLO, 0, role, 0)) if role else b""

    @property
    def uuids(self) -> list[bytes]:
        """The devices in the greeting: 160 bytes of header, then 104 bytes per device."""
        (count,) = struct.unpack_from("<I", self.hello, 12)
        return [self.hello[160 + 104 * i : 176 + 104 * i] for i in range(count)]

    def raw(self, request: bytes) -> bytes:
        self.socket.send(request)
        return self.socket.recv(1 << 16)

    def call(self, op: int, device: int = 0, a: int = 0, b: int = 0) -> tuple[int, tuple[int, int, int], list[int]]:
        """(error, answers, descriptors)"""
        self.socket.send(struct.pack("<IIIIQQ", MAGIC, VERSION, op, device, a, b))
        message, ancillary, _, _ = self.socket.recvmsg(64, socket.CMSG_SPACE(8))
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data)
        _, error, *answers = struct.unpack("<IiQQQ", message)
        return error, tuple(answers), list(fds)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sim:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "sim.sock"
        self.engine: subprocess.Popen[bytes] | None = None
        self.children: list[subprocess.Popen[str] | zygote.Forked] = []

    def start(self, *options: str, devices: str = "2x16GiB") -> "Sim":
        self.directory.mkdir(exist_ok=True)
        command = [str(SIM_BINARY), "--socket", str(self.socket), "--devices", devices, *options]
        self.engine = subprocess.Popen(command, stderr=subprocess.PIPE)
        until(self.answers, "the simulator")
        return self

    def answers(self) -> bool:
        assert self.engine is not None
        assert self.engine.poll() is None, self.engine.stderr.read() if self.engine.stderr else ""
        with contextlib.suppress(OSError), Wire(self.socket):
            return True
        return False

    def stop(self) -> None:
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        if self.engine is not None:
            if self.engine.poll() is None:
                self.engine.terminate()
            assert self.engine.wait(10) == 0, "the engine did not end well"
            assert self.engine.stderr is not None
            self.engine.stderr.close()

    def environment(self, **more: str) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSHARE_", "CUDA_", "LD_"))}
        return kept | {"GPUSHARE_SIM_DIR": str(self.directory), "LD_LIBRARY_PATH": str(SIM_LIB_DIR)} | more

    def run(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
        done = subprocess.run(
            list(map(str, command)), env=self.environment(**(env or {})), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def python(self, code: str, env: dict[str, str] | None = None) -> str:
        """The output of a process that runs the code."""
        child = zygote.fork(self.environment(**(env or {})), code)
        printed, answer = child.communicate(60)
        assert child.returncode == 0, f"status {child.returncode}\n{code}\n{printed}{answer}"
        return printed

    def fork(self, env: dict[str, str] | None = None) -> zygote.Forked:
        """A worker (simworker.Worker is the test's side)."""
        child = zygote.fork(self.environment(**(env or {})))
        self.children.append(child)
        return child

    def spawn(self, *command: str | Path, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            list(map(str, command)),
            env=self.environment(**(env or {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.children.append(child)
        return child

    def stats(self, viewer: Wire | None = None) -> dict[str, Any]:
        """The statistics, queried over the given connection or over a new one."""
        if viewer is not None:
            return self._books(viewer)
        with Wire(self.socket) as wire:
            return self._books(wire)

    def _books(self, wire: Wire) -> dict[str, Any]:
        error, (size, _, _), (fd,) = wire.call(STATS)
        assert error == 0
        try:
            books: dict[str, Any] = json.loads(os.pread(fd, size, 0))
        finally:
            os.close(fd)
        self.check(books)
        return books

    @staticmethod
    def check(books: dict[str, Any]) -> None:
        """Asserts the invariants of the statistics, which hold at any instant."""
        for device in books["devices"]:
            rows = device["processes"]
            assert sum(row["busy_ns"] for row in rows) == device["busy_ns"] <= device["wall_ns"]
            assert sum(row["bytes"] for row in rows) + device["unowned_bytes"] == device["bytes"]
            assert device["bytes"] <= device["peak_bytes"] <= device["total_bytes"]
            assert all(row["bytes"] <= row["peak_bytes"] for row in rows)
            assert all(row["bytes"] == 0 for row in rows if not row["alive"])

    def device(self, index: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.stats()["devices"][index]
        return found

    def process(self, pid: int, index: int = 0) -> dict[str, Any] | None:
        rows = [row for row in self.device(index)["processes"] if row["pid"] == pid]
        return rows[0] if rows else None


def read_line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, f"the program ended early with {child.wait(10)}"
    return line.strip()


def tell(child: "subprocess.Popen[str]", text: str) -> None:
    assert child.stdin is not None
    child.stdin.write(text + "\n")
    child.stdin.flush()


def kill(child: "subprocess.Popen[str]") -> None:
    child.send_signal(signal.SIGKILL)
    child.wait(10)
