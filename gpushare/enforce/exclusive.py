"""The exclusive program (native/guard/gs_devices.h): attached to the root cgroup, it denies the devices' nodes to every
process without a grant. A map lists the exceptions: cgroups, including all below them, and users.

The program stays attached when the daemon ends, so that a restart leaves no gap. The next daemon attaches its own and
then detaches the earlier one, which it recognises by name.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpushare._native import ffi, lib
from gpushare.enforce import device_program
from gpushare.enforce.cgroup import Cgroup
from gpushare.enforce.device_program import checked
from gpushare.enforce.subject import Subject
from gpushare.errors import FailedError

Range = tuple[int, int, int]
"""Major, first minor, last minor."""

_DEVICE = Path("/dev/zero"), (1, 5)  # which every machine has
_PASSES_MAX = 1 << 16


def user(uid: int) -> int:
    """Returns a user's key in the map."""
    return int(lib.gs_pass_of_user(uid))


def group(cgroup: Path) -> int:
    """Returns a v2 cgroup's key in the map: its inode number, not reused before the next boot. Raises FailedError."""
    try:
        return cgroup.stat().st_ino
    except OSError as error:
        raise FailedError(f"cgroup {cgroup} cannot be looked at: {error.strerror}") from None


def broken(own: Cgroup, subject: Subject) -> str:
    """Has the subject open a device without a pass, then with one. Returns what went wrong; empty if only the first was
    refused. `own`: the subject's cgroup. Raises FailedError."""
    if not own.v2:
        return "it needs cgroup v2, which is not mounted"
    path, (major, minor) = _DEVICE
    tried = Exclusive([(major, minor, minor)], "gpushare_trial")
    try:
        tried.attach(own.path)
        if (code := subject.opens(path)) != errno.EPERM:
            return f"a process without a grant that opens a device gets: {os.strerror(code)}"
        for number in (group(own.path), user(os.geteuid())):
            tried.admit(number)
            if (code := subject.opens(path)) != 0:
                return f"a process that may open a device gets: {os.strerror(code)}"
            tried.expel(number)
    finally:
        tried.close()
    return ""


class Exclusive:
    """The program and its map, loaded but not yet attached. Raises FailedError if the kernel rejects it: before Linux
    6.1 such programs cannot look up a process's ancestor cgroups."""

    def __init__(self, guarded: Iterable[Range], name: str) -> None:
        """`name`: at most 15 letters, digits and `_`."""
        self._name, self._err = name, ffi.new("struct gs_err *")
        ranges = ffi.new("struct gs_device_ranges *")
        wanted = list(guarded)
        if len(wanted) > len(ranges.range):
            raise FailedError(f"the devices have nodes in {len(wanted)} ranges, {len(ranges.range)} at most")
        ranges.range[0 : len(wanted)] = wanted
        ranges.count = len(wanted)
        passes = ffi.new("int *")
        loaded = lib.gs_exclusive_load(ranges, name.encode(), _PASSES_MAX, passes, self._err)
        self._program, self._passes = checked(loaded, self._err), passes[0]

    def admit(self, number: int) -> None:
        """Lets a user or cgroup pass; no error if it passes already. Raises FailedError."""
        checked(lib.gs_exclusive_pass(self._passes, number, True, self._err), self._err)

    def expel(self, number: int) -> None:
        """Ends that; no error if it does not pass. Raises FailedError."""
        checked(lib.gs_exclusive_pass(self._passes, number, False, self._err), self._err)

    def attach(self, cgroup: Path) -> None:
        """Attaches the program, then detaches any earlier ones of the same name. Raises FailedError."""
        with _programs(cgroup, self._name) as before:
            device_program.put(cgroup, self._program)
            try:
                for program in before:
                    device_program.detach(cgroup, program)
            except FailedError:
                device_program.detach(cgroup, self._program)  # its map would stay empty
                raise

    def close(self) -> None:
        """Closes the descriptors. An attached program stays attached."""
        os.close(self._program)
        os.close(self._passes)


def take_away(cgroup: Path, name: str) -> None:
    """Detaches all programs of this name. Raises FailedError."""
    with _programs(cgroup, name) as found:
        for program in found:
            device_program.detach(cgroup, program)


@contextlib.contextmanager
def _programs(cgroup: Path, name: str) -> Iterator[list[int]]:
    found = device_program.attached(cgroup, name)
    try:
        yield found
    finally:
        for program in found:
            os.close(program)
