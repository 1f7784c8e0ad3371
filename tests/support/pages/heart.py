"""The heartbeats of hand-made grants, from a process of their own. A thread of the tests' process may wait for Python's
lock, or for a processor, for longer than a daemon may be silent; then programs pass without a lease."""

import atexit
import contextlib
import mmap
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

BEAT_S = 0.02
_PATH_MAX = 4096
_BEGIN, _END = b"+", b"-"


class _Heart:
    """The process, as tests use it."""

    def __init__(self, offset: int) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), str(offset)]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._socket.close()
        self._process.wait(10)

    def ask(self, what: bytes, page: Path) -> None:
        self._socket.send(what + os.fsencode(page))
        assert self._socket.recv(1) == what, "the process with the heartbeats has ended"


_heart: _Heart | None = None


def begin(page: Path, offset: int) -> None:
    """Lets the counter at `offset`, the same for all pages, of this file (an absolute path) beat. Again is harmless."""
    global _heart
    _heart = _heart or _Heart(offset)
    _heart.ask(_BEGIN, page)


def end(page: Path) -> None:
    """It does not beat any more when this returns. Again is harmless."""
    if _heart is not None:
        _heart.ask(_END, page)


# ---- the process's side


def _beat(page: mmap.mmap, offset: int) -> None:
    word = page[offset : offset + 4]
    page[offset : offset + 4] = ((int.from_bytes(word, sys.byteorder) + 1) % (1 << 32)).to_bytes(4, sys.byteorder)


def _mapped(path: bytes) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(file, 0)
    finally:
        os.close(file)


def main(control: socket.socket, offset: int) -> None:
    with contextlib.suppress(OSError):  # root may: before all that makes the machine busy
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    pages: dict[bytes, mmap.mmap] = {}
    while True:
        if select.select([control], [], [], BEAT_S)[0]:
            message = control.recv(_PATH_MAX)
            if not message:
                return
            what, path = message[:1], message[1:]
            if what == _END:
                pages.pop(path, None)
            elif path not in pages:
                pages[path] = _mapped(path)
            control.send(what)
        for page in pages.values():
            _beat(page, offset)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
