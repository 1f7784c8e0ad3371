"""A grant without a daemon or an arbiter: the test creates the pages, serves joins and writes the lease word."""

import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pages import heart, joinmessages
from run.simulated import CONTEXT, Sim, Wire

from gpushare import paths
from gpushare._native import ffi, lib

LIMITS, USAGE = "struct gs_limits", "struct gs_usage"
LIMITS_BYTES, USAGE_BYTES, SLOTS = ffi.sizeof(LIMITS), ffi.sizeof(USAGE), lib.GS_MAX_SLOTS
MS = 1_000_000


class Simulator(Sim):
    """Starts a simulator with one device of 4 GiB, for hand-made grants."""

    def __init__(self, directory: Path, devices: str = "1x4GiB", *options: str) -> None:
        super().__init__(directory)
        self.start(*options, devices=devices)
        self._viewer = Wire(self.socket)
        self.uuids = self._viewer.uuids

    def books(self) -> dict[str, Any]:
        return self.stats(self._viewer)

    def busy_ns(self, pid: int, device: int = 0) -> int:
        processes = self.books()["devices"][device]["processes"]
        return sum(process["busy_ns"] for process in processes if process["pid"] == pid)

    def worked(self, seconds: float, device: int = 0) -> float:
        """The part of the next seconds for which a device works, by the simulator's clock: the machine may be slow to
        answer."""
        before = self.books()["devices"][device]
        time.sleep(seconds)
        after = self.books()["devices"][device]
        return float((after["busy_ns"] - before["busy_ns"]) / (after["wall_ns"] - before["wall_ns"]))

    def stop(self) -> None:
        self._viewer.close()
        super().stop()


class Slot:
    """What one process published about one device: the fields of struct gs_slot_device."""

    def __init__(self, usage: Any, index: int, device: int = 0) -> None:
        self._words = usage.slot[index].device[device]

    def __getattr__(self, name: str) -> int:
        return int(getattr(self._words, name))

    def set_cut(self, cut: int) -> None:
        """Writes the lease word as the arbiter does. The caller must wake waiting threads (Grant.wake)."""
        self._words.cut = cut


class Grant:
    """`limits` and `usage`: its pages, as struct gs_limits and struct gs_usage.

    `devices`: numbers of the simulator's devices in the grant's order; all of them if not given.
    """

    def __init__(
        self,
        directory: Path,
        sim: Simulator,
        guarantee_milli: int = 250,
        bound_ns: int = 2 * MS,
        devices: Sequence[int] | None = None,
    ) -> None:
        self.directory, self._beats = directory, directory.absolute() / "limits"
        uuids = sim.uuids if devices is None else [sim.uuids[device] for device in devices]
        self.ndevices = len(uuids)
        directory.mkdir()
        (directory / "driver").symlink_to(paths.SIM_LIB_DIR)
        (directory / "sim").symlink_to(sim.directory)
        self.limits, self.usage = self._page("limits", LIMITS), self._page("usage", USAGE)
        for page, magic, size in (
            (self.usage, lib.GS_USAGE_MAGIC, USAGE_BYTES),
            (self.limits, lib.GS_LIMITS_MAGIC, LIMITS_BYTES),
        ):
            page.magic, page.version, page.size, page.grant = magic, lib.GS_PAGE_VERSION, size, b"grant"
        self.usage.nslots = SLOTS
        head = self.limits
        head.ndevices, head.state, head.slots_high = self.ndevices, lib.GS_GRANT_ACTIVE, 0
        head.daemon_epoch, head.heartbeat = 1, 1
        for device, uuid in zip(head.device, uuids, strict=False):
            device.uuid, device.memory_bytes, device.context_bytes = uuid, 2 << 30, CONTEXT
            device.inflight_bound_ns, device.guarantee_milli, device.limit_milli = bound_ns, guarantee_milli, 1000
            device.contended = 1
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._joined: list[socket.socket] = []
        self._slots = 0
        self._begin()

    def _page(self, name: str, layout: str) -> Any:
        with open(self.directory / name, "w+b") as file:
            file.truncate(ffi.sizeof(layout))
            mapped = mmap.mmap(file.fileno(), ffi.sizeof(layout))
        return ffi.from_buffer(f"{layout} *", mapped, require_writable=True)

    def _begin(self) -> None:
        self._server = self._listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        heart.begin(self._beats, ffi.offsetof(LIMITS, "heartbeat"))

    def _listen(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind(str(self.directory / "grant.sock"))
        server.listen(64)
        return server

    def _stop_serving(self) -> None:
        """Uses shutdown, because close alone does not unblock the thread in accept."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            try:
                if message := connection.recv(64):
                    self._answer(connection, message)
                else:
                    connection.close()
            except (BrokenPipeError, ConnectionResetError):  # the process was killed meanwhile
                connection.close()

    def _answer(self, connection: socket.socket, message: bytes) -> None:
        request = joinmessages.asked(message)
        assert (request.magic, request.version) == (lib.GS_JOIN_MAGIC, lib.GS_WIRE_VERSION)
        slot, generation = request.slot, request.generation
        if slot == lib.GS_NO_SLOT:
            slot, generation = self._slots, 1
            self._slots += 1
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            given = self.usage.slot[slot]
            given.state, given.generation = lib.GS_SLOT_LIVE, generation
            given.pid = struct.unpack("<iII", peer)[0]
            self.limits.slots_high = self._slots
        socket.send_fds(connection, [joinmessages.reply(lib.GS_JOIN_OK, slot, generation)], [self.bell])
        self._joined.append(connection)

    def lease_word(self, device: int = 0) -> int:
        return int(lib.gs_load32(self._lease(device)))

    def _lease(self, device: int) -> Any:
        return ffi.addressof(self.limits.device[device], "lease")

    def wake(self, device: int = 0) -> None:
        lib.gs_futex_wake(self._lease(device))

    def _turn(self, held: bool, device: int) -> int:
        if bool(self.lease_word(device) & 1) != held:
            lib.gs_add32(self._lease(device), 1)
            self.wake(device)
        return self.lease_word(device)

    def lease(self, device: int = 0) -> int:
        return self._turn(True, device)

    def revoke(self, device: int = 0) -> int:
        return self._turn(False, device)

    def set_bound(self, ns: int, device: int = 0) -> None:
        self.limits.device[device].inflight_bound_ns = ns

    def set_foreign_work(self, foreign: bool, device: int = 0) -> None:
        limits = self.limits.device[device]
        if bool(limits.foreign_work & 1) != foreign:
            limits.foreign_work_ns = time.monotonic_ns()
            limits.foreign_work = ((limits.foreign_work >> 1) + 1) << 1 | foreign

    def slot(self, index: int = 0, device: int = 0) -> Slot:
        return Slot(self.usage, index, device)

    def gated(self, pid: int, device: int = 0) -> int:
        """Number of threads of a process that sleep until the device's lease changes, according to the kernel. The
        slot's `waiting` also counts threads that wait for work in flight, which needs no lease to end."""
        limits = str((self.directory / "limits").resolve())
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        mapped = next((int(line.split("-")[0], 16) for line in lines if line.endswith(limits)), None)
        if mapped is None:
            return 0
        word = hex(mapped + int(ffi.cast("char *", self._lease(device)) - ffi.cast("char *", self.limits)))
        found = 0
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                asleep = word in (task / "syscall").read_text().split()[:2]
                found += asleep and (task / "comm").read_text() != "gpushare-gate\n"
            except OSError:  # the thread has ended
                continue
        return found

    def charged(self, device: int = 0, pid: int | None = None) -> int:
        """memory_bytes of all slots, or of all slots of one process."""
        return sum(slot.device[device].memory_bytes for slot in self.usage.slot if pid in (None, slot.pid))

    def give_back(self, index: int = 0) -> None:
        """Clears what the process of a slot has charged on the first device, as the daemon does after its death."""
        words = self.usage.slot[index].device[0]
        words.memory_bytes = words.memory_pending = words.memory_growing = 0

    def put_slot(self, index: int, pid: int, held: int = 0, busy_ns: int = 0, pending: int = 0) -> None:
        """Makes a slot of a process that need not exist."""
        slot = self.usage.slot[index]
        slot.state, slot.generation, slot.pid = lib.GS_SLOT_LIVE, 1, pid
        words = slot.device[0]
        words.memory_bytes, words.memory_pending, words.busy_ns = held, pending, busy_ns
        self.limits.slots_high = max(self.limits.slots_high, index + 1)

    def set_limit(self, limit: int, device: int = 0) -> None:
        self.limits.device[device].memory_bytes = limit

    def rings(self) -> int:
        """The count since the previous call."""
        try:
            return os.eventfd_read(self.bell)
        except BlockingIOError:
            return 0

    def rung(self) -> bool:
        return self.rings() > 0

    def daemon_dies(self) -> None:
        heart.end(self._beats)
        self._stop_serving()
        (self.directory / "grant.sock").unlink()
        for connection in self._joined:
            connection.close()
        self._joined.clear()

    def daemon_returns(self) -> None:
        self.limits.daemon_epoch += 1
        self._begin()

    @property
    def connections(self) -> int:
        return len(self._joined)

    def close(self) -> None:
        heart.end(self._beats)
        if self._server.fileno() >= 0:
            self._stop_serving()
        for connection in self._joined:
            connection.close()
        os.close(self.bell)


class Tenant:
    """A running test program. `end` lets it exit; `result` is the JSON line it printed."""

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
        """The printed result; the process keeps running until `end`."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the tenant ended with {self.process.wait(10)} and printed nothing"
        return json.loads(text)

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Stops a looping program and returns its output."""
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
