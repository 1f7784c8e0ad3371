"""What decides whether a test that measures time has a result (tests/support/timing/quiet.py)."""

import os
import time

import pytest
from timing import quiet
from timing.quiet import Process, Usage

STAT = """\
cpu  20552 3004 8529 254934 518 0 118 30 0 0
cpu0 7908 722 3041 132086 62 0 26 12 0 0
cpu1 12643 2282 5487 122848 455 0 92 18 0 0
intr 1 2 3
"""


@pytest.mark.parametrize(
    ("others", "there", "counts"),
    [
        (0.0, 2.0, True),
        (-0.01, 2.0, True),  # readings are that exact
        (quiet.ALLOWED * 2, 2.0, True),
        (quiet.ALLOWED * 2 + quiet.BLUR_S + 0.01, 2.0, False),
        (2.0, 2.0, False),
        (0.9 * quiet.BLUR_S, 0.01, True),  # too short to say anything of it
    ],
)
def test_only_what_others_had_decides(others: float, there: float, counts: bool) -> None:
    assert (quiet.why_not(others, there) is None) == counts


def test_the_reason_has_the_share() -> None:
    assert quiet.why_not(0.68, 2.0) == "other programs had 34 % of the processors"


def test_others_had_what_was_neither_idle_nor_ours() -> None:
    before, after = Usage(100.0, 50.0, 7.0), Usage(104.0, 51.0, 9.0)
    assert after.others(before) == (1.0, 4.0)


def test_time_that_waits_for_a_disk_is_idle() -> None:
    assert quiet.idle_s(STAT) == (2, pytest.approx((254934 + 518) * quiet.TICK_S))


def test_the_family_has_descendants_and_who_bears_the_mark() -> None:
    processes = {
        1: Process(0, 0.0, False),
        10: Process(1, 0.0, False),
        11: Process(10, 0.0, False),
        12: Process(11, 0.0, False),
        20: Process(1, 0.0, True),  # its parent has ended
        21: Process(20, 0.0, False),
        30: Process(1, 0.0, False),
        31: Process(30, 0.0, False),
    }
    assert quiet.family(processes, 10) == {10, 11, 12, 20, 21}


def test_a_process_that_is_found() -> None:
    found = quiet.running(f"{quiet.MARK}={os.getpid()}".encode())
    assert found[os.getpid()].parent == os.getppid()
    before = time.process_time()
    assert before <= quiet.used_s(os.getpid()) <= time.process_time()
    assert quiet.used_s(1 << 22) == 0.0, "beyond the last possible pid"
