"""Changes to files that belong together, carried out by one call into C (native/binding/gs_files.h): a grant has a
dozen, and comes and goes in a millisecond."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from gpushare._native import ffi, lib

AS_IT_IS = (1 << 32) - 1
"""An owner that is left alone."""


class Step(NamedTuple):
    """One change. `path`: absolute, or below the directory of Steps.run, empty: that itself. The rest as struct gs_step
    says."""

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
    """A new directory. Modes hold whatever the umask is, here as below."""
    return Step(lib.GS_STEP_DIRECTORY, path, mode)


def tmpfs(path: str, size: int, inodes: int, mode: int) -> Step:
    """A file system of `size` bytes, mounted on a directory, and root's."""
    return Step(lib.GS_STEP_TMPFS, path, text=f"size={size},nr_inodes={inodes},mode={mode:o},uid=0,gid=0")


def file(path: str, mode: int, data: bytes = b"", size: int = 0, room: int = 0) -> Step:
    """A new file. `size`: of the file, with zeros behind its data. `room`: so many bytes are allocated at once, at its
    start and at its end."""
    return Step(lib.GS_STEP_FILE, path, mode, data=data, size=size, room=room)


def replacement(path: str, mode: int, through: str) -> Step:
    """A file that appears whole, whatever was there before. `through`: the name of it until then, an absolute path."""
    return Step(lib.GS_STEP_REPLACE, path, mode, text=through)


def symlink(path: str, target: str | Path) -> Step:
    """A symlink."""
    return Step(lib.GS_STEP_SYMLINK, path, text=os.fspath(target))


def owner(path: str, uid: int, gid: int) -> Step:
    """Another owner and group, of whatever is there; AS_IT_IS: the same."""
    return Step(lib.GS_STEP_OWNER, path, uid=uid, gid=gid)


def unmount(path: str) -> Step:
    """Takes away what is mounted there; whoever has files of it open keeps them. Fails where nothing is."""
    return Step(lib.GS_STEP_UNMOUNT, path)


def unlink(path: str) -> Step:
    """Removes what is no directory."""
    return Step(lib.GS_STEP_UNLINK, path)


def rmdir(path: str) -> Step:
    """Removes an empty directory."""
    return Step(lib.GS_STEP_RMDIR, path)


def readable(path: str) -> Step:
    """Changes nothing; fails unless it is a file that all users may read."""
    return Step(lib.GS_STEP_READABLE, path)


class Steps:
    """A list of them, which may run again and again. Belongs to one thread."""

    def __init__(self, *steps: Step) -> None:
        self.array: Any = ffi.new("struct gs_step[]", len(steps))
        """`struct gs_step[]`, valid as long as this object."""
        self._error = ffi.new("struct gs_err *")
        self._size = [step.size for step in steps]
        self._held: list[Any] = []
        """What the list points to lives as long as it does."""
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
        """What the file at `path` holds from now on."""
        self._put(self._at[path], data)

    def aim(self, path: str, target: str) -> None:
        """The first step that was made for `path` is about `target` from now on."""
        held = self._aimed[path] = ffi.new("char[]", os.fsencode(target))
        self.array[self._paths.index(path)].path = held

    def _put(self, at: int, data: bytes) -> None:
        held = self._data[at] = ffi.from_buffer("char[]", data)
        step = self.array[at]
        step.data, step.bytes, step.size = held, len(data), max(self._size[at], len(data))

    def run(self, below: str | Path) -> None:
        """Carries them out in order, up to the first that fails; what was done before that stays. Raises OSError."""
        if lib.gs_files_change(os.fsencode(below), self.array, len(self.array), self._error) < 0:
            raise OSError(-self._error.code, ffi.string(self._error.msg).decode(errors="replace"))
