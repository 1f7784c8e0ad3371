"""How soon, and for how long, a client repeats a request that will be accepted later."""

import pytest

from gpushare.client import verbs
from gpushare.client.verbs import Patience
from gpushare.errors import LaterError, MakingRoomError, OnLoanError


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(verbs, "time", made)
    return made


@pytest.mark.parametrize(
    ("error", "pause"),
    [
        (OnLoanError("x"), 0.1),
        (MakingRoomError("x"), 0.1),
        (MakingRoomError("x", 0.7), 0.7),
        (MakingRoomError("x", 0.0), 0.05),
        (MakingRoomError("x", 60.0), 2.0),
    ],
)
def test_the_pause_is_what_the_daemon_estimates_within_bounds(clock, error, pause):
    assert Patience(30.0).pause(error) == pause


def test_the_last_request_is_made_when_the_time_has_passed(clock):
    patience, later = Patience(3.0), MakingRoomError("x", 60.0)
    assert patience.pause(later) == 2.0
    clock.now += 2.0
    assert patience.pause(later) == 1.0
    clock.now += 1.0
    with pytest.raises(LaterError) as raised:
        patience.pause(later)
    assert raised.value is later


def test_who_does_not_wait_is_refused_at_once(clock):
    with pytest.raises(OnLoanError):
        Patience(0.0).pause(OnLoanError("x"))
