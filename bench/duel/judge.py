"""Who won: pure arithmetic on the simulator's books."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

SHARE = 0.73
"""Of the device time that both used, the least that the honest tenant of 75 % gets."""
DEMAND = 0.15
"""An evasion that takes less of the device than this was no test: it did not run as it meant to."""
FILL = 0.5
"""The same for memory, of the limit."""
BEFORE_NS = 3_000_000_000
"""What an evader that has to be found may have beyond its share before: two seconds of the device by what is decided
(gpushare.policy.audit.overuse), and at most another until the next look."""
WAITED = 0.1
"""An honest tenant that waited longer than this part of the time for a processor has lost by that."""
LITTLE = 0.005
"""Below this part of the device, what was charged is no sensible part of what was used."""


@dataclass(frozen=True)
class Round:
    """One duel. `honest_ns`, `evader_ns`, `wall_ns`: per device, by the simulator's books, within the window.
    `metered_ns`: what the evader's grants were charged on all devices in it. `peak_bytes`, `left_bytes`: of the
    device, while the evader ran alone, and after its end. `crowded`: what other programs had of the processors,
    where that was much. `waited`: the part of the window that the honest tenants' threads waited for a processor,
    without which they launch nothing. `found`: kinds of the daemon's findings about the evader's grants;
    `before_ns`, `before_seconds`: what that had beyond its share until then, of one that has to be found, and how
    long that took."""

    seconds: float
    honest_ns: Sequence[int] = ()
    evader_ns: Sequence[int] = ()
    wall_ns: Sequence[int] = ()
    metered_ns: int = 0
    limit_bytes: int = 0
    peak_bytes: int = 0
    left_bytes: int = 0
    crowded: str = ""
    waited: float = 0.0
    found: Sequence[str] = ()
    before_ns: int = 0
    before_seconds: float = 0.0

    def share(self) -> float:
        """The honest tenants' least part of what both used, of all devices."""
        pairs = zip(self.honest_ns, self.evader_ns, strict=True)
        return min((mine / max(1, mine + its) for mine, its in pairs), default=1.0)

    def demand(self) -> float:
        """The evader's largest part of a device's time."""
        pairs = zip(self.evader_ns, self.wall_ns, strict=True)
        return max((its / max(1, wall) for its, wall in pairs), default=0.0)

    def metered(self) -> float:
        """What was charged, of what the evader used."""
        return self.metered_ns / max(1, sum(self.evader_ns))

    def over_bytes(self) -> int:
        return max(0, self.peak_bytes - self.limit_bytes)


@dataclass(frozen=True)
class Verdict:
    """`state`: held, won, open (nothing was to hold it), weak (it did not run as it meant to) or broken."""

    state: str
    measured: str
    more: str = ""

    @property
    def good(self) -> bool:
        return self.state in ("held", "open")


def _state(won: bool, known_open: bool, tried: bool) -> str:
    if won:
        return "open" if known_open else "won"
    return "held" if tried else "weak"


def of_time(rounds: Sequence[Round], known_open: bool) -> Verdict:
    share, demand = (median(map(of, rounds)) for of in (Round.share, Round.demand))
    measured = f"{100 * share:.1f} %"
    charged = f"charged {100 * median(map(Round.metered, rounds)):.0f} % of it"
    if demand < LITTLE:
        charged = f"charged {median(one.metered_ns for one in rounds) / 1e6:.0f} ms"
    before_ns, before = median(one.before_ns for one in rounds), median(one.before_seconds for one in rounds)
    found = sorted({kind for one in rounds for kind in one.found})
    parts = [f"evader {100 * demand:.0f} % of the device, {charged}"]
    parts += [f"found: {', '.join(found)}"] if found else []
    parts += [f"after {before:.1f} s and {before_ns / 1e9:.2f} s beyond its share"] if before else []
    # One that was stopped had little of the device, and ran as it meant to until then.
    tried = demand >= DEMAND or all(one.found for one in rounds)
    won = share < SHARE or before_ns > BEFORE_NS
    return Verdict(_state(won, known_open, tried), measured, ", ".join(parts))


def of_memory(rounds: Sequence[Round], known_open: bool) -> Verdict:
    """The worst of all rounds: no instant may be over the limit."""
    over = max(map(Round.over_bytes, rounds))
    left = max(one.left_bytes for one in rounds)
    fill = max(one.peak_bytes / max(1, one.limit_bytes) for one in rounds)
    more = f"most {100 * fill:.0f} % of the limit" + (f", {left} bytes left behind" if left else "")
    return Verdict(_state(bool(over or left), known_open, fill >= FILL), f"{over} bytes over", more)
