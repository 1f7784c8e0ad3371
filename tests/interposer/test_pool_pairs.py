"""Two calls that meet in the driver over one pool, block or graph memory: nothing goes uncharged, nothing stays
charged, nothing hangs."""

import pytest
from handmade import Grant, Simulator
from interposed import Interposed

QUICK, LARGE = ["queued frees", "ended pools", "graph memory"], ["pools", "small pools"]


@pytest.mark.parametrize("scene", [*QUICK, *(pytest.param(scene, marks=pytest.mark.slow) for scene in LARGE)])
def test_pairs(sim: Simulator, grant: Grant, scene: str) -> None:
    worker = Interposed(sim, grant)
    try:
        worker.do("import pairs, poolpairs")
        wrong = worker.get(f"pairs.run({scene!r}, ctx)")
        assert not wrong, "\n".join(wrong)
        assert worker.charged() == worker.truth()
        assert sim.books()["devices"][0]["peak_bytes"] <= grant.limits.device[0].memory_bytes
    finally:
        worker.kill()
