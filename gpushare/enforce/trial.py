"""The walls that any node may have, each with a test that tries to break it: a subject in throw-away cgroups."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpushare.enforce import devices, exclusive, freezer
from gpushare.enforce.cgroup import Cgroup, Hierarchies, below
from gpushare.enforce.subject import Subject, throw_away
from gpushare.enforce.walls import Wall
from gpushare.errors import FailedError
from gpushare.text.units import MIB

LINK = "trial"
"""Name prefix of the links to the throw-away cgroups, by which the next daemon finds those that a killed one left."""
_QUIET_SECONDS = 0.005
"""How long a frozen process must stay silent. A running one usually answers in a tenth of this; if it is slower, its
answer is read after the thaw, and a freezer that does not work may pass the test."""
_ANSWER_SECONDS = 2.0
_LIMIT_MIB, _WITHIN_MIB, _BEYOND_MIB = 64, 16, 128
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_DRIVER_SECONDS = 20.0  # for a context on a device that must wake up first


_LOST = {
    "cgroup": "processes of a grant that do not join are not known, and are not ended with it",
    "devices": "a workload opens every device node that its user or its engine lets it open",
    "memory": "a program that goes round the interposer takes more memory than its grant has",
    "freezer": "a program that goes on out of its turn can only be ended, not slowed down",
    "watch": "a program that uses a device without having joined is not found, or goes on",
    "exclusive": "users without a grant open the nodes of the devices, and use them beside all shares",
}
"""What is lost without each wall."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A device's driver, for testing its limits. `limit`: sets the bytes that a cgroup may have; raises FailedError if
    it cannot. `pids`: pids that the driver lists. `library`: the driver's libcuda.so.1, not the interposer.
    `environment`: makes the library show only this device."""

    limit: Callable[[Path, int | None], None]
    pids: Callable[[], set[int]]
    library: Path
    environment: dict[str, str]
    context_bytes: int


class Trial:
    """The tests. `links`: as Layout.cgroups. `drivers`: one per device. `exclusive`: whether that wall is configured.
    `stops`: whether the audit stops the evaders it finds. `guard`: the first way to restrict devices that withstood
    its test."""

    def __init__(
        self, links: Path, drivers: Sequence[Driver] = (), *, exclusive: bool = False, stops: bool = True
    ) -> None:
        self._links, self._drivers = links, drivers
        self._exclusive, self._stops = exclusive, stops
        self._watched: str | None = None
        """Why the driver does not list a process that uses a device, empty if it does; None: not tested yet."""
        self.guard: devices.Guard | None = None

    def walls(self) -> list[Wall]:
        """Returns the walls in the order in which they must be tried."""
        walls = [
            Wall("cgroup", "processes", _LOST["cgroup"], self._cgroup),
            Wall("devices", "devices", _LOST["devices"], self._devices),
            Wall("memory", "memory", _LOST["memory"], self._memory),
            Wall("freezer", "time", _LOST["freezer"], self._freezer),
            Wall("watch", "evaders", _LOST["watch"], self._watch),
        ]
        if self._exclusive:
            walls.append(Wall("exclusive", "others", _LOST["exclusive"], self._others))
        return walls

    def _cgroup(self) -> str:
        with self.subject() as (group, subject):
            subject.fork()
            if len(group.pids()) != 2:
                return "a process that has left its session is not seen in its cgroup"
            group.kill()
            return "" if subject.ends_within(_ANSWER_SECONDS) else "what is killed by its cgroup goes on"

    def _devices(self) -> str:
        found = []
        for guard in (devices.Program(), devices.Controller()):
            if not _is_mounted_for(guard):
                continue
            try:
                why = self._broken(guard)
            except (FailedError, OSError) as error:
                why = str(error)
            if not why:
                self.guard = guard
                return ""
            found.append(why)
        return "; ".join(dict.fromkeys(found)) or "neither cgroup v2 nor the v1 devices controller is mounted"

    def _broken(self, guard: devices.Guard) -> str:
        with self.subject(controller=not guard.v2) as (group, subject):
            own = group if guard.v2 else devices.beside(group, Hierarchies.of())
            return devices.broken(guard, own, subject)

    def _memory(self) -> str:
        """Tests the first device with enough free memory: all devices share one driver."""
        why = "there is no device to try it on"
        for driver in self._drivers:
            why, tried = self._over_limit(driver)
            if tried:
                break
        return why

    def _over_limit(self, driver: Driver) -> tuple[str, bool]:
        """Returns the result (empty: not broken), and whether the test could be run."""
        with self.subject(environment=driver.environment) as (group, subject):
            if not group.v2:
                return "it needs cgroup v2, which is not mounted", True
            driver.limit(group.path, driver.context_bytes + _LIMIT_MIB * MIB)
            within, beyond = subject.memory(driver.library, _WITHIN_MIB, _BEYOND_MIB, _DRIVER_SECONDS)
            self._watched = _listed(driver, subject)
        if within != 0:
            return (
                f"it could not be tried: the driver gives no memory within a limit either (CUDA error {within})",
                False,
            )
        if beyond == 0:
            return "the driver gave a process more memory than the limit of its cgroup", True
        return "" if beyond == _OUT_OF_MEMORY else f"beyond a limit the driver says CUDA error {beyond}", True

    def _freezer(self) -> str:
        with self.subject() as (group, subject):
            freezer.freeze(group)
            try:
                deadline = time.monotonic() + _ANSWER_SECONDS
                while not freezer.frozen(group):
                    if time.monotonic() > deadline:
                        return f"no process is frozen within {_ANSWER_SECONDS:g} s"
                    time.sleep(0.0001)
                subject.send_ping()
                if subject.answers_ping(_QUIET_SECONDS):
                    return "a frozen process goes on"
            finally:
                freezer.thaw(group)
            return "" if subject.answers_ping(_ANSWER_SECONDS) else "a thawed process does not go on"

    def _watch(self) -> str:
        """Uses the result of the memory test, or repeats its first step if that did not get so far."""
        if not self._stops:
            return 'it only tells, as configured ([audit] evader = "tell")'
        for driver in self._drivers if self._watched is None else ():
            with self.subject(environment=driver.environment) as (_, subject):
                within, _ = subject.memory(driver.library, _WITHIN_MIB, _WITHIN_MIB, _DRIVER_SECONDS)
                self._watched = _listed(driver, subject) if within == 0 else None
            if self._watched is not None:
                break
        return "there is no device to try it on" if self._watched is None else self._watched

    def _others(self) -> str:
        with self.subject() as (group, subject):
            return exclusive.broken(group, subject)

    @contextlib.contextmanager
    def subject(
        self, *, controller: bool = False, environment: dict[str, str] | None = None
    ) -> Iterator[tuple[Cgroup, Subject]]:
        """Yields a subject and its own cgroup, both removed at the end of `with`. `controller`: also makes a v1 devices
        cgroup for it. Raises FailedError."""
        if os.geteuid() != 0:
            raise FailedError("the daemon is not root and may make no cgroups")
        name = f"{LINK}-{os.getpid()}"
        group = below(os.getpid(), name)
        groups = [group, *([devices.beside(group, Hierarchies.of())] if controller else [])]
        self._links.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = []
        try:
            for number, one in enumerate(groups):
                link = self._links / f"{name}.{number}"
                link.unlink(missing_ok=True)
                link.symlink_to(one.path)
                made.append((one, link))
                one.make()
            with Subject(groups, environment) as subject:
                yield group, subject
        finally:
            if throw_away([one for one, _ in made]):
                for _, link in made:
                    link.unlink()


def _listed(driver: Driver, subject: Subject) -> str:
    """Returns why the driver does not list the subject, empty if it does. Retries for _ANSWER_SECONDS."""
    deadline, why = time.monotonic() + _ANSWER_SECONDS, ""
    while time.monotonic() < deadline:
        try:
            if subject.pid in driver.pids():
                return ""
            why = "the driver does not list a process that uses a device, or under another pid"
        except FailedError as error:
            why = str(error)
        time.sleep(0.01)
    return why


def _is_mounted_for(guard: devices.Guard) -> bool:
    where = Hierarchies.of()
    return (where.unified if guard.v2 else where.devices) is not None
