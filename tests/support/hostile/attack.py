"""A tenant's hostile program: tries the trick that its first argument names, and prints one JSON object.

It bypasses the interposer: it loads the driver by its path, and its only gpushare variable says where the simulator is.
It is started with the host's Python, or inside a test's container."""

import array
import contextlib
import ctypes
import errno
import json
import mmap
import os
import socket
import stat
import struct
import sys
import time
from pathlib import Path

NODES = "/dev/gpushare-sim-"
SELF = "/run/gpushare/self"


def driver_bytes(library: str, mib: int, piece: int = 16) -> dict[str, int]:
    """Allocates up to `mib` MiB of device 0 by a bare driver. `init`: cuInit's result; `mib`: what it got."""
    cuda = ctypes.CDLL(library)
    code = cuda.cuInit(0)
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    got, last = 0, 0
    if code == 0:
        context, memory = ctypes.c_void_p(), ctypes.c_uint64()
        last = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
        while last == 0 and got < mib:
            last = cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(piece << 20))
            got += piece if last == 0 else 0
    return {"init": code, "devices": count.value if code == 0 else 0, "mib": got, "last": last}


def opened(path: str) -> str:
    """Opens a file; returns the name of the errno, `OK` if the open succeeds."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode[error.errno]
    return "OK"


def nodes() -> dict[str, str]:
    """What `opened` says of each device node in /dev, by name."""
    return {name: opened(f"/dev/{name}") for name in sorted(os.listdir("/dev")) if name.startswith("gpushare-sim-")}


def made(major: int, minor: int) -> dict[str, str]:
    """Makes a node for a device that the container was not given, under another name, and opens it."""
    path = f"/tmp/attack-{os.getpid()}"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except OSError as error:
        return {"mknod": errno.errorcode[error.errno], "open": ""}
    try:
        return {"mknod": "OK", "open": opened(path)}
    finally:
        os.unlink(path)


def mounted(kind: str, where: str, flags: int = 0) -> str:
    """Mounts a file system; returns the name of the errno, `OK` if the mount succeeds."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), where.encode(), kind.encode(), ctypes.c_ulong(flags), None) == 0:
        return "OK"
    return errno.errorcode[ctypes.get_errno()]


def all_nodes() -> dict[str, str]:
    """Mounts devtmpfs, which has the nodes of all devices, and opens each device node in it."""
    Path("/tmp/all").mkdir()
    if (done := mounted("devtmpfs", "/tmp/all")) != "OK":
        return {"mount": done}
    names = (name for name in sorted(os.listdir("/tmp/all")) if name.startswith("gpushare-sim-"))
    return {"mount": "OK", **{name: opened(f"/tmp/all/{name}") for name in names}}


def remounted(mib: int) -> dict[str, int | str]:
    """Makes the grant's files writable, raises the memory limits, and allocates as any program does."""
    remount, bind = 32, 4096  # MS_REMOUNT, MS_BIND
    found: dict[str, int | str] = {"mount": mounted("none", SELF, remount | bind), "limits": "OK"}
    try:
        with open(f"{SELF}/limits", "r+b", buffering=0) as limits:
            for device in range(16):
                limits.seek(128 + 128 * device + 16)  # gs_device_limits.memory_bytes
                limits.write(struct.pack("<Q", 1 << 40))
    except OSError as error:
        found["limits"] = errno.errorcode[error.errno or 0]
    return {**found, **driver_bytes("libcuda.so.1", mib)}


# The simulator's protocol (native/sim/wire/sim_proto.h) by hand, as other programs issue ioctls. An open device is a
# connection.


class Opened:
    """An open device, whichever process opened it."""

    HELLO, MEM_ALLOC, LANE_OPEN = 1, 2, 5

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    @classmethod
    def by_this_process(cls) -> "Opened":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(f"{SELF}/sim/sim.sock")
        device = cls(connection)
        device.ask(cls.HELLO, 1)
        return device

    def ask(self, op: int, number: int = 0) -> tuple[int, list[int]]:
        """Returns the error and the descriptors received."""
        self.connection.send(struct.pack("<IIIIQQ", 0x67734D31, 5, op, 0, number, 0))
        message, descriptors, _, _ = socket.recv_fds(self.connection, 4096, 2)
        return struct.unpack_from("<i", message, 4)[0], descriptors

    def take(self, mib: int, piece: int = 16) -> dict[str, int]:
        got, last = 0, 0
        while got < mib and (last := self.ask(self.MEM_ALLOC, piece << 20)[0]) == 0:
            got += piece
        return {"mib": got, "last": last}

    def work(self, ns: int) -> dict[str, int]:
        """Uses device time, in one piece."""
        error, descriptors = self.ask(self.LANE_OPEN)
        if error == 0:
            file, bell = descriptors
            reports = 128 + 512 * 24
            with mmap.mmap(file, 0) as page:
                page[reports + 128 : reports + 160] = struct.pack("<QQQQ", 0, time.monotonic_ns(), 0, ns)
                page[reports : reports + 8] = struct.pack("<Q", 1)
            os.eventfd_write(bell, 1)
        return {"last": error}

    def serve(self) -> None:
        """Obeys lines of standard input: `take MIB`, `work NS`."""
        for line in sys.stdin:
            word, number = line.split()
            print(json.dumps(getattr(self, word)(int(number))), flush=True)


def lend(path: str) -> dict[str, int]:
    """Opens the device, and passes the descriptor to the next process that connects to a socket at `path`."""
    device = Opened.by_this_process()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(path)
        door.listen()
        print(json.dumps({"open": 0}), flush=True)
        guest, _ = door.accept()
    with guest:
        socket.send_fds(guest, [b"x"], [device.connection.fileno()])
    device.serve()
    return {}


def borrow(path: str) -> dict[str, int]:
    """Receives an open device from the process that listens at `path`, and uses it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.connect(path)
        _, [given], _, _ = socket.recv_fds(door, 1, 1)
    Opened(socket.socket(fileno=given)).serve()
    return {}


def by_reference(path: str) -> str:
    """Opens a node through an O_PATH descriptor received over a socket, as another process may pass it."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        try:
            place = os.open(path, os.O_PATH)
        except OSError as error:
            return errno.errorcode[error.errno]
        socket.send_fds(theirs, [b"x"], [place])
        _, [given], _, _ = socket.recv_fds(mine, 1, 1)
        return opened(f"/proc/self/fd/{given}")


def traced(pid: int) -> str:
    """Attaches to another process with ptrace."""
    libc = ctypes.CDLL(None, use_errno=True)
    attach = 16  # PTRACE_ATTACH
    if libc.ptrace(attach, pid, None, None) == 0:
        libc.ptrace(17, pid, None, None)
        return "OK"
    return errno.errorcode[ctypes.get_errno()]


def connected(path: str) -> str:
    """Connects to a socket and sends nothing; returns the name of the errno, or `OK`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(5)
        return errno.errorcode.get(client.connect_ex(path), "OK")


def crowd(library: str, processes: int, mib: int) -> dict[str, int]:
    """Forks processes that each take what they can; all keep it until a line on standard input."""
    ready, go = os.pipe(), os.pipe()
    children = []
    for _ in range(processes):
        if (child := os.fork()) == 0:
            os.close(go[1])
            os.write(ready[1], array.array("q", [driver_bytes(library, mib)["mib"]]).tobytes())
            with contextlib.suppress(OSError):
                os.read(go[0], 1)
            os._exit(0)
        children.append(child)
    os.close(go[0])
    total = sum(array.array("q", os.read(ready[0], 8))[0] for _ in children)
    print(json.dumps({"mib": total}), flush=True)
    sys.stdin.readline()
    os.close(go[1])
    for child in children:
        os.waitpid(child, 0)
    return {"mib": total}


TRICKS = {
    "driver": lambda library, mib: driver_bytes(library, int(mib)),
    "nodes": nodes,
    "made": lambda major, minor: made(int(major), int(minor)),
    "all-nodes": all_nodes,
    "remounted": lambda mib: remounted(int(mib)),
    "lend": lend,
    "borrow": borrow,
    "reference": by_reference,
    "traced": lambda pid: traced(int(pid)),
    "connected": connected,
    "crowd": lambda library, processes, mib: crowd(library, int(processes), int(mib)),
}

if __name__ == "__main__":
    print(json.dumps(TRICKS[sys.argv[1]](*sys.argv[2:])), flush=True)
    if os.environ.get("ATTACK_HOLD"):
        sys.stdin.readline()
