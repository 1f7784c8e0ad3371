"""The clock by which receipts are shown, if the thread loses its processor between two readings."""

from collections.abc import Iterator

import pytest

from gpushare.daemon.accounts import receipts

BOOT_NS = 1_700_000_000_000_000_000
MS = 1_000_000


class Clock:
    """Stands in for the module `time`. After each reading the thread is away for the next of `away_ns`, else for 50
    ns."""

    def __init__(self, away_ns: Iterator[int]) -> None:
        self._now_ns, self._away_ns = 5 * MS, away_ns

    def monotonic_ns(self) -> int:
        now = self._now_ns
        self._now_ns += next(self._away_ns, 50)
        return now

    def time_ns(self) -> int:
        return BOOT_NS + self.monotonic_ns()


@pytest.mark.parametrize(
    "away_ns",
    [
        pytest.param([], id="never"),
        pytest.param([3 * MS], id="before the wall clock"),
        pytest.param([50, 3 * MS], id="after the wall clock"),
        pytest.param([3 * MS] * 20, id="twenty times"),
    ],
)
def test_a_reading_is_right_wherever_the_thread_was_away(away_ns, monkeypatch):
    monkeypatch.setattr(receipts, "time", Clock(iter(away_ns)))
    assert 0 <= receipts._wall_ahead_ns() - BOOT_NS < receipts._READ_WITHIN_NS
