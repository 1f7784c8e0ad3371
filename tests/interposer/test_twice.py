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


def _guess(sim: Simulator, grant: Grant, play: str) -> None:
    worker = Interposed(sim, grant)
    try:
        worker.do("import guesses")
        assert worker.get(f"guesses.{play}") == []
        assert worker.charged() == worker.truth()
        assert sim.books()["devices"][0]["peak_bytes"] <= grant.limits.device[0].memory_bytes
    finally:
        worker.kill()


@pytest.mark.parametrize("use", ["release", "map", "export", "bind"])
def test_guessed_handle(sim: Simulator, grant: Grant, use: str) -> None:
    _guess(sim, grant, f"run({use!r}, ctx)")


@pytest.mark.parametrize("play", ["others_go_on", "closed_descriptor"])
def test_calls_that_meet(sim: Simulator, grant: Grant, play: str) -> None:
    _guess(sim, grant, f"{play}(ctx)")
