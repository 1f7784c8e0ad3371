"""A tenant's process without CUDA: joins its grant as the interposer does, then reads commands from standard input.

hold N   reports in its slot that it holds N bytes   exec     joins anew in a new image of the same process
sleep    a new image that does not join              traced   the same, stopped by ptrace before it runs
hangup   closes the connection, keeps running        rejoin   joins again with its old slot
fork     joins in a child process                    end      exits
nobody   the same as sleep, as another user
"""

import ctypes
import mmap
import os
import socket
import sys
from pathlib import Path

from gpushare._native import ffi, lib

DIRECTORY = Path(os.environ["GPUSHARE_GRANT_DIR"])


class Joined:
    def __init__(self, slot: int = lib.GS_NO_SLOT, generation: int = 0) -> None:
        usage = os.open(DIRECTORY / "usage", os.O_RDWR)
        self.page = ffi.from_buffer("struct gs_usage *", mmap.mmap(usage, 0), require_writable=True)
        os.close(usage)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(DIRECTORY / "grant.sock"))
        request = ffi.new("struct gs_join_request *", [lib.GS_JOIN_MAGIC, lib.GS_WIRE_VERSION, slot, generation])
        self.socket.send(ffi.buffer(request))
        message, descriptors, _, _ = socket.recv_fds(self.socket, ffi.sizeof("struct gs_join_reply"), 1)
        reply = ffi.from_buffer("struct gs_join_reply *", message)
        self.error, self.slot, self.generation, self.pid = reply.error, reply.slot, reply.generation, reply.host_pid
        self.text = ffi.string(reply.message).decode()
        self.bells = len(descriptors)

    def hold(self, size: int) -> None:
        self.page.slot[self.slot].device[0].memory_bytes = size

    def say(self) -> None:
        if self.error:
            print("refused", self.error, self.text, flush=True)
        else:
            print("joined", DIRECTORY.parent.name, self.slot, self.generation, self.pid, self.bells, flush=True)


def main() -> None:
    joined = Joined()
    joined.say()
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "hold":
            joined.hold(int(rest[0]))
            print("held", flush=True)
        elif word == "exec":
            os.execv(sys.executable, [sys.executable, __file__])
        elif word in ("sleep", "nobody"):
            if word == "nobody":
                os.setuid(65534)
            os.execv("/bin/sleep", ["sleep", "60"])
        elif word == "traced":
            ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
            os.execv("/bin/sleep", ["sleep", "60"])
        elif word == "hangup":
            joined.socket.close()
            print("closed", flush=True)
        elif word == "rejoin":
            joined = Joined(joined.slot, joined.generation)
            joined.say()
        elif word == "fork":
            if os.fork() == 0:
                Joined().say()
                os._exit(0)
            os.wait()
        elif word == "end":
            return


if __name__ == "__main__":
    main()
