"""The reclaim ladder: what is taken back from whom, by which rung, and when the next one comes. Pure: times are
arguments, and a reclaim is a state that events change, so that any run can be replayed.

Only a tenant that has more than it is entitled to loses anything. A harsher rung follows only where the milder one
cannot free what is needed, or was tried and failed within its time.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction


class Rung(enum.IntEnum):
    """From mild to harsh; compare them with `<`."""

    NONE = 0
    THROTTLE = 1
    DEMOTE = 2
    SUSPEND = 3
    EVICT = 4
    KILL = 5

    @property
    def word(self) -> str:
        """As people and the API write it."""
        return self.name.lower()


class Need(enum.StrEnum):
    """What is to be freed."""

    TIME = "time"
    MEMORY = "memory"
    DEVICE = "device"


class Rule(enum.StrEnum):
    """Why something is taken back: a tenant lacks what is guaranteed to it, or its fair part of what is idle."""

    GUARANTEE = "I2"
    FAIR_SHARE = "I5"


_FREES: Mapping[Need, tuple[Rung, ...]] = {
    Need.TIME: (Rung.THROTTLE,),
    Need.MEMORY: (Rung.DEMOTE, Rung.SUSPEND, Rung.EVICT, Rung.KILL),
    Need.DEVICE: (Rung.SUSPEND, Rung.EVICT, Rung.KILL),
}
"""Time is always taken back by revoking a lease: nobody is evicted for it."""


def rung_of(word: str) -> Rung | None:
    """The rung of this name."""
    return next((rung for rung in Rung if rung.word == word), None)


def rungs(need: Need, most: Rung, missing: Collection[Rung] = ()) -> tuple[Rung, ...]:
    """The rungs that can free it, mildest first, up to `most`. `missing`: rungs that this node does not have."""
    return tuple(rung for rung in _FREES[need] if rung <= most and rung not in missing)


@dataclass(frozen=True, slots=True)
class Standing:
    """A tenant in the quantity that is to be freed (milli or bytes)."""

    name: str
    allocated: int
    entitlement: int
    weight: int = 1
    tier: int = 0

    @property
    def borrowed(self) -> int:
        """What it has beyond its entitlement."""
        return max(0, self.allocated - self.entitlement)


@dataclass(frozen=True, slots=True)
class Loan:
    """A grant that could give something back. `amount`: what its end frees. `since_ns`: when it began. `rungs`: as
    `rungs` returns them. `grace_ns`: how long it has to give something back once it is asked."""

    grant: str
    tenant: str
    amount: int
    since_ns: int
    rungs: tuple[Rung, ...]
    priority: int = 0
    min_hold_ns: int = 0
    grace_ns: int = 0

    def held(self, now_ns: int) -> bool:
        """Whether it is still in its min_hold."""
        return now_ns < self.since_ns + self.min_hold_ns


def victim(
    loans: Iterable[Loan], tenants: Mapping[str, Standing], rule: Rule, now_ns: int, spared: Collection[str] = ()
) -> Loan | None:
    """The loan to take back first, None: none may be. `spared`: tenants that must not be victims."""
    return min(
        (
            loan
            for loan in loans
            if loan.rungs
            and loan.tenant not in spared
            and (standing := tenants.get(loan.tenant)) is not None
            and standing.borrowed > 0
            and _may(loan, rule, now_ns)
        ),
        key=lambda loan: (_of_tenant(tenants[loan.tenant]), _in_tenant(loan, now_ns)),
        default=None,
    )


def _of_tenant(tenant: Standing) -> tuple[object, ...]:
    """Scavengers first, then lower tiers, then the largest borrowed amount per weight."""
    return tenant.weight > 0, tenant.tier, -Fraction(tenant.borrowed, tenant.weight or 1), tenant.name


def _in_tenant(loan: Loan, now_ns: int) -> tuple[object, ...]:
    return loan.priority, loan.held(now_ns), loan.rungs[0], loan.amount, loan.grant


def choose(
    loans: Iterable[Loan],
    tenants: Callable[[Collection[str]], Mapping[str, Standing]],
    rule: Rule,
    now_ns: int,
    enough: Callable[[Collection[str]], bool],
    spared: Collection[str] = (),
) -> list[Loan]:
    """The victims; none where no set of them is `enough`. `enough` and `tenants` are called with the ids of grants
    taken as gone: what each gives back counts before the next is chosen, so that no tenant is asked for more once it is
    within its entitlement. A victim that later ones made needless is dropped."""
    by_tenant: dict[str, list[Loan]] = {}
    for loan in sorted((loan for loan in loans if loan.rungs), key=lambda loan: _in_tenant(loan, now_ns), reverse=True):
        by_tenant.setdefault(loan.tenant, []).append(loan)
    chosen: list[Loan] = []
    while not enough({loan.grant for loan in chosen}):
        gone = {loan.grant for loan in chosen}
        first = [next((one for one in reversed(rows) if _may(one, rule, now_ns)), None) for rows in by_tenant.values()]
        found = victim([one for one in first if one is not None], tenants(gone), rule, now_ns, spared)
        if found is None:
            return []
        chosen.append(found)
        by_tenant[found.tenant].remove(found)
    for loan in tuple(chosen):
        if enough({other.grant for other in chosen if other is not loan}):
            chosen.remove(loan)
    return chosen


def _may(loan: Loan, rule: Rule, now_ns: int) -> bool:
    return not (rule is Rule.FAIR_SHARE and loan.held(now_ns))


# One victim on the ladder.


@dataclass(frozen=True, slots=True)
class Receipt:
    """A rung that freed nothing, and why."""

    rung: Rung
    started_ns: int
    ended_ns: int
    why: str


@dataclass(frozen=True, slots=True)
class Reclaim:
    """`owner`: the tenant that gets it. `begun_ns`: when the first rung began. `rungs`: those still to be tried,
    mildest first. `rung`: the one that runs since `started_ns`, NONE: all have failed. `deadline_ns`: when it fails.
    `receipts`: of those that failed."""

    grant: str
    owner: str
    begun_ns: int
    rungs: tuple[Rung, ...]
    clocks: Mapping[Rung, int]
    rung: Rung
    started_ns: int
    deadline_ns: int
    receipts: tuple[Receipt, ...] = ()

    @property
    def over(self) -> bool:
        """Whether no event changes it any more."""
        return self.rung is Rung.NONE


@dataclass(frozen=True, slots=True)
class Failed:
    """The rung that runs cannot free it."""

    now_ns: int
    rung: Rung
    why: str


@dataclass(frozen=True, slots=True)
class Clock:
    """Time has passed."""

    now_ns: int


Event = Failed | Clock


def begin(grant: str, owner: str, rungs: tuple[Rung, ...], now_ns: int, clocks: Mapping[Rung, int]) -> Reclaim:
    """A reclaim at the mildest rung. `clocks`: how long each rung may take, in ns; a missing one has no time."""
    return _next(Reclaim(grant, owner, now_ns, rungs, clocks, Rung.NONE, now_ns, now_ns), now_ns)


def advance(reclaim: Reclaim, event: Event) -> Reclaim:
    """The state after the event. A late event, or one of another rung, changes nothing."""
    if reclaim.over:
        return reclaim
    match event:
        case Failed(now_ns, rung, why):
            return _next(_failed(reclaim, now_ns, why), now_ns) if rung is reclaim.rung else reclaim
        case Clock(now_ns):
            if now_ns < reclaim.deadline_ns:
                return reclaim
            return _next(_failed(reclaim, now_ns, "its time was over"), now_ns)


def _failed(reclaim: Reclaim, now_ns: int, why: str) -> Reclaim:
    receipt = Receipt(reclaim.rung, reclaim.started_ns, now_ns, why)
    return replace(reclaim, receipts=(*reclaim.receipts, receipt))


def _next(reclaim: Reclaim, now_ns: int) -> Reclaim:
    if not reclaim.rungs:
        return replace(reclaim, rung=Rung.NONE)
    rung, *rest = reclaim.rungs
    deadline = now_ns + reclaim.clocks.get(rung, 0)
    return replace(reclaim, rungs=tuple(rest), rung=rung, started_ns=now_ns, deadline_ns=deadline)
