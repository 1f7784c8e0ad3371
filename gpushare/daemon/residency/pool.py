"""The host pool: memory of the node that hosted bytes of grants live in, in segments.

A segment is a sealed memory file, made by a helper (gpushare/hostpool) when a process asks for it, from what is
reserved for its grant. The daemon keeps a descriptor: when the process gives the segment back or ends, the file is
emptied, and a tenant that kept a descriptor of it keeps nothing. No file is given to a second process.
"""

import asyncio
import contextlib
import logging
import os
import resource
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpushare.api import node as view
from gpushare.daemon.host.logs import Seldom
from gpushare.daemon.residency.memory_helper import MemoryHelper
from gpushare.daemon.state.records import MemberRecord
from gpushare.daemon.timing import Timing
from gpushare.enforce import memory_cgroup
from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import GpushareError
from gpushare.hostpool import memory_file
from gpushare.policy.residency.pool import Counts, PoolBook, Segment, TenantLimit

log = logging.getLogger(__name__)

_HELPERS_BYTES = 128 << 20
"""More is charged to the pool's cgroup than its segments: what the helpers take, and the kernel for them."""

_AGAIN_S = 1.0
"""Between two tries to empty a file."""

_GONE = "the process has given it back, or has ended"

_seldom = Seldom()

Limits = Callable[[str], Sequence[TenantLimit]]
Made = Callable[[Segment | None, int, str], None]
"""Called once for each segment that was asked for: with it and its descriptor, which stays the pool's; or with None and
the reason."""


@dataclass(slots=True, eq=False)
class _Wish:
    segment: Segment
    numa: int
    made: Made


class HostPool:
    """Made and used in the loop's thread. Grants are named by their ids, processes by slot and generation."""

    def __init__(
        self,
        size: int,
        timing: Timing,
        cgroup: Cgroup | None = None,
        *,
        uncharged: str = "",
        limits: Limits = lambda _: (),
    ) -> None:
        """`cgroup`: what segments are charged to; None: the daemon's own, and `uncharged` says why. `limits`: those of
        a grant's tenant and of all above it."""
        self._cgroup, self._limits = cgroup, limits
        self._uncharged = uncharged
        # The other half is for sockets and pidfds. One segment takes one.
        self._segments_most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._book = PoolBook(size, self._segments_most)
        self._files: dict[Segment, int] = {}
        self._wishes: dict[str, deque[_Wish]] = {}
        """By grant; the first grant's turn is next."""
        self._leaving: deque[Segment] = deque()
        self._leaving_of: Counter[str] = Counter()
        """Their bytes by grant."""
        # Two processes: a file that its tenant makes slow to empty delays nobody's new segments.
        self.helpers = self._maker, self._emptier = MemoryHelper(timing, cgroup), MemoryHelper(timing, cgroup)
        self._making: asyncio.Task[None] | None = None
        self._emptying: asyncio.Task[None] | None = None

    # What grants reserve.

    @property
    def size_bytes(self) -> int:
        """What it may take of the node's memory."""
        return self._book.size

    @property
    def free_bytes(self) -> int:
        """What can still be reserved."""
        return max(0, self._book.counts().free - self.kept_bytes)

    @property
    def counts(self) -> Counts:
        """All of it by state."""
        return self._book.counts()

    @property
    def kept_bytes(self) -> int:
        """What is charged to the pool and is no segment's any more: memory that a process has pinned stays its own when
        the file is emptied, until it lets go or ends. It is free in the books, and given to nobody."""
        charged = memory_cgroup.charged(self._cgroup) if self._cgroup is not None else None
        return max(0, (charged or 0) - self._book.counts().used - _HELPERS_BYTES)

    @property
    def waiting(self) -> int:
        """Segments that are asked for and not made yet."""
        return sum(map(len, self._wishes.values()))

    @property
    def files(self) -> int:
        """Descriptors that it has."""
        return len(self._files)

    def facts(self) -> view.HostPool:
        """As the node API shows it."""
        now = self._book.counts()
        return view.HostPool(
            size=self._book.size,
            free=self.free_bytes,
            reserved=now.reserved,
            used=now.used,
            kept=self.kept_bytes,
            cgroup=str(self._cgroup.path) if self._cgroup is not None else "",
            uncharged=self._uncharged,
            segments=self._book.segment_count,
            segments_most=self._segments_most,
        )

    def reserved(self, grant: str) -> int:
        """What is reserved for a grant."""
        return self._book.reserved(grant)

    def reserve(self, grant: str, size: int) -> None:
        """Makes the grant's reservation exactly `size`. Raises RefusedError, and leaves the reservation as it was."""
        self._book.reserve(grant, size, self._limits(grant), kept=self.kept_bytes)
        if size:
            self._maker.start_ahead()

    def release(self, grant: str) -> None:
        """Ends the grant's reservation. Segments that its processes still have count until they give them back."""
        self._book.release(grant)

    def end(self, grant: str) -> None:
        """Ends the reservation of a grant that has ended, and takes back all its segments."""
        self._book.release(grant)
        for segment in self._book.segments(grant):
            self._give_back(segment)
        self._drop_wishes(grant)

    # What their processes draw from that.

    def draw(self, grant: str, slot: int, generation: int, size: int, numa: int, made: Made) -> None:
        """Has a segment made for a process. `numa`: the node it should lie on; negative: any. Raises RefusedError where
        the grant has not reserved as much; later failures are told to `made`."""
        segment = self._book.draw(grant, slot, generation, size)
        self._wishes.setdefault(grant, deque()).append(_Wish(segment, numa, made))
        self._go_on()

    def adopt(self, grant: str, slot: int, generation: int, size: int) -> None:
        """Counts what a process has had since before the daemon was started again, in files that it alone has now."""
        self._book.adopt(grant, slot, generation, size, self._limits(grant))

    def give_back_all(self, grant: str, slot: int, generation: int) -> None:
        """Takes back what a process has: it says so, or it has ended."""
        for segment in self._book.segments(grant, slot, generation):
            self._give_back(segment)
        self._drop_wishes(grant)

    def give_back(self, segment: Segment) -> None:
        """Takes back one segment; its file is emptied before the bytes count as free."""
        self._give_back(segment)
        self._drop_wishes(segment.grant)

    def _give_back(self, segment: Segment) -> None:
        if self._book.has(segment):
            self._book.give_back(segment)
            if segment in self._files:
                self._leave(segment)

    def _leave(self, segment: Segment) -> None:
        self._leaving.append(segment)
        self._leaving_of[segment.grant] += segment.size
        self._go_on()

    def _drop_wishes(self, grant: str) -> None:
        """Those of segments that were given back before they were made."""
        wishes = self._wishes.pop(grant, deque())
        gone = [wish for wish in wishes if not self._book.has(wish.segment)]
        if len(gone) < len(wishes):
            self._wishes[grant] = deque(wish for wish in wishes if self._book.has(wish.segment))
        for wish in gone:
            self._book.emptied(wish.segment)
            asyncio.get_running_loop().call_soon(wish.made, None, -1, _GONE)

    def _waits_for_own(self, grant: str) -> bool:
        """Whether a grant has given back more than it may have, in files that are not empty: it gets no more before,
        since these bytes are missing to others."""
        return self._leaving_of[grant] > self._book.reserved(grant)

    def close(self) -> None:
        """Ends the helpers. Processes keep their segments; what was given back is emptied here."""
        for task in (self._making, self._emptying):
            if task is not None:
                task.cancel()
        self._maker.close()
        self._emptier.close()
        kept = set(self._files).difference(self._leaving)
        for segment, descriptor in self._files.items():
            if segment not in kept:
                with contextlib.suppress(OSError):
                    memory_file.empty(descriptor)
            os.close(descriptor)
        self._files.clear()
        if self._cgroup is not None:
            memory_cgroup.remove_unused(self._cgroup)

    # The work of the helpers.

    def _go_on(self) -> None:
        loop = asyncio.get_running_loop()
        if self._wishes and (self._making is None or self._making.done()):
            self._making = loop.create_task(self._make_all())
        if self._leaving and (self._emptying is None or self._emptying.done()):
            self._emptying = loop.create_task(self._empty_all())

    async def _make_all(self) -> None:
        """Makes one segment after another, a grant's after another's, until what is left has to wait for files that are
        not empty yet."""
        while not self._book.overdrawn:
            grant = next((one for one in self._wishes if not self._waits_for_own(one)), None)
            if grant is None:
                return
            waiting = self._wishes.pop(grant)
            wish = waiting.popleft()
            if waiting:
                self._wishes[grant] = waiting
            made, why = await self._make(wish)
            try:
                wish.made(wish.segment if made is not None else None, made if made is not None else -1, why)
            except Exception:
                log.exception("a process did not get its segment of the host pool")
                self.give_back(wish.segment)

    async def _make(self, wish: _Wish) -> tuple[int | None, str]:
        """The descriptor, or why there is none."""
        segment, why = wish.segment, _GONE
        if self._book.has(segment):
            try:
                self._files[segment] = await self._maker.make(segment.size, wish.numa)
            except GpushareError as error:
                why = str(error)
            except Exception:  # every request is answered: with too many unanswered, the door takes no more
                log.exception("a segment of the host pool was not made")
                why = "internal error: the daemon's log says which"
            else:
                if self._book.has(segment):
                    return self._files[segment], ""
                self._leave(segment)
                return None, why
        self._book.give_back(segment)
        self._book.emptied(segment)
        return None, why

    async def _empty_all(self) -> None:
        while self._leaving:
            segment = self._leaving[0]
            try:
                await self._emptier.empty(self._files[segment])
            except GpushareError as error:
                _seldom.warning("empty", "a segment of the host pool is not free yet: %s", error)
                self._leaving.rotate(-1)
                await asyncio.sleep(_AGAIN_S)
                continue
            self._leaving.popleft()
            self._leaving_of[segment.grant] -= segment.size
            self._leaving_of += Counter()  # without those that have none
            os.close(self._files.pop(segment))
            self._book.emptied(segment)
            self._go_on()


@dataclass(frozen=True, slots=True)
class GrantPool:
    """One grant's part of the pool, as its socket uses it (daemon/workloads/segment_desk.py). `numa`: of each of its
    devices, negative where it is not known."""

    pool: HostPool
    grant: str
    numa: Sequence[int]

    @property
    def devices(self) -> int:
        """How many devices the grant has."""
        return len(self.numa)

    def draw(self, record: MemberRecord, size: int, device: int, made: Made) -> None:
        """As HostPool.draw."""
        self.pool.draw(self.grant, record.slot, record.generation, size, self.numa[device], made)

    def adopt(self, record: MemberRecord) -> None:
        """As HostPool.adopt."""
        if record.pool_bytes:
            self.pool.adopt(self.grant, record.slot, record.generation, record.pool_bytes)

    def give_back_all(self, record: MemberRecord) -> None:
        """As HostPool.give_back_all."""
        self.pool.give_back_all(self.grant, record.slot, record.generation)

    def give_back(self, segment: Segment) -> None:
        """As HostPool.give_back."""
        self.pool.give_back(segment)
