"""Lists of file changes, carried out by one call into C (native/binding/gs_files.h): a grant needs a dozen, and is made
or removed within a millisecond."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from gpushare._native import ffi, lib

AS_IT_IS = (1 << 32) - 1
"""Owner or group that is not changed."""


class Step(NamedTuple):
    """One change. `path`: absolute, or relative to the directory of Steps.run; empty: that directory. The rest is as in
    struct gs_step."""

    kind: int
    path: str
    mode: int = 0
    uid: int = AS_IT_IS
    gid: int = AS_IT_IS
    text: str = ""
    data: bytes = b""
    size: int = 0
    room: int = 0


def directory(path: str, mode: int) -> Step:
    """Makes a directory. Modes are set regardless of the umask, here and below."""
    return Step(lib.GS_STEP_DIRECTORY, path, mode)


def tmpfs(path: str, size: int, inodes: int, mode: int) -> Step:
    """Mounts a tmpfs of `size` bytes, owned by root, on a directory."""
    return Step(lib.GS_STEP_TMPFS, path, text=f"size={size},nr_inodes={inodes},mode={mode:o},uid=0,gid=0")


def file(path: str, mode: int, data: bytes = b"", size: int = 0, room: int = 0) -> Step:
    """Makes a file. `size`: file size, zero-filled after `data`. `room`: bytes to allocate immediately, at the start
    and at the end of the file."""
    return Step(lib.GS_STEP_FILE, path, mode, data=data, size=size, room=room)


def replacement(path: str, mode: int, through: str) -> Step:
    """Writes a file and renames it over `path`. `through`: absolute path of the temporary file."""
    return Step(lib.GS_STEP_REPLACE, path, mode, text=through)


def symlink(path: str, target: str | Path) -> Step:
    """Makes a symlink."""
    return Step(lib.GS_STEP_SYMLINK, path, text=os.fspath(target))


def owner(path: str, uid: int, gid: int) -> Step:
    """Changes owner and group; AS_IT_IS: unchanged."""
    return Step(lib.GS_STEP_OWNER, path, uid=uid, gid=gid)


def unmount(path: str) -> Step:
    """Unmounts what is mounted there; files that are open stay usable. Fails if nothing is mounted."""
    return Step(lib.GS_STEP_UNMOUNT, path)


def unlink(path: str) -> Step:
    """Removes anything that is not a directory."""
    return Step(lib.GS_STEP_UNLINK, path)


def rmdir(path: str) -> Step:
    """Removes an empty directory."""
    return Step(lib.GS_STEP_RMDIR, path)


def readable(path: str) -> Step:
    """Changes nothing; fails unless the path is a file that all users may read."""
    return Step(lib.GS_STEP_READABLE, path)


class Steps:
    """A list of steps, which may run repeatedly. Belongs to one thread."""

    def __init__(self, *steps: Step) -> None:
        self.array: Any = ffi.new("struct gs_step[]", len(steps))
        """`struct gs_step[]`, valid for the lifetime of this object."""
        self._error = ffi.new("struct gs_err *")
        self._size = [step.size for step in steps]
        self._held: list[Any] = []
        """Keeps the memory that the array points to alive."""
        self._data: list[Any] = [None] * len(steps)
        files = (lib.GS_STEP_FILE, lib.GS_STEP_REPLACE)
        self._at = {step.path: at for at, step in enumerate(steps) if step.kind in files}
        self._paths = [step.path for step in steps]
        self._aimed: dict[str, Any] = {}
        for at, step in enumerate(steps):
            into = self.array[at]
            into.kind, into.mode, into.uid, into.gid, into.room = step.kind, step.mode, step.uid, step.gid, step.room
            into.path, into.text = self._text(step.path), self._text(step.text)
            self._put(at, step.data)

    def _text(self, text: str) -> Any:
        held = ffi.new("char[]", os.fsencode(text))
        self._held.append(held)
        return held

    def put(self, path: str, data: bytes) -> None:
        """Sets the content of the file at `path` for later runs."""
        self._put(self._at[path], data)

    def aim(self, path: str, target: str) -> None:
        """Redirects the first step that was created for `path` to `target`."""
        held = self._aimed[path] = ffi.new("char[]", os.fsencode(target))
        self.array[self._paths.index(path)].path = held

    def _put(self, at: int, data: bytes) -> None:
        held = self._data[at] = ffi.from_buffer("char[]", data)
        step = self.array[at]
        step.data, step.bytes, step.size = held, len(data), max(self._size[at], len(data))

    def run(self, below: str | Path) -> None:
        """Runs the steps in order, relative to the directory `below`, up to the first that fails; earlier changes stay.
        Raises OSError."""
        if lib.gs_files_change(os.fsencode(below), self.array, len(self.array), self._error) < 0:
            raise OSError(-self._error.code, ffi.string(self._error.msg).decode(errors="replace"))
