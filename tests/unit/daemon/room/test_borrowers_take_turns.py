"""Borrowers that never pause and do not fit together, in virtual time (tests/support/days): each has its turns, and
nearly all of the time one of them works, however large they are and however fast the link."""

import random
import secrets
from collections import Counter
from pathlib import Path

import pytest
from days.asker import Asker
from days.clock import S
from days.day import Day
from days.program import Rhythm

from gpushare.api.types import Class, GrantRequest
from gpushare.policy.residency.room import SWAP_SHARE, TRAINING_SHARE

GIB = 1 << 30
LOOKS = 200
"""In the time of a turn."""
ASSUMED = 20e9
"""Bytes a second, before any move was seen (gpushare/policy/residency/room.py)."""
MORE = 1.2
"""What work that is going on when its turn is over adds, and looks that are not exact."""


class Turns(Day):
    """A day on which all memory is guaranteed to a tenant that has no grant."""

    def _rhythm(self) -> Rhythm:
        return Rhythm(1, 10**18, kernel_ns=S // 100)

    def _sizes(self, most: int) -> list[int]:
        return [most // 4 >> 21 << 21] * 4

    def borrow(self, parts: list[float], class_: Class) -> None:
        self.hostile = self.kills = False
        self.node.start()
        for number, part in enumerate(parts):
            size = int(part * self.devices[0].capacity) // GIB * GIB
            request = GrantRequest(
                memory=size,
                time=0,
                tenant="c",
                class_=class_,
                idle_memory="lend",
                borrow_memory=True,
                max_rung="evict",
            )
            self.clock.later(number * S, Asker(self, request, f"asker-{number}", 10**18, insists=True).ask)

    def turns(self, parts: list[float], class_: Class) -> tuple[float, list[float]]:
        """The part of the time in which none works, and in which each does."""
        turn_ns = int(2 * max(parts) * self.devices[0].capacity * S / self.rate / self.share(class_))
        self.borrow(parts, class_)
        # Nothing is known of the link at first.
        first_ns = turn_ns * max(1, self.rate / ASSUMED)
        self.clock.run_until(self.clock.now_ns + int(3 * len(parts) * first_ns))
        programs = [own[0] for own in self.programs.values()]
        assert len(programs) == len(parts), "all have begun"
        lost, worked, looks = 0, Counter[str](), 4 * len(parts) * LOOKS
        for _ in range(looks):
            self.clock.run_until(self.clock.now_ns + turn_ns // LOOKS)
            working = [program.grant for program in programs if program.is_working]
            worked.update(working)
            lost += not working
        return lost / looks, [worked[program.grant] / looks for program in programs]

    @staticmethod
    def share(class_: Class) -> float:
        return float(TRAINING_SHARE if class_ == "training" else SWAP_SHARE)


def a_day(directory: Path, least_rate: float) -> Turns:
    """One whose host pool has room for all, with a link of at least so many bytes a second."""
    while True:
        day = Turns(secrets.randbits(40), directory)
        roomy = len(day.devices) == 1 and day.node.pool_bytes > 3 * day.devices[0].capacity
        if roomy and day.guarantees == (1.0, 0.0, 0.0) and day.rate >= least_rate:
            return day


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("number", "class_", "least_rate"),
    [
        # A slow link makes long turns, in which others ask again thousands of times: minutes at 2 GB/s.
        (2, "interactive", 40e9),
        pytest.param(3, "interactive", 10e9, marks=pytest.mark.slow),
        pytest.param(3, "training", 10e9, marks=pytest.mark.slow),
    ],
)
def test_each_has_its_turns_and_little_is_lost(number, class_, least_rate, tmp_path):
    day = a_day(tmp_path, least_rate)
    rng = random.Random(day.seed)
    parts = [rng.uniform(0.55, 0.95) for _ in range(number)]
    lost, worked = day.lives(lambda: day.turns(parts, class_))
    told = f"seed {day.seed}: {parts} at {day.rate / 1e9:.1f} GB/s: {lost:.3f} is lost, they work {worked}"
    assert lost <= MORE * Turns.share(class_), told
    assert min(worked) >= 0.7 / number, told
