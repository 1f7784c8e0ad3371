"""Which device nodes a workload may open: by the device program of its v2 cgroup, or by the v1 devices controller."""

import errno
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from gpushare.enforce import device_program
from gpushare.enforce.cgroup import Cgroup, Hierarchies
from gpushare.enforce.subject import Subject
from gpushare.errors import FailedError

Number = tuple[int, int]
Guarded = Mapping[int, Collection[int]]
"""Minors that are known, by major. All of the major's are guarded."""
SUFFIX = ".devices"
"""Of the link to the v1 controller's cgroup of a plain command, behind the name of its other cgroup's."""

# Of /dev/null and /dev/zero, which every machine has: the one stands for a granted device, the other for another.
_GRANTED, _OTHER = (Path("/dev/null"), (1, 3)), (Path("/dev/zero"), (1, 5))
_ALL = "a "
_MINORS = 256
"""The v1 controller has no rule for a major with exceptions: each minor of NVIDIA's, which end at 255, has its own."""


class Guard(Protocol):
    """A way to hold devices. `v2`: the kind of cgroup."""

    v2: bool

    def hold(self, group: Path, guarded: Guarded, granted: Iterable[Number]) -> None:
        """From now on processes in `group` and below open no character device of the majors `guarded` but those
        `granted`. Raises FailedError."""
        ...


class Program:
    """The device program: the kernel asks it beside the engine's own, and whoever rewrites those leaves it."""

    v2 = True

    def hold(self, group: Path, guarded: Guarded, granted: Iterable[Number]) -> None:
        """As in Guard; as long as the cgroup exists."""
        device_program.attach(group, guarded, granted)


class Controller:
    """The list of the v1 devices controller, which is the engine's too: where it starts with "deny", ours takes away
    what it has too much, else it lists what is refused."""

    v2 = False

    def __init__(self) -> None:
        self._lists: dict[Path, str] = {}
        """As they were when they held."""

    def hold(self, group: Path, guarded: Guarded, granted: Iterable[Number]) -> None:
        """As in Guard; until somebody rewrites the list."""
        if re.search(r"^c \*:\* \S*[rw]", _list(group), re.MULTILINE):
            # What a rule allows for all majors no rule takes back for one.
            raise FailedError(f"{group} may open every character device: leave that rule of the engine's out")
        self._write(group, {major: {*range(_MINORS), *minors} for major, minors in guarded.items()}, granted)

    def renew(self, group: Path, guarded: Guarded, granted: Iterable[Number]) -> None:
        """Puts a list right that another may have written since. Raises FailedError."""
        rules = _list(group)
        if rules.startswith(_ALL):  # so it is whatever is taken from all: what there is now is refused anew
            self._write(group, guarded, granted)
        elif rules != self._lists.get(group):
            self.hold(group, guarded, granted)
            self._lists[group] = _list(group)

    def forget_gone(self) -> None:
        """Cgroups that are gone."""
        self._lists = {group: rules for group, rules in self._lists.items() if group.exists()}

    @staticmethod
    def _write(group: Path, refused: Guarded, granted: Iterable[Number]) -> None:
        wanted, rules = set(granted), _list(group)
        try:
            with (group / "devices.deny").open("wb", 0) as deny, (group / "devices.allow").open("wb", 0) as allow:
                # The controller reads one rule per write.
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
    """The cgroup of the v1 devices controller with the same name, below that of the process that makes it. Raises
    FailedError where there is none."""
    if (own := of_controller("self", where)) is None:
        raise FailedError("the v1 devices controller is not mounted")
    return Cgroup(own / group.path.name, v2=False)


def of_controller(pid: int | str, where: Hierarchies) -> Path | None:
    """The cgroup of the v1 devices controller that a process is in; None without one. Raises FailedError when the
    process has ended."""
    if where.devices is None:
        return None
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="replace").split("\n")
    except OSError:
        raise FailedError(f"process {pid} ended") from None
    for line in filter(None, lines):
        _, controllers, path = line.split(":", 2)
        parts = [part for part in path.split("/") if part]
        if "devices" in controllers.split(",") and ".." not in parts:
            return where.devices.joinpath(*parts)
    return None


def broken(guard: Guard, group: Cgroup, subject: Subject) -> str:
    """Tries to open a device that was not granted; how that went, empty where it was refused. `group`: the subject's,
    of the guard's kind."""
    (granted, number), (other, (major, minor)) = _GRANTED, _OTHER
    guard.hold(group.path, {major: {minor}}, {number})
    if (code := subject.opens(granted)) != 0:
        return f"a device that is granted cannot be opened: {os.strerror(code)}"
    code = subject.opens(other)
    if code == 0:
        return "a device that is not granted could be opened"
    return "" if code == errno.EPERM else f"a device that is not granted gives another error: {os.strerror(code)}"
