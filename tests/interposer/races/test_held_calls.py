"""The simulated driver can hold a call that the interposer makes, before or after it takes effect."""

import pytest
from pages.handmade import Grant
from run.interposed import Interpose

GRAIN = 2 << 20


@pytest.mark.parametrize(("when", "charged"), [("BEFORE", GRAIN), ("AFTER", 0)])
def test_the_driver_is_held_below_the_hook(grant: Grant, when: str, charged: int, interpose: Interpose) -> None:
    worker = interpose(grant)
    before = worker.charged()
    worker.do(f"""
        from memory import holds
        handle = ok(d.cuMemCreate(2 << 20, on_device(), 0))
        one = holds.Operation(lambda: ok(d.cuMemRelease(handle)))
        hold = holds.Hold("cuMemRelease", holds.{when}, one.native_id)
        one.go()
    """)
    assert worker.get("hold.stopped(20) == one.native_id")
    assert worker.truth() - before == charged
    worker.do("hold.release(); one.result('cuMemRelease')")
    assert worker.charged() == before
