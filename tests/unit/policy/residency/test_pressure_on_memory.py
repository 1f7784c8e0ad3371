"""Where borrowers stand in each other's way for too long, turns become longer, then nobody new borrows, then one is
parked; and all of it is taken back in calm times."""

from fractions import Fraction

from gpushare.policy.residency.pressure import CALM_WINDOWS, WINDOW_NS, Level, Measure, Pressure

SECOND = 10**9


def window(pressure: Pressure, share: float) -> bool:
    """A minute in which so much of the time was lost, second by second."""
    changed = False
    for second in range(60):
        changed = pressure.passed(WINDOW_NS // 60, stalled=second < share * 60) or changed
    return changed


def test_one_bad_minute_is_none() -> None:
    pressure = Pressure(Fraction(1, 20))
    assert not window(pressure, 0.5)
    assert not window(pressure, 0.05), "as much as may be"
    assert not window(pressure, 0.5)
    assert pressure.level == Level()
    assert pressure.last == Fraction(1, 2)


def test_what_is_done_grows_step_by_step_and_goes_again() -> None:
    pressure = Pressure(Fraction(1, 20))
    seen = [pressure.level]
    while pressure.level.measure < Measure.PARK:
        window(pressure, 0.2)
        if pressure.level != seen[-1]:
            seen.append(pressure.level)
    turns = [Level(Measure.LONGER_TURNS, factor) for factor in (2, 4, 8)]
    assert seen == [Level(), *turns, Level(Measure.NO_NEW_LOANS, 8), Level(Measure.PARK, 8)]
    for _ in range(10):
        window(pressure, 1.0)
    assert pressure.level == seen[-1], "there is nothing harsher"
    window(pressure, 0)
    back = [pressure.level]
    for number in range(CALM_WINDOWS * len(seen)):
        assert window(pressure, 0) == (pressure.level != back[-1]), number
        if pressure.level != back[-1]:
            back.append(pressure.level)
    assert back == seen[::-1]


def test_a_bad_minute_ends_the_calm() -> None:
    pressure = Pressure(Fraction(1, 20))
    for _ in range(2):
        window(pressure, 0.2)
    for _ in range(3):
        for _ in range(CALM_WINDOWS - 1):
            window(pressure, 0)
        window(pressure, 0.2)
    assert pressure.level == Level(Measure.LONGER_TURNS, 2)
