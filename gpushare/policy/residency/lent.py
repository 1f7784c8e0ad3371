"""Who had a grant's room while its memory was away, and what both sides are told of it. Pure: times are arguments."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpushare.policy.residency.costs import Loan
from gpushare.text.sentences import clock
from gpushare.text.units import format_size

NAMED = 3
"""Tenants that a receipt names."""
_MINUTE = "%H:%M"


def borrowers(before: Mapping[str, int], most: Iterable[Loan], room: int) -> list[tuple[str, int]]:
    """The tenants that took memory on loan on a device while a grant's memory was away: names and bytes, the largest
    first, then by name, at most NAMED. `before`: by grant, what was on loan when it left. `most`: the most that each
    grant had on loan since. `room`: what the grant left, which nobody had more of."""
    took: Counter[str] = Counter()
    for one in most:
        took[one.tenant] += max(0, one.on_loan_bytes - before.get(one.grant, 0))
    found = [(tenant, min(size, room)) for tenant, size in took.items() if size > 0 and room > 0]
    return sorted(found, key=lambda one: (-one[1], one[0]))[:NAMED]


@dataclass(slots=True)
class Away:
    """Of a grant whose memory is away. `left_ns`, `back_ns`: wall times at which its room was left, and taken again;
    None: not known, and not yet. `lent_ns`: since when others had of it. `room`: bytes that left."""

    left_ns: int | None
    room: int
    before: Mapping[str, int]
    lent_ns: int | None = None
    back_ns: int | None = None
    _most: dict[str, Loan] = field(default_factory=dict)

    def look(self, now_ns: int, others: Collection[Loan]) -> None:
        """Takes note of what others have on loan now, unless its room is its own again."""
        if self.back_ns is not None:
            return
        for one in others:
            known = self._most.get(one.grant)
            if known is None or one.on_loan_bytes > known.on_loan_bytes:
                self._most[one.grant] = one
        if self.lent_ns is None and self.lent_to:
            self.lent_ns = now_ns

    @property
    def lent_to(self) -> list[tuple[str, int]]:
        """As `borrowers`."""
        return borrowers(self.before, self._most.values(), self.room)


def lender(away: Away, now_ns: int, back_in_ns: int | None) -> str:
    """The receipt of a grant whose memory is back; empty: nobody had its room. `back_in_ns`: how long that took since
    it was wanted; None: not known."""
    back = f"back in {_seconds(back_in_ns)}" if back_in_ns is not None else "back"
    tenants = away.lent_to
    if not tenants:
        return ""
    until = away.back_ns if away.back_ns is not None else now_ns
    size = format_size(min(away.room, sum(size for _, size in tenants)))
    span = f"{clock(away.lent_ns or until, _MINUTE)}-{clock(until, _MINUTE)}"
    return f"{size} lent {span} to {_named(tenants)}; {back}"


def meanwhile(away: Away) -> str:
    """What is said of a grant while its memory is away, after how much of it is; begins with a blank or a comma."""
    since = f" since {clock(away.left_ns, _MINUTE)}" if away.left_ns is not None else ""
    tenants = away.lent_to
    return f"{since}, its room lent to {_named(tenants)}," if tenants else since


def _named(tenants: Collection[tuple[str, int]]) -> str:
    names = [name for name, _ in tenants]
    return f"tenant {names[0]}" if len(names) == 1 else f"tenants {', '.join(names[:-1])} and {names[-1]}"


def borrower(size: int, now_ns: int, moved_in_ns: int | None) -> str:
    """The receipt of a grant whose memory on loan, `size` bytes, was moved out. `moved_in_ns`: how long that took;
    None: not known."""
    took = f" in {_seconds(moved_in_ns)}" if moved_in_ns is not None else ""
    return f"had {format_size(size)} on loan; moved out {clock(now_ns, _MINUTE)}{took}"


def _seconds(ns: int) -> str:
    return f"{max(0, ns) / 1e9:.2f} s"
