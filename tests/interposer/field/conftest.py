"""Failures seen in the field: with a real daemon if the failure concerns the whole system, with a hand-made grant if it
concerns one operation."""

import os
from collections.abc import Callable, Iterator

import pytest
from pages.handmade import Grant, Simulator
from run import built
from run.driverclient import Client

from gpushare import paths


@pytest.fixture
def start(sim: Simulator) -> Iterator[Callable[..., Client]]:
    """A process that calls the driver on command; `grant` None: on the same device without gpushare."""
    made: list[Client] = []

    def run(grant: Grant | None) -> Client:
        env = {**os.environ, "LD_LIBRARY_PATH": str(paths.SIM_LIB_DIR)}
        if grant is None:
            env["GPUSHARE_SIM_DIR"] = str(sim.directory)
        else:
            env |= {"LD_PRELOAD": str(paths.INTERPOSER), "GPUSHARE_GRANT_DIR": str(grant.directory)}
        made.append(Client(built.program("client"), "proc", env))
        return made[-1]

    yield run
    for client in made:
        client.kill()
