"""A grant made by hand: pages, a join server and a tester who moves the lease word. No daemon, no arbiter."""

import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpushare import paths

# gs_page.h, sim_proto.h, gs_wire.h
LIMITS_MAGIC, USAGE_MAGIC, PAGE_VERSION, SLOTS, DEVICES = 0x67734C31, 0x67735531, 3, 1024, 16
SLOT_DEVICE_BYTES = 128
LIMITS_BYTES, SLOT_BYTES = 128 + DEVICES * 128, 64 + DEVICES * SLOT_DEVICE_BYTES
USAGE_BYTES = 64 + SLOTS * SLOT_BYTES + 32 * 2048
STATE, SLOTS_HIGH, DAEMON_EPOCH, HEARTBEAT, MANAGED = 56, 60, 64, 68, 72
UUID, MEMORY, CONTEXT, BOUND, GUARANTEE, LIMIT, LEASE, CONTENDED = 0, 16, 24, 32, 40, 44, 48, 52
FOREIGN_WORK, FOREIGN_WORK_NS = 56, 64
WORDS = {"busy_ns": 16, "queue_end_ns": 24, "launches": 32, "wait_ns": 40, "collectives": 64, "cut": 72}
HALVES = {"waiting": 48, "inflight": 52, "drained": 56, "flags": 60}
JOIN_MAGIC, WIRE_VERSION, NO_SLOT = 0x67734A31, 1, 0xFFFF
SIM_MAGIC, SIM_VERSION, SIM_HELLO, SIM_STATS, SIM_VIEWER = 0x67734D31, 1, 1, 7, 2
MS = 1_000_000
libc = ctypes.CDLL(None, use_errno=True)


def until(condition: Callable[[], Any], what: str, seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.0005)
    return value


class Simulator:
    def __init__(self, directory: Path, devices: str = "1x4GiB", *options: str) -> None:
        directory.mkdir()
        self.socket = directory / "sim.sock"
        self.directory = directory
        self.process = subprocess.Popen(
            [paths.SIM_BINARY, "--socket", self.socket, "--devices", devices, *options], stdin=subprocess.DEVNULL
        )
        self.uuids: list[bytes] = []
        self._viewer = until(self._connect, "gpushare-sim answers")

    def _connect(self) -> socket.socket | None:
        assert self.process.poll() is None, f"gpushare-sim ended with {self.process.returncode}"
        viewer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            viewer.connect(str(self.socket))
        except OSError:
            viewer.close()
            return None
        viewer.send(struct.pack("<IIIIQQ", SIM_MAGIC, SIM_VERSION, SIM_HELLO, 0, SIM_VIEWER, 0))
        hello = viewer.recv(8192)
        count = struct.unpack_from("<I", hello, 12)[0]
        self.uuids = [hello[96 + 104 * i : 112 + 104 * i] for i in range(count)]
        return viewer

    def books(self) -> dict[str, Any]:
        self._viewer.send(struct.pack("<IIIIQQ", SIM_MAGIC, SIM_VERSION, SIM_STATS, 0, 0, 0))
        reply, descriptors, _, _ = socket.recv_fds(self._viewer, 64, 4)
        _, error, size = struct.unpack_from("<IiQ", reply)
        assert error == 0
        with os.fdopen(descriptors[0], "rb") as file:
            return json.loads(os.pread(file.fileno(), size, 0))

    def busy_ns(self, pid: int, device: int = 0) -> int:
        processes = self.books()["devices"][device]["processes"]
        return sum(process["busy_ns"] for process in processes if process["pid"] == pid)

    def stop(self) -> None:
        self._viewer.close()
        self.process.terminate()
        self.process.wait(10)


class Slot:
    """What one process wrote about one device."""

    def __init__(self, usage: mmap.mmap, index: int, device: int = 0) -> None:
        self._usage = usage
        self._at = 64 + index * SLOT_BYTES + 64 + device * SLOT_DEVICE_BYTES

    def __getattr__(self, name: str) -> int:
        if name in WORDS:
            return ctypes.c_uint64.from_buffer(self._usage, self._at + WORDS[name]).value
        if name in HALVES:
            return ctypes.c_uint32.from_buffer(self._usage, self._at + HALVES[name]).value
        raise AttributeError(name)

    def set_cut(self, cut: int) -> None:
        """As the arbiter does; whoever waits for it has to be woken (Grant.wake)."""
        ctypes.c_uint64.from_buffer(self._usage, self._at + WORDS["cut"]).value = cut


class Grant:
    def __init__(self, directory: Path, sim: Simulator, guarantee_milli: int = 250, bound_ns: int = 2 * MS) -> None:
        self.directory = directory
        self.ndevices = len(sim.uuids)
        directory.mkdir()
        (directory / "driver").symlink_to(paths.SIM_LIB_DIR)
        (directory / "sim").symlink_to(sim.directory)
        self.limits = self._page("limits", LIMITS_BYTES)
        self.usage = self._page("usage", USAGE_BYTES)
        struct.pack_into("<IIII40sII", self.usage, 0, USAGE_MAGIC, PAGE_VERSION, USAGE_BYTES, SLOTS, b"grant", 0, 0)
        head = (LIMITS_MAGIC, PAGE_VERSION, LIMITS_BYTES, self.ndevices, b"grant", 1, 0, 1, 1)
        struct.pack_into("<IIII40sIIII", self.limits, 0, *head)
        for index, uuid in enumerate(sim.uuids):
            words = (uuid, 2 << 30, 16 << 20, bound_ns, guarantee_milli, 1000, 0, 1)
            struct.pack_into("<16sQQQIIII", self.limits, 128 + 128 * index, *words)
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._joined: list[socket.socket] = []
        self._slots = 0
        self._beating = threading.Event()
        self._beating.set()
        self._end = threading.Event()
        self._server = self._listen()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._serve, self._beat)]
        for thread in self._threads:
            thread.start()

    def _page(self, name: str, size: int) -> mmap.mmap:
        with open(self.directory / name, "w+b") as file:
            file.truncate(size)
            return mmap.mmap(file.fileno(), size)

    def _listen(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(str(self.directory / "grant.sock"))
        server.listen(64)
        server.settimeout(0.05)
        return server

    def _serve(self) -> None:
        while not self._end.is_set():
            try:
                connection, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            magic, version, slot, generation = struct.unpack("<IIII", connection.recv(64))
            assert (magic, version) == (JOIN_MAGIC, WIRE_VERSION)
            if slot == NO_SLOT:
                slot, generation = self._slots, 1
                self._slots += 1
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                pid = struct.unpack("<iII", peer)[0]
                struct.pack_into("<IIi", self.usage, 64 + slot * SLOT_BYTES, 1, generation, pid)
                struct.pack_into("<I", self.limits, SLOTS_HIGH, self._slots)
            reply = struct.pack("<IIIIIi104s", JOIN_MAGIC, WIRE_VERSION, 0, slot, generation, 1, b"")
            socket.send_fds(connection, [reply], [self.bell])
            self._joined.append(connection)

    def _beat(self) -> None:
        beat = 1
        while not self._end.wait(0.02):
            if self._beating.is_set():
                beat += 1
                struct.pack_into("<I", self.limits, HEARTBEAT, beat)

    def lease_word(self, device: int = 0) -> int:
        return ctypes.c_uint32.from_buffer(self.limits, 128 + 128 * device + LEASE).value

    def _lease(self, device: int) -> ctypes.c_uint32:
        return ctypes.c_uint32.from_buffer(self.limits, 128 + 128 * device + LEASE)

    def wake(self, device: int = 0) -> None:
        libc.syscall(202, ctypes.byref(self._lease(device)), 1, 1 << 30, None, None, 0)  # futex, wake all

    def _turn(self, held: bool, device: int) -> int:
        word = self._lease(device)
        if bool(word.value & 1) != held:
            word.value += 1
            self.wake(device)
        return word.value

    def lease(self, device: int = 0) -> int:
        return self._turn(True, device)

    def revoke(self, device: int = 0) -> int:
        return self._turn(False, device)

    def set_bound(self, ns: int, device: int = 0) -> None:
        struct.pack_into("<Q", self.limits, 128 + 128 * device + BOUND, ns)

    def set_foreign_work(self, foreign: bool, device: int = 0) -> None:
        (before,) = struct.unpack_from("<I", self.limits, 128 + 128 * device + FOREIGN_WORK)
        if before & 1 != foreign:
            struct.pack_into("<Q", self.limits, 128 + 128 * device + FOREIGN_WORK_NS, time.monotonic_ns())
            struct.pack_into("<I", self.limits, 128 + 128 * device + FOREIGN_WORK, ((before >> 1) + 1) << 1 | foreign)

    def slot(self, index: int = 0, device: int = 0) -> Slot:
        return Slot(self.usage, index, device)

    def rings(self) -> int:
        """Since the last time it was asked."""
        try:
            return os.eventfd_read(self.bell)
        except BlockingIOError:
            return 0

    def rung(self) -> bool:
        return self.rings() > 0

    def daemon_dies(self) -> None:
        self._beating.clear()
        self._server.close()
        (self.directory / "grant.sock").unlink()
        for connection in self._joined:
            connection.close()
        self._joined.clear()
        self._threads[0].join(10)

    def daemon_returns(self) -> None:
        self._server = self._listen()
        struct.pack_into("<I", self.limits, DAEMON_EPOCH, struct.unpack_from("<I", self.limits, DAEMON_EPOCH)[0] + 1)
        self._threads[0] = threading.Thread(target=self._serve, daemon=True)
        self._threads[0].start()
        self._beating.set()

    @property
    def connections(self) -> int:
        return len(self._joined)

    def close(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(10)
        self._server.close()
        for connection in self._joined:
            connection.close()
        os.close(self.bell)


class Tenant:
    """A running test program. `end` lets it finish; `result` is the JSON line it printed."""

    def __init__(
        self, program: Path, grant: Grant | None, sim: Simulator, *arguments: object, env: dict[str, str]
    ) -> None:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR), **env}
        if grant is None:
            environment["GPUSHARE_SIM_DIR"] = str(sim.directory)
        else:
            environment |= {"LD_PRELOAD": str(paths.INTERPOSER), "GPUSHARE_GRANT_DIR": str(grant.directory)}
        self.process = subprocess.Popen(
            [program, arguments[0], paths.SPIN_PTX, *map(str, arguments[1:])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.pid = self.process.pid

    def line(self) -> dict[str, Any]:
        """The printed result; the process stays until `end`."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the tenant ended with {self.process.wait(10)} and printed nothing"
        return json.loads(text)

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Ends a looping program and gives what it printed."""
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return json.loads(out) if out else {}

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
