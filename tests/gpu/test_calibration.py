"""How bench/gpu converts a time to an amount of work, with a device of known timing."""

import ctypes
import random
from collections.abc import Callable

import pytest
from run import built

TimeOfLaunches = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64)


class Calibration(ctypes.Structure):
    _fields_ = (("rate", ctypes.c_double), ("launch_ns", ctypes.c_double))


@pytest.fixture(scope="module")
def library():
    found = ctypes.CDLL(str(built.program("calibrate.so")))
    found.calibrate.restype = ctypes.c_bool
    found.calibrated_amount.restype = ctypes.c_uint64
    return found


def calibrated(library: ctypes.CDLL, device: Callable[[int, int], float]) -> Calibration | None:
    out = Calibration()
    time_of = TimeOfLaunches(lambda _, launches, amount: device(launches, amount))
    return out if library.calibrate(time_of, None, ctypes.byref(out)) else None


@pytest.mark.parametrize("rate", [0.002, 0.06, 1.0, 40.0])
def test_events_and_launches_are_told_from_the_work(library, rate):
    """5 us for the events, 1.5 us per launch, and 8 ms once, when the driver loads the kernel."""
    random.seed(1)
    loads = [8e6]

    def device(launches: int, amount: int) -> float:
        first = loads.pop() if loads else 0
        return first + random.gauss(5000, 500) + launches * (1500 + amount / rate * random.gauss(1, 0.001))

    found = calibrated(library, device)
    assert found is not None
    assert found.rate == pytest.approx(rate, rel=0.01)
    assert found.launch_ns == pytest.approx(1500, abs=100)
    # A launch with this amount takes the requested time, to the precision of whole iterations.
    for asked in (5000, 20_000, 20_000_000):
        amount = library.calibrated_amount(ctypes.byref(found), ctypes.c_uint64(asked))
        assert 1500 + amount / rate == pytest.approx(asked, rel=0.02, abs=0.5 / rate)
    assert library.calibrated_amount(ctypes.byref(found), ctypes.c_uint64(1000)) == 1


def test_an_interruption_does_not_count(library):
    """In every third timing the device was interrupted for 50 ms: the median of several differences is unaffected."""
    calls = 0

    def device(launches: int, amount: int) -> float:
        nonlocal calls
        calls += 1
        away = 5e7 if calls % 3 == 0 and calls > 100 else 0
        return away + 5000 + launches * (1000 + amount / 0.06)

    found = calibrated(library, device)
    assert found is not None
    assert found.rate == pytest.approx(0.06, rel=0.01)
    assert found.launch_ns == pytest.approx(1000, abs=50)


def test_times_that_do_not_grow_are_no_calibration(library):
    assert calibrated(library, lambda launches, amount: 5000.0) is None
    assert calibrated(library, lambda launches, amount: 3e6) is None
