"""Client of gpushare-sim, the simulated hardware: speaks native/sim/wire/sim_proto.h over its socket, and starts its
process.

Synchronous and thread-safe: one request at a time, each bounded in time.
"""

import contextlib
import errno
import json
import os
import select
import socket
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.errors import FailedError
from gpushare.paths import SIM_BINARY

MAGIC = 0x67734D31
VERSION = 5
HELLO, MEM_INFO, STATS, PROCESSES, STOP, DEVICE, SETTING, LIMIT_SET, LIMIT_GET = 1, 4, 7, 8, 9, 10, 13, 23, 24
NO_LIMIT = (1 << 64) - 1
DRIVER_LIMITS = 615  # SIM_DRIVER_LIMITS
SETTING_POWER_LIMIT, SETTING_LOST = 3, 4
KEEP = (1 << 64) - 1
ROLE_VIEWER, ROLE_CONTROL = 2, 3
SOCKET_NAME = "sim.sock"
LOG_NAME = "sim.log"  # next to the directory, not in it: containers see that

_REQUEST = struct.Struct("<IIIIQQ")
_REPLY = struct.Struct("<IiQQQ")
_HELLO = struct.Struct("<IiIIiiQQQQQQQQIIIIII6Q")
_DEVICE = struct.Struct("<16sQ64sIII4B")
_PROCESS = struct.Struct("<iIQQQ")
_ANSWER_SECONDS = 2.0
_START_SECONDS = 5.0

# GPUSHARE_SIM_<name> of the daemon's environment -> flag of gpushare-sim.
OPTIONS = (
    "KERNEL_NS",
    "CONTEXT_MIB",
    "SLICE_NS",
    "SWITCH_NS",
    "PREEMPT",
    "LAUNCH_NS",
    "EVENT_NS",
    "QUERY_NS",
    "QUEUE_DEPTH",
    "COPY_GBPS",
    "PAGEABLE_GBPS",
    "PIN_GIBPS",
    "VMM_NS",
    "NVLINK",
    "PCIE",
    "NUMA",
    "DRIVER",
)


@dataclass(frozen=True, slots=True)
class SimDevice:
    """A device as the simulator describes it. `nvlink`, `pcie`, `numa`: its group number in each; 0: none."""

    uuid: str
    memory_bytes: int
    name: str
    pci_bus_id: str
    nvlink: int = 0
    pcie: int = 0
    numa: int = 0


def flags(environment: dict[str, str]) -> list[str]:
    """Turns GPUSHARE_SIM_* into command-line flags; the simulator validates the values."""
    found = []
    for name in OPTIONS:
        if value := environment.get(f"GPUSHARE_SIM_{name}"):
            found += [f"--{name.lower().replace('_', '-')}", value]
    return found


def start(directory: Path, sizes: list[int], first: tuple[int, int] | None) -> subprocess.Popen[bytes]:
    """Starts the simulator in its own session: like hardware, it survives when the daemon is killed. `first`: major and
    minor of the first device's node; None: devices have no nodes."""
    devices = ",".join(f"1x{size}" for size in sizes)
    command = [
        str(SIM_BINARY),
        "--socket",
        str(directory / SOCKET_NAME),
        "--devices",
        devices,
        *(["--nodes", f"{first[0]}:{first[1]}"] if first is not None else []),
        *flags(dict(os.environ)),
    ]
    log = directory.with_name(LOG_NAME)
    try:
        with open(log, "wb") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
            )
    except OSError as error:
        raise FailedError(
            f"cannot start {SIM_BINARY} ({error.strerror}): build the project with `make build`"
        ) from None


class Simulator:
    """One control connection. `spawned`: the process if this daemon started it; None if it was already running."""

    def __init__(self, connection: socket.socket, spawned: subprocess.Popen[bytes] | None = None) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self.spawned = spawned
        hello = self._exchange(HELLO, a=ROLE_CONTROL, size=_HELLO.size + 16 * _DEVICE.size)[0]
        fields = _HELLO.unpack_from(hello)
        if fields[0] != MAGIC or fields[2] != VERSION:
            raise FailedError("what answers on the simulator's socket is another version: end it and start again")
        if fields[1] != 0:
            raise FailedError(f"the simulator refuses the daemon: {os.strerror(-fields[1])}")
        self.pid: int = fields[5]
        self.context_bytes: int = fields[6]
        self.driver: int = fields[16]
        self.first_node: tuple[int, int] | None = (fields[17], fields[18]) if fields[17] else None
        self.devices = [self._device(hello, index) for index in range(fields[3])]

    @staticmethod
    def _device(hello: bytes, index: int) -> SimDevice:
        raw, memory, name, domain, bus, device, *groups = _DEVICE.unpack_from(hello, _HELLO.size + index * _DEVICE.size)
        text = name.split(b"\0", 1)[0].decode(errors="replace")
        where = f"{domain:08x}:{bus:02x}:{device:02x}.0"
        return SimDevice(f"GPU-{uuid.UUID(bytes=raw)}", memory, text, where, *groups[:3])

    @classmethod
    def connect(cls, directory: Path, spawned: subprocess.Popen[bytes] | None = None) -> "Simulator | None":
        """Connects to the simulator of this directory; None if nothing listens there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(os.fspath(directory / SOCKET_NAME))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        except BaseException:
            connection.close()
            raise
        try:
            return cls(connection, spawned)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def start_or_adopt(cls, directory: Path, sizes: list[int], first: tuple[int, int] | None = None) -> "Simulator":
        """Connects to the simulator that runs there, or starts one. `first`: as in `start`. Raises FailedError with its
        error output."""
        if (found := cls.connect(directory)) is not None:
            return found
        process = start(directory, sizes, first)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if (found := cls.connect(directory, process)) is not None:
                return found
            if process.poll() is not None:
                break
            time.sleep(0.005)
        process.kill()
        process.wait()
        lines = directory.with_name(LOG_NAME).read_text(errors="replace").strip().splitlines()
        reason = lines[0].removeprefix("gpushare-sim: ") if lines else f"it ended with status {process.returncode}"
        raise FailedError(f"the simulator did not start: {reason}")

    def _exchange(
        self, op: int, device: int = 0, a: int = 0, b: int = 0, size: int = _REPLY.size, give: Sequence[int] = ()
    ) -> tuple[bytes, list[int]]:
        with self._lock:
            try:
                socket.send_fds(self._socket, [_REQUEST.pack(MAGIC, VERSION, op, device, a, b)], give)
                answer, descriptors, _, _ = socket.recv_fds(self._socket, size, 2)
            except OSError as error:
                raise FailedError(f"the simulator does not answer ({error}): restart the daemon") from None
        if not answer:
            raise FailedError("the simulator ended: restart the daemon")
        return answer, descriptors

    def _request(
        self, op: int, device: int = 0, a: int = 0, b: int = 0, give: Sequence[int] = ()
    ) -> tuple[tuple[int, ...], list[int]]:
        answer, descriptors = self._exchange(op, device, a, b, give=give)
        magic, error, *values = _REPLY.unpack(answer)
        if magic != MAGIC or error != 0:
            for descriptor in descriptors:
                os.close(descriptor)
            if error == -errno.EIO:
                raise FailedError(f"simulated device {device} is lost: `gpushare sim restore {device}` brings it back")
            raise FailedError(f"the simulator refuses a request: {os.strerror(-error)}")
        return tuple(values), descriptors

    def _file(self, op: int, device: int = 0, a: int = 0) -> tuple[int, bytes]:
        """Sends a request whose answer comes in a file; returns the answer's first number and the file's content.
        Raises FailedError."""
        values, descriptors = self._request(op, device, a)
        if not descriptors:  # the kernel drops a received file if the process is at its descriptor limit
            raise FailedError("the daemon is short of descriptors for an answer of the simulator: try again later")
        with open(descriptors[0], "rb") as file:  # its offset is at the end: pread, not read
            return values[0], os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)

    def stats(self) -> Any:
        """Returns the simulator's books: {"devices": [...]}. Raises FailedError."""
        size, text = self._file(STATS)
        return json.loads(text[:size])

    def number(self, device_id: str) -> int | None:
        """Returns the simulator's number of a device; None if it does not have it."""
        return next((number for number, device in enumerate(self.devices) if device.uuid == device_id), None)

    def memory_used(self, device: int) -> int:
        """Returns the bytes in use on the device, by all processes. Raises FailedError."""
        return self._request(MEM_INFO, device)[0][1]

    def times(self, device: int) -> tuple[int, int]:
        """Returns the ns that the device has worked, and those since the simulator started. Raises FailedError."""
        busy, wall, _ = self._request(DEVICE, device)[0]
        return busy, wall

    def power_limit(self, device: int) -> int:
        """Returns the device's power limit in milliwatts, which is only stored. Raises FailedError."""
        return self._request(SETTING, device, SETTING_POWER_LIMIT, KEEP)[0][0]

    def clients(self, device: int) -> int:
        """Returns the number of processes that have a context or memory on the device."""
        return self._request(DEVICE, device)[0][2]

    def processes(self, device: int) -> list[tuple[int, int, int]]:
        """Returns (pid, ns of device time, bytes) of the living processes that use the device. Raises FailedError."""
        count, content = self._file(PROCESSES, device, a=1)
        rows = _PROCESS.iter_unpack(content[: count * _PROCESS.size])
        return [(pid, busy, held) for pid, alive, busy, held, _ in rows if alive]

    def in_use(self) -> bool:
        """Whether any process has a context or memory on one of its devices."""
        return any(self.clients(index) for index in range(len(self.devices)))

    def set_lost(self, device: int, *, lost: bool) -> None:
        """Makes a device lost, or restores it. A lost device answers no request, and its work pauses."""
        self._request(SETTING, device, SETTING_LOST, int(lost))

    def limit(self, device: int, group: Path, hard: int) -> None:
        """Limits the memory of all processes in a cgroup and below; NO_LIMIT removes the limit. Raises FailedError,
        also if the simulated driver version has no such limits."""
        self._of_group(LIMIT_SET, device, group, hard)

    def used(self, device: int, group: Path) -> int:
        """Returns the bytes that the processes of a limited cgroup hold. Raises FailedError."""
        return self._of_group(LIMIT_GET, device, group)[2]

    def _of_group(self, op: int, device: int, group: Path, hard: int = 0) -> tuple[int, ...]:
        try:
            directory = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise FailedError(f"the cgroup {group} is not there: {error.strerror}") from None
        try:
            if self.driver < DRIVER_LIMITS:
                raise FailedError(f"driver {self.driver} has no limits per cgroup: those from r{DRIVER_LIMITS} on do")
            return self._request(op, device, hard, give=[directory])[0]
        finally:
            os.close(directory)

    def stop(self) -> None:
        """Ends the simulator and waits until it has ended."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:
            pidfd = None
        self._request(STOP)
        self.close()
        if pidfd is not None:
            select.select([pidfd], [], [], _START_SECONDS)
            os.close(pidfd)
        if self.spawned is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.spawned.wait(_START_SECONDS)

    def close(self) -> None:
        """Closes the connection; the simulator keeps running."""
        self._socket.close()
