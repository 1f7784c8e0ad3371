"""Takes memory on loan back for its owner: which grants are asked for it, until when, and which are ended. Pure: times
are arguments, a World says what would fit, and what is to be done comes out as steps.

A want is a request that its tenant's guarantee covers and that does not fit while others have that memory on loan. It
is remembered for WANT_NS after it was last asked for, so that the memory is there when the requester asks again. No
grant is ended unless that, with what the others gave back, makes room for the want.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from gpushare.policy.loans import reclaim
from gpushare.policy.loans.reclaim import Clock, Failed, Loan, Reclaim, Rule, Rung, Standing

Outcome = Literal["released", "not needed", "ended", "refused"]

WANT_NS = 120 * 10**9
WANTS_MAX = 64
AGAIN_NS = 10 * 10**9
"""For so long a grant is not asked again for the same want from which nothing could be taken: its work may be over by
then."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A node's policy. `most`: the harshest rung that it uses. `lend_to`: memory that is guaranteed to others goes only
    to grants that allow this rung, or a harsher one. `grace_ns`: how long a grant that is asked has at most.
    `min_hold_ns`: for that long after it began, others of its tenant are asked before it."""

    most: Rung = Rung.KILL
    lend_to: Rung = Rung.EVICT
    grace_ns: int = 30 * 10**9
    min_hold_ns: int = 60 * 10**9

    def least(self, *, movable: bool) -> Rung:
        """What a grant has to allow in order to borrow memory. `movable`: its memory can be moved to host memory."""
        return max(self.lend_to, Rung.DEMOTE if movable else Rung.EVICT)

    def lends(self, max_rung: Rung, *, movable: bool = False) -> bool:
        """Whether a grant that allows this may borrow memory."""
        return min(max_rung, self.most) >= self.least(movable=movable)


class World(Protocol):
    """The node's grants as they are now."""

    def fits(self, wants: Sequence[str], gone: Collection[str]) -> bool:
        """Whether there is room for `wants`, one after the other, once the grants in `gone` have ended."""

    def loans(self) -> Iterable[Loan]:
        """Loans of all grants that have memory on loan."""

    def standings(self, wants: Sequence[str], gone: Collection[str]) -> Mapping[str, Standing]:
        """Standings of the tenants from which memory may be taken back for the last of `wants`, once those before it
        are served and the grants in `gone` have ended."""


# Steps, to be carried out in their order.


@dataclass(frozen=True, slots=True)
class Ask:
    """A rung begins for a grant. `first`: its first rung. `owner`: the tenant that gets the memory."""

    grant: str
    owner: str
    rung: Rung
    deadline_ns: int
    first: bool


@dataclass(frozen=True, slots=True)
class End:
    """End the grant; its `Over` comes before."""

    grant: str
    owner: str


@dataclass(frozen=True, slots=True)
class Over:
    """The grant is no longer asked. `rung`: the last one."""

    grant: str
    outcome: Outcome
    rung: Rung
    started_ns: int


Step = Ask | End | Over


@dataclass(slots=True)
class Want:
    """`asked_ns`: when it was last asked for. `victims`: grants whose memory it waits for. `refused`: grants that gave
    nothing back, and may not be ended, and until when they are not asked again. `failed_ns`: since when there is no
    grant left to ask."""

    key: str
    owner: str
    asked_ns: int
    victims: set[str] = field(default_factory=set)
    refused: dict[str, int] = field(default_factory=dict)
    failed_ns: int | None = None
    fits: bool = False

    @property
    def waits(self) -> bool:
        """Whether it waits for memory to be given back."""
        return not self.fits and self.failed_ns is None


class Recalls:
    """All wants and reclaims. Methods that change them return steps; each grant named in one is asked at that time."""

    def __init__(self, clocks: Mapping[Rung, int] | None = None) -> None:
        """`clocks`: how long the rungs before `evict` may take, in ns."""
        self.clocks = dict(clocks or {})
        self.wants: dict[str, Want] = {}
        self.running: dict[str, Reclaim] = {}

    def copy(self) -> "Recalls":
        """An independent copy."""
        other = Recalls(self.clocks)
        other.wants = {
            key: replace(want, victims=set(want.victims), refused=dict(want.refused))
            for key, want in self.wants.items()
        }
        other.running = dict(self.running)
        return other

    @property
    def open(self) -> bool:
        """Whether any want can still be served: no memory is lent meanwhile."""
        return any(want.failed_ns is None for want in self.wants.values())

    def wanted(self, now_ns: int, key: str, owner: str, world: World) -> list[Step]:
        """The request `key` was refused. It is in `wants` afterwards where a grant has memory on loan that it should
        have."""
        known = self.wants.get(key)
        if known is not None and known.failed_ns is None:
            known.asked_ns = now_ns
            return []
        if known is None and len(self.wants) >= WANTS_MAX:
            return []
        want = self.wants[key] = Want(key, owner, now_ns)
        if known is not None and known.failed_ns is not None and now_ns < known.failed_ns + WANT_NS:
            want.refused, want.failed_ns = known.refused, known.failed_ns
        steps = self._choose(want, now_ns, world)
        if steps is not None:
            want.failed_ns = None
        elif want.failed_ns is None:
            del self.wants[key]
        return steps or []

    def served(self, key: str, now_ns: int, world: World) -> list[Step]:
        """The request `key` was admitted, or nobody wants it any more."""
        return self.look(now_ns, world) if self.wants.pop(key, None) is not None else []

    def gave(self, grants: Iterable[str], now_ns: int, world: World) -> list[Step]:
        """These grants have ended, or have nothing on loan any more. One that gives back a part is still asked for the
        rest."""
        over = [self._over(grant, "released") for grant in grants if grant in self.running]
        return [*over, *self.look(now_ns, world)] if self.wants else [*over]

    def cannot(self, grant: str, rung: Rung, why: str, now_ns: int, world: World) -> list[Step]:
        """The rung that runs for this grant frees nothing."""
        running = self.running.get(grant)
        if running is None or running.rung is not rung or rung >= Rung.EVICT:
            return []
        return [*self._next(grant, Failed(now_ns, rung, why)), *self.look(now_ns, world)]

    def look(self, now_ns: int, world: World) -> list[Step]:
        """Time has passed, or the grants have changed."""
        for want in [want for want in self.wants.values() if now_ns >= want.asked_ns + WANT_NS]:
            del self.wants[want.key]
        there: list[str] = []
        for want in self.wants.values():
            want.fits = world.fits([*there, want.key], ())
            if want.fits:
                there.append(want.key)
        steps = self._spare()
        for grant, running in list(self.running.items()):
            if running.rung < Rung.EVICT and now_ns >= running.deadline_ns:
                steps += self._next(grant, Clock(now_ns))
        for want in list(self.wants.values()):
            if want.waits and all(self._out_of_time(grant, now_ns) for grant in want.victims):
                steps += self._settle(want, now_ns, world)
                if any(isinstance(step, End) for step in steps):
                    break  # the others are looked at again when those are gone
        return steps

    def next_ns(self, now_ns: int) -> int | None:
        """When to look again at the latest."""
        times = [running.deadline_ns for running in self.running.values() if running.deadline_ns > now_ns]
        return min([*times, *(want.asked_ns + WANT_NS for want in self.wants.values())], default=None)

    # Who is asked.

    def _before(self, want: Want) -> tuple[list[str], set[str]]:
        """The wants before this one that will be served, and the grants that will be gone then."""
        found: list[str] = []
        gone: set[str] = set()
        for other in self.wants.values():
            if other is want:
                break
            if other.failed_ns is None:
                found.append(other.key)
                gone |= other.victims & self.running.keys()
        return found, gone

    def _choose(self, want: Want, now_ns: int, world: World, also: Collection[str] = ()) -> list[Step] | None:
        """Asks the grants that have to be asked for it, None: there are none. `also`: further grants that will be
        gone."""
        before, gone = self._before(want)
        gone |= set(also)
        keys = [*before, want.key]
        spared = gone | {grant for grant, until_ns in want.refused.items() if now_ns < until_ns}
        loans = [loan for loan in world.loans() if loan.grant not in spared]
        found = reclaim.choose(
            loans,
            lambda more: world.standings(keys, gone | set(more)),
            Rule.GUARANTEE,
            now_ns,
            lambda more: world.fits(keys, gone | set(more)),
        )
        if not found and not (gone and world.fits(keys, gone)):
            return None
        want.victims = {*gone, *(loan.grant for loan in found)}
        return [step for loan in found for step in self._ask(loan, want.owner, now_ns)]

    def _ask(self, loan: Loan, owner: str, now_ns: int) -> list[Step]:
        if loan.grant in self.running:
            return []
        clocks = {**self.clocks, Rung.EVICT: loan.grace_ns}
        begun = reclaim.begin(loan.grant, owner, loan.rungs, now_ns, clocks)
        self.running[loan.grant] = begun
        return [Ask(loan.grant, owner, begun.rung, begun.deadline_ns, first=True)]

    def _next(self, grant: str, event: Failed | Clock) -> list[Step]:
        before = self.running[grant]
        after = reclaim.advance(before, event)
        if after.over:
            del self.running[grant]
            for want in self.wants.values():
                if grant in want.victims:
                    want.refused[grant] = event.now_ns + AGAIN_NS
            return [Over(grant, "refused", before.rung, before.begun_ns)]
        self.running[grant] = after
        return [Ask(grant, after.owner, after.rung, after.deadline_ns, first=False)]

    # How it ends.

    def _out_of_time(self, grant: str, now_ns: int) -> bool:
        running = self.running.get(grant)
        return running is None or (running.rung is Rung.EVICT and now_ns >= running.deadline_ns)

    def _over(self, grant: str, outcome: Outcome) -> Over:
        running = self.running.pop(grant)
        return Over(grant, outcome, Rung.KILL if outcome == "ended" else running.rung, running.begun_ns)

    def _spare(self) -> list[Step]:
        """Stops asking the grants that no want waits for any more."""
        needed = {grant for want in self.wants.values() if want.waits for grant in want.victims}
        return [self._over(grant, "not needed") for grant in list(self.running) if grant not in needed]

    def _settle(self, want: Want, now_ns: int, world: World) -> list[Step]:
        """Settles a want when all that were asked for it have had their time: ends grants if that makes room, else asks
        others."""
        asked = sorted(want.victims & self.running.keys())
        doomed = [grant for grant in asked if Rung.KILL in self.running[grant].rungs]
        stay = [grant for grant in asked if grant not in doomed]
        steps: list[Step] = [self._over(grant, "refused") for grant in stay]
        want.refused |= dict.fromkeys(stay, now_ns + WANT_NS)
        before, gone = self._before(want)
        keys = [*before, want.key]
        if doomed and world.fits(keys, gone | set(doomed)):
            for grant in _needed(doomed, lambda some: world.fits(keys, gone | set(some))):
                steps += [self._over(grant, "ended"), End(grant, want.owner)]
            return steps
        more = self._choose(want, now_ns, world, doomed)
        if more is None:
            want.failed_ns = now_ns
            return [*steps, *self._spare()]
        return [*steps, *more]


def _needed(grants: Sequence[str], enough: Callable[[Collection[str]], bool]) -> list[str]:
    """A part of these that is enough, and none of which can be left out."""
    kept = list(grants)
    for grant in grants:
        if enough([other for other in kept if other != grant]):
            kept.remove(grant)
    return kept
