"""An address or handle that the driver reuses while the call that ended the former object is still on its way: nothing
goes uncharged, and nothing stays charged."""

import pytest
from pages.handmade import Grant, Simulator
from run.interposed import Interpose

KINDS = ["memory", "memory in order", "block of a pool", "buffer", "array", "mipmap", "physical", "module", "library"]


def _play(interpose: Interpose, sim: Simulator, grant: Grant, module: str, call: str) -> None:
    """Runs `call` of `module`, which returns what was wrong by the driver's own record of the objects it has handed
    out."""
    worker = interpose(grant)
    worker.do(f"from memory import {module}")
    assert worker.get(f"{module}.{call}") == []
    assert worker.charged() == worker.truth()
    assert sim.books()["devices"][0]["peak_bytes"] <= grant.limits.device[0].memory_bytes


@pytest.mark.parametrize("kind", [*KINDS, "context"])
def test_ended_twice(interpose: Interpose, sim: Simulator, grant: Grant, kind: str) -> None:
    _play(interpose, sim, grant, "twice", f"run({kind!r}, ctx)")


@pytest.mark.parametrize("use", ["release", "map", "export", "bind"])
def test_guessed_handle(interpose: Interpose, sim: Simulator, grant: Grant, use: str) -> None:
    _play(interpose, sim, grant, "guesses", f"run({use!r}, ctx)")


@pytest.mark.parametrize("play", ["others_go_on", "closed_descriptor", "more_than_places", "ended_thread"])
def test_calls_that_meet(interpose: Interpose, sim: Simulator, grant: Grant, play: str) -> None:
    _play(interpose, sim, grant, "guesses", f"{play}(ctx)")
