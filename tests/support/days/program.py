"""A program of the days: it works in bursts, each of which needs its memory."""

from dataclasses import dataclass

from days.clock import MS, Due, S
from days.device import Device
from days.mover import QUIET_NS, Kind, Mover, Passage, World
from days.pages import Limits, meant

from gpushare.binding.page_words import Residency

_ALONE_NS = 10 * S
_LOOK_AGAIN_NS = S


@dataclass(frozen=True, slots=True)
class Rhythm:
    """`think_ns`: between two bursts of work, on average, `work_ns`: of one. `kernel_ns`: of a kernel."""

    think_ns: int
    work_ns: int
    kernel_ns: int = 10 * MS


class Program(Mover):
    """`wants_ns`: since when it waits for its memory. `worked_ns`: for how long it computed. `served`: number of bursts
    that are over."""

    def __init__(
        self, world: World, grant: str, device: Device, limits: Limits, limit: int, kind: Kind, rhythm: Rhythm
    ) -> None:
        super().__init__(world, grant, device, limits, limit, kind)
        self.rhythm = rhythm
        self.wants_ns: int | None = None
        self.worked_ns = self.served = 0
        self._burst = self._began = self._since = 0
        self._end: Due | None = None

    def start(self, fixed: int, sizes: list[int]) -> None:
        """Takes its memory, and begins to work."""
        self.fixed = fixed
        if not self.device.take(fixed):
            self.world.no_memory(self, fixed)
            self.fixed = fixed = 0
        self.mapped += fixed
        self.say(residency=self.carried, memory_bytes=fixed)
        for size in sizes:
            self.allocate(size)
        if meant(self.limits.word) is Residency.HOSTED:
            self.later(MS, self.react)
        self._think()

    @property
    def is_working(self) -> bool:
        """See Mover."""
        return bool(self._burst) and self.wants_ns is None

    @property
    def quiet_ns(self) -> int:
        """See Mover."""
        return 0 if self._burst else self.world.clock.now_ns - self._since

    def kernel_left_ns(self) -> int:
        """See Mover."""
        ran = self.world.clock.now_ns - self._began
        return max(0, min(self._burst - ran, self.rhythm.kernel_ns - ran % self.rhythm.kernel_ns))

    def pause(self) -> None:
        """See Mover."""
        if self._end is not None:
            self._end.cancel()
        self._work()
        if self._burst:
            self._wait()
        else:
            self._end, self.served = None, self.served + 1
            self._think()

    def go_on(self) -> None:
        """See Mover."""
        if self._burst and self.wants_ns is not None:
            self._run()

    def wish(self) -> None:
        """See Mover."""
        if self.wants_ns is not None:
            self.say(wants=True)
            self._wish_again()

    def _think(self) -> None:
        self._since = self.world.clock.now_ns
        if meant(self.carried) is Residency.PREPARED:
            self.later(QUIET_NS, self.copy_ahead)
        if not self.rests:
            self.later(int(self.world.rng.expovariate(1) * self.rhythm.think_ns), self.call)

    def call(self, ns: int | None = None) -> None:
        """A burst of work begins: the first call that needs its memory."""
        if self._burst or self.stopped or self.kind is Kind.MUTE or (self.rests and ns is None):
            return
        self._burst = max(1, int(self.world.rng.expovariate(1) * self.rhythm.work_ns) if ns is None else ns)
        if self.state in (Passage.OPEN, Passage.WATCHED):
            self._run()
        else:
            self._wait()

    def _run(self) -> None:
        self.state, self._clean = Passage.OPEN, False
        if any(piece.here != piece.truth for piece in self.pieces):
            self.world.lost(self)
        self._began, self.wants_ns = self.world.clock.now_ns, None
        self.say(inflight=1, waiting=0, clean_bytes=0, launches=self.said.launches + 1)
        if self.kind is not Kind.STUCK:
            self._end = self.later(self._burst, self._done)

    def _work(self) -> None:
        """Counts what has been done of the burst."""
        done = self.world.clock.now_ns - self._began
        self._burst, self.worked_ns = max(0, self._burst - done), self.worked_ns + done
        for piece in self.pieces:
            piece.truth += 1
            piece.here = piece.truth
        self.say(inflight=0, launches=self.said.launches + 1)

    def _done(self) -> None:
        self._end = None
        self._work()
        self._burst, self.served = 0, self.served + 1
        rng = self.world.rng
        if self.state is not Passage.OPEN:
            pass  # a call that makes or ends an allocation would wait now
        elif self.pieces and rng.random() < 0.1:
            self.free()
        elif rng.random() < 0.2:
            self.allocate(rng.choice((1, 2, 4)) << 28)
        self._think()

    def rest(self) -> None:
        """What it does is done soon, and it begins nothing more."""
        self.rests = True
        if self._end is not None and self.is_working:
            self._end.cancel()
            self._work()
            self._burst = min(self._burst, S) or 1
            self._run()
        else:
            self._burst = min(self._burst, S)

    def _wait(self) -> None:
        self.wants_ns = self.world.clock.now_ns
        self.say(waiting=1)
        if self.state is Passage.AWAY:
            self.wish()

    def _wish_again(self) -> None:
        if self.state is not Passage.AWAY or self.wants_ns is None or self.busy or self.stopped:
            return
        if self.world.alone_ns() >= _ALONE_NS and self.limits.kept:
            self.say(returns=True)
            if self.limits.kept:
                self.enter(self.limits.word)
                return
            self.say(returns=False)
        if not self.said.wants:
            self.say(wants=True)
        self.world.tell(self)
        self.later(_LOOK_AGAIN_NS, self._wish_again)

    def stop(self, *, stopped: bool) -> None:
        """As SIGSTOP and SIGCONT."""
        self.stopped = stopped
        if not stopped:
            self.react()
            if not self._burst:
                self._think()
