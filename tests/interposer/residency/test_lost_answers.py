"""A daemon that ends before it has answered may count segments that no process has: they are given back later."""

from memory.moving import MIB, filled, same
from pages.lending import Lender
from run.interposed import Interpose
from run.waiting import until

from gpushare._native import lib


def test_a_segment_that_never_arrived(lender: Lender, interpose: Interpose) -> None:
    worker = interpose(lender)
    filled(worker, "a", 4 * MIB, 1)
    lender.pool, lender.lost_segments = 4 * MIB, 1
    assert lender.suspend() == lib.GS_MOVE_NO_HOST
    assert lender.segments == [4 * MIB]
    assert lender.resume() == lib.GS_MOVED
    until(lambda: (lender.segments, lender.pool) == ([], 4 * MIB), "the host memory comes back")
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")


def test_a_return_that_was_not_heard(lender: Lender, interpose: Interpose) -> None:
    worker = interpose(lender)
    filled(worker, "a", 4 * MIB, 1)
    many = lender.lost_returns = 1 << 30
    lender.pool = 4 * MIB
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    until(lambda: lender.lost_returns < many, "it gives the host memory back")
    assert lender.pool == 0
    assert lender.suspend() == lib.GS_MOVE_NO_HOST, "all of it counts as used"
    assert lender.resume() == lib.GS_MOVED
    lender.lost_returns = 0
    until(lambda: lender.pool == 4 * MIB, "it says so again, without another move")
    assert lender.suspend() == lib.GS_MOVED
    assert lender.resume() == lib.GS_MOVED
    assert same(worker, "a")
