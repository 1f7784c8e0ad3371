"""A FUSE file system that reads every request and answers only the first, FUSE_INIT, like a hung server. Needs root."""

import ctypes
import os
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

# linux/fuse.h, protocol 7.31
_IN_HEADER = struct.Struct("=IIQQIIII")
_OUT_HEADER = struct.Struct("=IiQ")
_INIT, _READ_BYTES = 26, 1 << 17
_MNT_FORCE, _MNT_DETACH = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


class SilentFs:
    """Mounted at `where` while the context lasts. `asked` is set once a process waits for an answer."""

    def __init__(self, where: Path) -> None:
        self._where = os.fsencode(where)
        self.asked = threading.Event()

    def __enter__(self) -> Self:
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if _libc.mount(b"silent", self._where, b"fuse", 0, options) != 0:
            os.close(self._device)
            raise OSError(ctypes.get_errno(), "mount")
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Fails the requests that wait, and ends the thread.
        _libc.umount2(self._where, _MNT_FORCE)
        _libc.umount2(self._where, _MNT_DETACH)

    def _serve(self) -> None:
        while True:
            try:
                question = os.read(self._device, _READ_BYTES)
            except OSError:
                break
            _, opcode, unique, *_ = _IN_HEADER.unpack_from(question)
            if opcode == _INIT:
                answer = struct.pack("=IIIIHHII", 7, 31, 0, 0, 0, 0, 4096, 1).ljust(64, b"\0")
                os.write(self._device, _OUT_HEADER.pack(_OUT_HEADER.size + len(answer), 0, unique) + answer)
            else:
                self.asked.set()
        os.close(self._device)
