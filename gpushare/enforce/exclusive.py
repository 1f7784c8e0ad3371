"""The exclusive program: attached to the root cgroup, it denies the devices' nodes to every process without a grant.
A map lists the exceptions: cgroups, including all below them, and users.

The program stays attached when the daemon ends, so that a restart leaves no gap. The next daemon attaches its own and
then detaches the earlier one, which it recognises by name.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpushare.enforce import bpf
from gpushare.enforce.bpf import R0, R1, R2, R3, R10, instruction, leave
from gpushare.enforce.cgroup import Cgroup
from gpushare.enforce.device_program import character
from gpushare.enforce.subject import Subject
from gpushare.errors import FailedError

Range = tuple[int, int, int]
"""Major, first minor, last minor."""

_DEVICE = Path("/dev/zero"), (1, 5)  # which every machine has
_PASSES_MAX = 1 << 16
_DEPTH = 32
"""Cgroup levels that are checked, without the root: engines and systemd nest about ten."""
_USER_BIT = 1 << 63
"""Distinguishes users from cgroups, whose numbers count up from 1."""


def user(uid: int) -> int:
    """Returns a user's key in the map."""
    return _USER_BIT | uid


def group(cgroup: Path) -> int:
    """Returns a v2 cgroup's key in the map: its inode number, not reused before the next boot. Raises FailedError."""
    try:
        return cgroup.stat().st_ino
    except OSError as error:
        raise FailedError(f"cgroup {cgroup} cannot be looked at: {error.strerror}") from None


def program(guarded: Iterable[Range], passes: int) -> bytes:
    """Returns the BPF instructions. `passes`: descriptor of the map."""
    rest = leave(1)
    for major, first, last in guarded:
        rest = (
            instruction(bpf.JNE_IMM, R2, offset=3, immediate=major)
            + instruction(bpf.JLT_IMM, R3, offset=2, immediate=first)
            + instruction(bpf.JGT_IMM, R3, offset=1, immediate=last)
            + instruction(bpf.JA, offset=len(rest) // 8)
            + rest
        )
    return character() + rest + _user(passes) + b"".join(_level(passes, n) for n in range(1, _DEPTH + 1)) + leave(0)


def _user(passes: int) -> bytes:
    code = instruction(bpf.CALL, immediate=bpf.GET_UID_GID)
    code += instruction(bpf.MOV32, R0, R0)  # the upper half is the gid
    code += instruction(bpf.LD_IMM64, R1) + instruction(0, immediate=-(1 << 31))  # _USER_BIT
    return code + instruction(bpf.OR, R0, R1) + _allow_if_in(passes)


def _level(passes: int, level: int) -> bytes:
    code = instruction(bpf.MOV_IMM, R1, immediate=level)
    code += instruction(bpf.CALL, immediate=bpf.GET_ANCESTOR_CGROUP_ID)
    return code + instruction(bpf.JNE_IMM, R0, offset=2, immediate=0) + leave(0) + _allow_if_in(passes)


def _allow_if_in(passes: int) -> bytes:
    """Returns instructions that allow the open if the number in r0 is in the map."""
    return (
        instruction(bpf.STX_DW, R10, R0, offset=-8)
        + bpf.map_address(R1, passes)
        + instruction(bpf.MOV, R2, R10)
        + instruction(bpf.ADD_IMM, R2, immediate=-8)
        + instruction(bpf.CALL, immediate=bpf.MAP_LOOKUP)
        + instruction(bpf.JEQ_IMM, R0, offset=2, immediate=0)
        + leave(1)
    )


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
            tried.passes.add(number)
            if (code := subject.opens(path)) != 0:
                return f"a process that may open a device gets: {os.strerror(code)}"
            tried.passes.discard(number)
    finally:
        tried.close()
    return ""


class Exclusive:
    """The program and its map, loaded but not yet attached. Raises FailedError if the kernel rejects it: before Linux
    6.1 such programs cannot look up a process's ancestor cgroups."""

    def __init__(self, guarded: Iterable[Range], name: str) -> None:
        """`name`: the program's, as bpf.load takes it."""
        self._name = name
        self.passes = bpf.Numbers(name, _PASSES_MAX)
        try:
            self._program = bpf.load(program(guarded, self.passes.descriptor), name)
        except FailedError:
            self.passes.close()
            raise

    def attach(self, cgroup: Path) -> None:
        """Attaches the program, then detaches any earlier ones of the same name. Raises FailedError."""
        with _programs(cgroup, self._name) as before:
            bpf.attach(cgroup, self._program)
            try:
                for program in before:
                    bpf.detach(cgroup, program)
            except FailedError:
                bpf.detach(cgroup, self._program)  # its map would stay empty
                raise

    def close(self) -> None:
        """Closes the descriptors. An attached program stays attached."""
        os.close(self._program)
        self.passes.close()


def take_away(cgroup: Path, name: str) -> None:
    """Detaches all programs of this name. Raises FailedError."""
    with _programs(cgroup, name) as found:
        for program in found:
            bpf.detach(cgroup, program)


@contextlib.contextmanager
def _programs(cgroup: Path, name: str) -> Iterator[list[int]]:
    found = bpf.attached(cgroup, name)
    try:
        yield found
    finally:
        for program in found:
            os.close(program)
