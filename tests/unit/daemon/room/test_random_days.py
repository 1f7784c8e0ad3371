"""Random days of a node that lends idle memory, in virtual time (tests/support/days): the daemon's own parts, programs
that lend and borrow, wake and are killed, hostile ones, people, and a daemon that is killed at any point.

On each of them: no byte is lost; no device and no host pool holds more than it has; owners have their memory back
within what the link needs; nobody is ended who does not allow it; nothing is moved that nobody wants moved; who waits
is served, and at the end nothing is left."""

import os
import secrets
from pathlib import Path

import pytest
from days.day import Day

DAYS = int(os.environ.get("GPUSHARE_DAYS", "100"))
"""Of the slow target."""
SEED = os.environ.get("GPUSHARE_DAYS_SEED")
"""Of one day that is to be played again."""


def play(count: int, directory: Path) -> None:
    first = secrets.randbits(40)
    for seed in [int(SEED)] if SEED is not None else range(first, first + count):
        Day(seed, directory).play()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("part", range(4))
def test_random_days(part, tmp_path):
    play(20, tmp_path)


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(4))
def test_many_random_days(part, tmp_path):
    play(DAYS // 4, tmp_path)
