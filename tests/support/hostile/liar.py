"""A tenant's process without CUDA that is asked to move its memory and answers with lies, for as long as it lives, as
fast as it can: `liar.py KIND`.

flaps     wants its memory, and does not, with a GS_LOOK each time
looks     sends GS_LOOK and does not wait for the answers
segments  asks for segments of the host pool, of any size, and does not take them
silent    never says that it has done anything, and that any number of bytes are hosted
agrees    has done at once whatever is asked, with any number of bytes hosted
refuses   could do nothing of it, for any reason
yields    says that it is idle, is to move now, is to come back, and does not wait for the answers
"""

import contextlib
import os
import random
import socket
import sys
from collections import deque

from pages.joinmessages import request, segment_request
from run.joiner import DIRECTORY
from run.mover import Mover

from gpushare._native import lib

SIZE = 1 << 30
SIZES = (0, 1, 2 << 20, 1 << 29, SIZE, 1 << 40, (1 << 64) - 1)
OPEN_MOST = 100


class Liar(Mover):
    def __init__(self) -> None:
        super().__init__()
        self.own.memory_bytes = self.own.movable_bytes = SIZE
        self.open: deque[socket.socket] = deque()

    def send(self, message: bytes) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        with contextlib.suppress(OSError):
            connection.connect(str(DIRECTORY / "grant.sock"))
            connection.send(message)
        self.open.append(connection)
        while len(self.open) > OPEN_MOST:
            self.open.popleft().close()

    def flaps(self) -> None:
        self.own.residency, self.own.move = self.word, lib.GS_MOVED
        self.own.hosted_bytes = random.choice((0, SIZE))
        self.own.flags ^= lib.GS_SLOT_WANTS
        self.look()

    def looks(self) -> None:
        self.send(request(slot=self.slot, generation=self.generation, magic=lib.GS_LOOK_MAGIC))

    def segments(self) -> None:
        size = random.choice((0, 1, 2 << 20, 4 << 20, SIZE, SIZE + 1))
        self.send(segment_request(size, self.slot, self.generation))

    def silent(self) -> None:
        self.own.hosted_bytes = random.choice(SIZES)
        self.look()

    def agrees(self) -> None:
        self.own.hosted_bytes = random.choice(SIZES)
        self.own.residency, self.own.move = self.word, lib.GS_MOVED
        self.look()

    def refuses(self) -> None:
        self.own.hosted_bytes = random.choice(SIZES)
        self.own.residency, self.own.move = self.word, random.choice((1, 2, 3, 4, 5, 77, (1 << 32) - 1))
        self.look()

    def yields(self) -> None:
        self.send(request(slot=random.choice((0, 1, 2, 3, 1 << 31)), magic=lib.GS_YIELD_MAGIC))


def main() -> None:
    liar = Liar()
    liar.say()
    lie = getattr(liar, sys.argv[1])
    parent = os.getppid()
    while os.getppid() == parent:
        lie()


if __name__ == "__main__":
    main()
