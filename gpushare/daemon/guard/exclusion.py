"""With `exclusive = true` only root, the users that the administrator names and the processes of grants can open the
devices' nodes. gpushare.enforce.exclusive keeps others out; this module decides who may pass. Called on the event loop
only."""

import hashlib
import logging
import os
import pwd
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.live import Live
from gpushare.daemon.state.records import GrantRecord
from gpushare.daemon.state.state import State
from gpushare.enforce import exclusive
from gpushare.enforce.cgroup import Cgroup, Hierarchies
from gpushare.enforce.exclusive import Exclusive
from gpushare.errors import FailedError

log = logging.getLogger(__name__)

WALL: Literal["exclusive"] = "exclusive"
_NAME_DIGITS = 6


class Exclusion:
    """`users`: names or numbers of users that pass without a grant, in addition to root."""

    def __init__(self, state: State, hardware: Hardware, *, asked: bool, users: Sequence[str]) -> None:
        self._state, self._hardware, self.asked, self._users = state, hardware, asked, users
        # Named after the run-time directory, so that a daemon does not take another's program for its own.
        digest = hashlib.sha256(os.fsencode(state.layout.run)).hexdigest()
        self._name = f"gpushare_{digest[:_NAME_DIGITS]}"
        self._program: Exclusive | None = None
        self._passing: dict[str, set[int]] = {}
        """By grant: its numbers in the program's map."""
        self._counts: Counter[int] = Counter()

    def start(self) -> None:
        """Called after the ledger's grants were adopted, so that they pass from the first moment."""
        top = Hierarchies.of().unified
        if not self.asked:
            if top is not None and os.geteuid() == 0:
                self._take_away(top)  # an earlier configuration may have been exclusive
            return
        if self._state.walls.why(WALL):
            return
        guarded = self._hardware.ranges()
        if not guarded or top is None:
            self._lost("simulated devices have no nodes that could be denied")
            return
        try:
            self._program = Exclusive(guarded, self._name)
            for uid in (0, *_numbers(self._users)):
                self._program.admit(exclusive.user(uid))
            for live in self._state:
                self.changed(live)
            self._program.attach(top)
        except FailedError as error:
            self._close()
            self._lost(str(error))
            return

    def _lost(self, why: str) -> None:
        wall = next(one for one in self._state.walls.standing if one.name == WALL)
        self._state.walls.add(wall.name, wall.keeps, wall.lost, why)

    def admit(self, record: GrantRecord, group: Cgroup | None) -> None:
        """Lets a workload that is about to start pass, for as long as its grant has it. Raises FailedError."""
        if self._program is None:
            return
        if group is None or not group.v2:
            raise FailedError(
                "it has no cgroup (v2) of its own, by which the kernel could tell it from processes without a grant"
                " (exclusive = true)"
            )
        self._pass(record.id, self._passing.get(record.id, set()) | {exclusive.group(group.path)})

    def open_to(self, record: GrantRecord) -> None:
        """Lets all processes of the user pass for whom the grant was opened. Raises FailedError."""
        if self._program is not None:
            self._pass(record.id, self._passing.get(record.id, set()) | {exclusive.user(record.run_uid)})

    def changed(self, live: Live) -> None:
        """Called when workloads of the grant have started or ended, or the grant has ended."""
        if self._program is None:  # not started yet, not asked for, or the daemon stops
            return
        try:
            self._pass(live.id, self._wanted(live))
        except FailedError as error:  # the cgroup is being removed, or the map is full
            log.warning("grant %s: who may open its devices is not up to date: %s", live.id, error)

    @staticmethod
    def _wanted(live: Live) -> set[int]:
        wanted = set[int]()
        if not live.record.phase.ended:
            for row in live.record.workloads:
                if row.cgroup is not None and row.cgroup[1] and Path(row.cgroup[0]).exists():
                    wanted.add(exclusive.group(Path(row.cgroup[0])))
            if live.record.open:
                wanted.add(exclusive.user(live.record.run_uid))
        return wanted

    def _pass(self, grant: str, wanted: set[int]) -> None:
        assert self._program is not None
        before = self._passing.get(grant, set())
        for number in wanted - before:
            self._program.admit(number)
            self._counts[number] += 1
        for number in before - wanted:
            self._counts[number] -= 1
            if not self._counts[number]:  # a user may have several grants
                del self._counts[number]
                self._program.expel(number)
        if wanted:
            self._passing[grant] = wanted
        else:
            self._passing.pop(grant, None)

    def _take_away(self, top: Path) -> None:
        try:
            exclusive.take_away(top, self._name)
        except FailedError as error:
            log.debug("no exclusive program is taken away: %s", error)

    def close(self) -> None:
        """Called when the daemon stops. While there are grants the nodes stay shut, so that a restart leaves no gap."""
        top = Hierarchies.of().unified
        if self._program is not None and top is not None and not list(self._state):
            self._take_away(top)
        self._close()

    def _close(self) -> None:
        program, self._program = self._program, None
        if program is not None:
            program.close()


def _numbers(users: Sequence[str]) -> set[int]:
    """Uids of the users that this node knows."""
    found = set()
    for user in users:
        try:
            found.add(int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid)
        except KeyError:
            log.info("user %r of exclusive_users is not known here", user)
    return found
