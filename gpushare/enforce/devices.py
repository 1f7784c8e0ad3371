"""Restricts which device nodes a workload may open: by a device program at its v2 cgroup, or by the v1 devices
controller."""

import errno
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from gpushare.enforce import device_program
from gpushare.enforce.cgroup import Cgroup, Hierarchies, memberships
from gpushare.enforce.subject import Subject
from gpushare.errors import FailedError

Number = tuple[int, int]
Guarded = Mapping[int, Collection[int]]
"""Known minors by major. All minors of the major are guarded, known or not."""
SUFFIX = ".devices"
"""Suffix of the link to a plain command's v1 devices cgroup; the rest is the name of the link to its other cgroup."""

# /dev/null and /dev/zero exist on every machine: one represents a granted device, the other a device not granted.
_GRANTED, _OTHER = (Path("/dev/null"), (1, 3)), (Path("/dev/zero"), (1, 5))
_ALL = "a "
_MINORS = 256
"""The v1 controller cannot deny a major with exceptions, so each minor has its own rule; NVIDIA's end at 255."""


class Guard(Protocol):
    """A way to restrict devices. `v2`: whether it works on v2 cgroups."""

    v2: bool

    def hold(self, group: Path, guarded: Guarded, granted: Iterable[Number]) -> None:
        """From now on, processes in `group` and below can open no character device of the majors in `guarded` except
        those in `granted`. Raises FailedError."""
        ...


class Program:
    """The device program: the kernel runs it in addition to the engine's, and replacing those leaves it in place."""

    v2 = True

    def hold(self, group: Path, guarded: Guarded, granted: Iterable[Number]) -> None:
        """As in Guard, for the cgroup's lifetime."""
        device_program.attach(group, guarded, granted)


class Controller:
    """The v1 devices controller's list, which the engine writes too. If the list denies by default, hold removes
    permissions that are not granted; if it allows by default, hold adds denials."""

    v2 = False

    def __init__(self) -> None:
        self._lists: dict[Path, str] = {}
        """Contents of devices.list by cgroup, as of the last time they enforced the grant."""

    def hold(self, group: Path, guarded: Guarded, granted: Iterable[Number]) -> None:
        """As in Guard, until another program rewrites the list."""
        if re.search(r"^c \*:\* \S*[rw]", _list(group), re.MULTILINE):
            # A denial for one major cannot revoke what a rule allows for all majors.
            raise FailedError(f"{group} may open every character device: leave that rule of the engine's out")
        self._write(group, {major: {*range(_MINORS), *minors} for major, minors in guarded.items()}, granted)

    def renew(self, group: Path, guarded: Guarded, granted: Iterable[Number]) -> None:
        """Repairs a list that another program may have written since. Raises FailedError."""
        rules = _list(group)
        if rules.startswith(_ALL):  # such a list reads "a" whatever is denied: deny the known minors again
            self._write(group, guarded, granted)
        elif rules != self._lists.get(group):
            self.hold(group, guarded, granted)
            self._lists[group] = _list(group)

    def forget_gone(self) -> None:
        """Drops the state of cgroups that no longer exist."""
        self._lists = {group: rules for group, rules in self._lists.items() if group.exists()}

    @staticmethod
    def _write(group: Path, refused: Guarded, granted: Iterable[Number]) -> None:
        wanted, rules = set(granted), _list(group)
        try:
            with (group / "devices.deny").open("wb", 0) as deny, (group / "devices.allow").open("wb", 0) as allow:
                # The controller takes one rule per write(2), hence the unbuffered files.
                for major, minors in refused.items():
                    own = {minor for found, minor in wanted if found == major}
                    if listed := f"c {major}:* " in rules:
                        deny.write(f"c {major}:* rwm".encode())
                    for minor in sorted({*minors} - own):
                        deny.write(f"c {major}:{minor} rwm".encode())
                    for minor in sorted(own) if listed else ():
                        allow.write(f"c {major}:{minor} rwm".encode())
        except OSError as error:
            raise FailedError(f"the devices of {group} cannot be limited: {error.strerror}") from None


def _list(group: Path) -> str:
    try:
        return (group / "devices.list").read_text()
    except OSError as error:
        raise FailedError(f"the devices of {group} cannot be limited: {error.strerror}") from None


def beside(group: Cgroup, where: Hierarchies) -> Cgroup:
    """Returns the v1 devices cgroup of the same name, a child of this process's own devices cgroup. Raises FailedError
    if that controller is not mounted."""
    if (own := of_controller("self", where)) is None:
        raise FailedError("the v1 devices controller is not mounted")
    return Cgroup(own / group.path.name, v2=False)


def of_controller(pid: int | str, where: Hierarchies) -> Path | None:
    """Returns the path of a process's v1 devices cgroup; None if there is none. Raises FailedError if the process has
    ended."""
    for controllers, parts in memberships(pid) if where.devices is not None else ():
        if "devices" in controllers and ".." not in parts:
            assert where.devices is not None
            return where.devices.joinpath(*parts)
    return None


def broken(guard: Guard, group: Cgroup, subject: Subject) -> str:
    """Has the subject try to open a device that is not granted. Returns what went wrong; empty if the guard refused
    exactly that open. `group`: the subject's cgroup, of the guard's kind."""
    (granted, number), (other, (major, minor)) = _GRANTED, _OTHER
    guard.hold(group.path, {major: {minor}}, {number})
    if (code := subject.opens(granted)) != 0:
        return f"a device that is granted cannot be opened: {os.strerror(code)}"
    code = subject.opens(other)
    if code == 0:
        return "a device that is not granted could be opened"
    return "" if code == errno.EPERM else f"a device that is not granted gives another error: {os.strerror(code)}"
