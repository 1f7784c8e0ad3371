"""An address or handle that is given out again while the call that ended the former object is on its way: nothing goes
uncharged, and nothing stays charged."""

import pytest
from handmade import Grant, Simulator
from interposed import Interposed

KINDS = ["memory", "memory in order", "block of a pool", "buffer", "array", "mipmap", "physical", "module", "library"]


@pytest.mark.parametrize("kind", [*KINDS, "context"])
def test_ended_twice(sim: Simulator, grant: Grant, kind: str) -> None:
    worker = Interposed(sim, grant)
    try:
        worker.do("import twice")
        assert worker.get(f"twice.run({kind!r}, ctx)") == []
        assert worker.charged() == worker.truth()
        assert sim.books()["devices"][0]["peak_bytes"] <= grant.limits.device[0].memory_bytes
    finally:
        worker.kill()


@pytest.mark.parametrize("use", ["exported", "mapped", "imported"])
def test_handle_given_out_again_during_a_guess(sim: Simulator, grant: Grant, use: str) -> None:
    worker = Interposed(sim, grant)
    try:
        worker.do("import guesses")
        assert worker.get(f"guesses.run({use!r}, ctx)") == []
        assert worker.charged() == worker.truth()
        assert sim.books()["devices"][0]["peak_bytes"] <= grant.limits.device[0].memory_bytes
    finally:
        worker.kill()
