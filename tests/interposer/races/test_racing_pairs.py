"""Two calls that race in the driver over one object, or one setting: nothing goes uncharged, nothing stays charged,
nothing hangs."""

import pytest
from pages.handmade import Grant, Simulator
from run.interposed import Interpose

MEMORY = ["physical", "bare", "open", "mapped", "pointers", "arrays"]
POOLS = ["two pools", "queued frees", "ended pools", "current pool", "graph memory"]
LARGE = [pytest.param(scene, marks=pytest.mark.slow) for scene in ("pools", "small pools", "settings")]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("scene", [*MEMORY, *POOLS, "contexts", "green contexts", "primary", "programs", *LARGE])
def test_pairs(sim: Simulator, grant: Grant, scene: str, interpose: Interpose) -> None:
    worker = interpose(grant)
    worker.do("from memory import pairs")
    wrong = worker.get(f"pairs.run({scene!r}, ctx)")
    assert not wrong, "\n".join(wrong)
    assert worker.charged() == worker.truth()
    assert sim.books()["devices"][0]["peak_bytes"] <= grant.limits.device[0].memory_bytes
