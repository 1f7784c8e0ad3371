"""A hostile program of a tenant's: it tries what its first argument names, and prints one JSON object.

It goes round the interposer: the driver is loaded by its path, with no environment of ours but where the simulator is.
It is started with a Python of the host, or by the tests' container."""

import array
import contextlib
import ctypes
import errno
import json
import os
import socket
import stat
import sys

NODES = "/dev/gpushare-sim-"


def driver_bytes(library: str, mib: int, piece: int = 16) -> dict[str, int]:
    """How many MiB of device 0 a bare driver gives this process, in pieces, up to `mib`; `init`: of cuInit."""
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
    """The name of the errno of an open, `OK` where it succeeds."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return errno.errorcode[error.errno]
    return "OK"


def nodes() -> dict[str, str]:
    """Of each node there is."""
    return {name: opened(f"/dev/{name}") for name in sorted(os.listdir("/dev")) if name.startswith("gpushare-sim-")}


def made(major: int, minor: int) -> dict[str, str]:
    """A node of its own for a device that it was not given, by mknod, with whatever name."""
    path = f"/tmp/attack-{os.getpid()}"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    except OSError as error:
        return {"mknod": errno.errorcode[error.errno], "open": ""}
    try:
        return {"mknod": "OK", "open": opened(path)}
    finally:
        os.unlink(path)


def by_reference(path: str) -> str:
    """Opens a node through a descriptor that only names it, as another process may hand it over."""
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
    """Takes hold of another process."""
    libc = ctypes.CDLL(None, use_errno=True)
    attach = 16  # PTRACE_ATTACH
    if libc.ptrace(attach, pid, None, None) == 0:
        libc.ptrace(17, pid, None, None)
        return "OK"
    return errno.errorcode[ctypes.get_errno()]


def connected(path: str) -> str:
    """To a socket, with nothing said."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(5)
        return errno.errorcode.get(client.connect_ex(path), "OK")


def crowd(library: str, processes: int, mib: int) -> dict[str, int]:
    """Many processes that all take what they can, and hold it until all have tried."""
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
    "reference": by_reference,
    "traced": lambda pid: traced(int(pid)),
    "connected": connected,
    "crowd": lambda library, processes, mib: crowd(library, int(processes), int(mib)),
}

if __name__ == "__main__":
    print(json.dumps(TRICKS[sys.argv[1]](*sys.argv[2:])), flush=True)
    if os.environ.get("ATTACK_HOLD"):
        sys.stdin.readline()
