"""How good the network path between a program and a remote device is, and when it has become worse than that. Pure:
times are arguments.

The bounds of `good` are those that remoting is known to need (10 Gbit/s and 50 us); at those of `poor` each
synchronising call costs a program a millisecond, and few programs are worth that.
"""

from dataclasses import dataclass, replace
from typing import Literal

LinkClass = Literal["good", "fair", "poor", "refused"]
Least = Literal["good", "fair", "poor", "any"]
"""The least class that a user takes."""

CLASSES: tuple[LinkClass, ...] = ("good", "fair", "poor", "refused")
"""The best first."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a link of a class has. `rtt_us`: at most; `bps`: bits per second, each way, at least."""

    rtt_us: float
    bps: float


BOUNDS: dict[LinkClass, Bound] = {"good": Bound(50, 10e9), "fair": Bound(200, 5e9), "poor": Bound(1000, 1e9)}
"""`refused` is all that is left."""


def classify(rtt_us: float, up_bps: float, down_bps: float) -> LinkClass:
    """The class of a link. `up_bps`: to the node of the device, bits per second; 0: nothing came through."""
    for name, bound in BOUNDS.items():
        if rtt_us <= bound.rtt_us and min(up_bps, down_bps) >= bound.bps:
            return name
    return "refused"


def rank(found: LinkClass) -> int:
    """0 for the best class."""
    return CLASSES.index(found)


def is_enough(found: LinkClass, least: Least) -> bool:
    """Whether a link is as good as its user wants."""
    return least == "any" or rank(found) <= rank(least)


SLOW_SECONDS = 10.0
_MARGIN = 1.5
"""The bounds say how good a link is, not to the microsecond: one that was checked at 49 us and then has 52 has not
become another."""
_BUSY_PART = 0.1
"""Of the rate of its class. The packets of a link that carries more than this wait behind those of the program itself,
and its round trips say nothing about the network. One that carries less and still is slow is held up by others."""


@dataclass(frozen=True, slots=True)
class Watch:
    """A link while it is used. `checked`: its class when it was attached; empty: it was not checked, and cannot leave
    it; nor can a refused one that its user took all the same. `above_s`: since when each round trip that could be
    judged was too long; None: the last one was not. `slow`: it has left its class."""

    checked: LinkClass | Literal[""] = ""
    above_s: float | None = None
    slow: bool = False

    def follow(self, now_s: float, rtt_us: float, rate_bps: float) -> "Watch":
        """The link after another reading, about once a second. `now_s`: of a clock that nobody sets. `rtt_us`: its
        round trip; 0: not known. `rate_bps`: what it carried since the last reading, both ways together.

        `slow` becomes true once it was above its class for SLOW_SECONDS, whatever it carried meanwhile, and false with
        the next round trip that is not."""
        bound = BOUNDS.get(self.checked) if self.checked else None
        if bound is None or rtt_us <= 0:
            return self
        if rtt_us <= bound.rtt_us * _MARGIN:  # even if it is busy
            return replace(self, above_s=None, slow=False)
        if rate_bps > bound.bps * _BUSY_PART:
            return self
        since = now_s if self.above_s is None else self.above_s
        return replace(self, above_s=since, slow=self.slow or now_s - since >= SLOW_SECONDS)
