"""Segments of the host pool for the processes of one grant: what is asked over grant.sock, and what becomes of the
answers. A segment is in the ledger before its process has it, and what a process gave back is out of it before the
process is told so: a crash between the two loses nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpushare.binding import wire
from gpushare.binding.wire import JoinError, SegmentRequest
from gpushare.daemon.state.records import MemberRecord
from gpushare.daemon.workloads.door import Door
from gpushare.errors import RefusedError
from gpushare.policy.residency.pool import Segment

_UNIT_BYTES = 2 << 20


class Pool(Protocol):
    """The grant's part of the host pool (daemon/residency/pool.py: GrantPool)."""

    @property
    def devices(self) -> int:
        """How many devices the grant has."""

    def draw(
        self, record: MemberRecord, size: int, device: int, made: Callable[[Segment | None, int, str], None]
    ) -> None:
        """Has a segment made. Raises RefusedError where the grant has not reserved as much."""

    def adopt(self, record: MemberRecord) -> None:
        """Counts what a process has had since before the daemon was started again."""

    def give_back_all(self, record: MemberRecord) -> None:
        """Takes back what a process has."""

    def give_back(self, segment: Segment) -> None:
        """Takes back one segment."""


@dataclass(frozen=True, slots=True)
class _Passing:
    """A segment on its way to a process. The descriptor is the pool's."""

    connection: int
    record: MemberRecord
    segment: Segment
    descriptor: int


class SegmentDesk:
    """One grant's."""

    def __init__(self, door: Door, pool: Pool | None, changed: Callable[[], None]) -> None:
        """`pool`: None where the daemon has none. `changed`: has the members written; `written` follows."""
        self._door, self._pool, self._changed = door, pool, changed
        self._unwritten: list[_Passing] = []
        self._given_back: list[tuple[int, MemberRecord]] = []
        """Connections over which processes gave all back, and that are answered once it is written."""
        self._passing: dict[int, _Passing] = {}
        """By connection, until the process has hung up: then it has the segment, or never got it."""
        self._doors = 0
        """How many doors were lost: a connection's number is one door's."""

    def asked(self, connection: int, record: MemberRecord | None, request: SegmentRequest) -> None:
        """Handles a request. `record`: of the member that sent it; None: it is none."""
        if record is None:
            self._refuse(connection, "only a process that has joined gets memory of the host pool")
        elif self._pool is None:
            self._refuse(connection, "this grant has no part of the host pool")
        elif not request.size:
            self.gave_back(record)
            self._given_back.append((connection, record))
            self._changed()
        elif request.size % _UNIT_BYTES or request.size > wire.SEGMENT_MOST:
            self._refuse(connection, f"a segment has whole pages of 2 MiB, at most {wire.SEGMENT_MOST >> 20} MiB")
        elif request.device >= self._pool.devices:
            self._refuse(connection, f"the grant has no device {request.device}")
        else:
            self._draw(self._pool, connection, record, request)

    def _draw(self, pool: Pool, connection: int, record: MemberRecord, request: SegmentRequest) -> None:
        door = self._doors

        def made(segment: Segment | None, descriptor: int, why: str) -> None:
            if segment is None:
                if door == self._doors:
                    self._door.answer(connection, wire.reply(JoinError.FULL, why))
            elif door != self._doors:  # nobody waits for it any more
                pool.give_back(segment)
            else:
                record.pool_bytes += segment.size
                self._unwritten.append(_Passing(connection, record, segment, descriptor))
                self._changed()

        try:
            pool.draw(record, request.size, request.device, made)
        except RefusedError as full:
            self._door.answer(connection, wire.reply(JoinError.FULL, str(full)))

    def _refuse(self, connection: int, why: str) -> None:
        self._door.answer(connection, wire.reply(JoinError.REFUSED, why))

    def written(self, failure: str = "") -> None:
        """The members are in the ledger; or `failure` says why not."""
        given_back, self._given_back = self._given_back, []
        for connection, record in given_back:
            if failure:
                self._refuse(connection, failure)
            else:
                self._door.answer(connection, _reply(record))
        unwritten, self._unwritten = self._unwritten, []
        for passing in unwritten:
            if failure:
                self._take_back(passing)
                self._refuse(passing.connection, failure)
            else:
                self._passing[passing.connection] = passing
                self._door.answer(passing.connection, _reply(passing.record), passing.descriptor)

    def ended(self, connection: int, *, delivered: bool) -> None:
        """Handles the end of a connection over which a segment was passed; others are ignored."""
        passing = self._passing.pop(connection, None)
        if passing is not None and not delivered:
            self._take_back(passing)
            self._changed()

    def lost(self) -> None:
        """All connections are gone. Segments whose answers were under way stay their processes': some have them, and
        one that does not gives all back before it asks again."""
        self._doors += 1
        self._passing.clear()
        self._given_back.clear()
        unwritten, self._unwritten = self._unwritten, []
        for passing in unwritten:
            self._take_back(passing)
        if unwritten:
            self._changed()

    def adopt(self, record: MemberRecord) -> None:
        """Counts what a process has had since before the daemon was started again."""
        if self._pool is not None:
            self._pool.adopt(record)

    def gave_back(self, record: MemberRecord) -> None:
        """Takes back all that a process has: it says so, or it has ended."""
        for passing in [each for each in self._unwritten if each.record is record]:
            self._unwritten.remove(passing)
            self._refuse(passing.connection, "the process has given it back, or has ended")
        self._passing = {number: each for number, each in self._passing.items() if each.record is not record}
        if self._pool is not None:
            self._pool.give_back_all(record)
        record.pool_bytes = 0

    def _take_back(self, passing: _Passing) -> None:
        assert self._pool is not None
        passing.record.pool_bytes -= passing.segment.size
        self._pool.give_back(passing.segment)


def _reply(record: MemberRecord) -> bytes:
    return wire.reply(JoinError.OK, slot=record.slot, generation=record.generation, host_pid=record.pid)
