"""A tenant's process without CUDA that plays the interposer's part in moving memory: it joins its grant, then reads
commands from standard input.

hold F M   says that it holds F bytes that cannot be moved and M that can
word       answers the residency word
carry      does what the word says, at once, and says so
follow     does so from now on whenever the word changes
refuse N   says that it could not do what the word says, for the reason N (enum gs_move)
wants      says that a call needs its hosted memory
forge W V  writes V into a word W of its slot
take N     takes N bytes of the simulated device, whatever its slot says
rejoin     joins again with its old slot
end        exits
"""

import mmap
import os
import socket
import sys
import threading
import time

from run.joiner import DIRECTORY, Joined
from run.simulated import CLIENT, MEM_ALLOC, Wire

from gpushare._native import ffi, lib

HOSTED = lib.GS_HOSTED
MASK = (1 << lib.GS_RESIDENCY_SHIFT) - 1


class Mover(Joined):
    def __init__(self, slot: int = lib.GS_NO_SLOT, generation: int = 0) -> None:
        super().__init__(slot, generation)
        limits = os.open(DIRECTORY / "limits", os.O_RDONLY)
        pages = mmap.mmap(limits, 0, prot=mmap.PROT_READ)
        os.close(limits)
        self.limits = ffi.from_buffer("struct gs_limits *", pages)

    @property
    def own(self):
        return self.page.slot[self.slot].device[0]

    @property
    def word(self) -> int:
        return self.limits.device[0].residency

    def look(self) -> int:
        """Tells the daemon, and returns its answer; -1: it is away."""
        words = [lib.GS_LOOK_MAGIC, lib.GS_WIRE_VERSION, self.slot, self.generation]
        message = bytes(ffi.buffer(ffi.new("struct gs_join_request *", words)))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            try:
                connection.connect(str(DIRECTORY / "grant.sock"))
                connection.send(message)
                data = connection.recv(ffi.sizeof("struct gs_join_reply"))
            except OSError:
                return -1
        return ffi.from_buffer("struct gs_join_reply *", data).error if data else -1

    def carry(self) -> int:
        word = self.word
        self.own.hosted_bytes = self.own.movable_bytes if word & MASK == HOSTED else 0
        if word & MASK != HOSTED:
            self.own.flags &= ~lib.GS_SLOT_WANTS
        self.own.move = lib.GS_MOVED
        self.own.residency = word
        return self.look()

    def follow(self) -> None:
        while True:
            if self.own.residency != self.word:
                self.carry()
            time.sleep(0.001)

    def refuse(self, why: int) -> int:
        self.own.move = why
        self.own.residency = self.word
        return self.look()

    def wants(self) -> int:
        self.own.flags |= lib.GS_SLOT_WANTS
        return self.look()


def main() -> None:
    joined, wire = Mover(), None
    joined.say()
    for line in sys.stdin:
        verb, *rest = line.split()
        if verb == "hold":
            fixed, movable = map(int, rest)
            joined.own.memory_bytes, joined.own.movable_bytes = fixed + movable, movable
            print("held", flush=True)
        elif verb == "word":
            print("word", joined.word, flush=True)
        elif verb in ("carry", "wants"):
            print("told", getattr(joined, verb)(), flush=True)
        elif verb == "follow":
            threading.Thread(target=joined.follow, daemon=True).start()
            print("follows", flush=True)
        elif verb == "refuse":
            print("told", joined.refuse(int(rest[0])), flush=True)
        elif verb == "forge":
            setattr(joined.own, rest[0], int(rest[1]))
            print("told", joined.look(), flush=True)
        elif verb == "take":
            wire = wire or Wire(DIRECTORY / "sim" / "sim.sock", CLIENT)
            error, _, _ = wire.call(MEM_ALLOC, 0, int(rest[0]))
            print("took", error, flush=True)
        elif verb == "rejoin":
            joined = Mover(joined.slot, joined.generation)
            joined.say()
        elif verb == "end":
            return


if __name__ == "__main__":
    main()
