"""How much of a limit a program can allocate, in steps of 2 MiB, as measured by the simulator."""

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from memory.historyclient import Client
from memory.memorymodel import CONTEXT, MIB, OK, OUT_OF_MEMORY
from pages.handmade import Grant, Simulator
from run import built

LIMIT = 2 << 30  # of a hand-made grant
STEP = 2 * MIB


@pytest.mark.parametrize("processes", [1, 8])
@pytest.mark.parametrize("way", ["fill", "fillphysical"])
def test_usable_memory(
    grant: Grant,
    sim: Simulator,
    environment: Callable[[Grant | None], dict[str, str]],
    tmp_path: Path,
    processes: int,
    way: str,
) -> None:
    """Processes that allocate at the same time get all of it together: memory refused to one is held by another."""
    program, pipe = built.program("history_client"), subprocess.PIPE
    clients, contexts = [], []
    try:
        for _ in range(processes):
            process = subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True, env=environment(grant))
            clients.append(Client(process.pid, process))
            assert clients[-1]("init")[0] == OK
            result, context = clients[-1]("retain")
            assert result == OK
            contexts.append(context)
        with ThreadPoolExecutor(processes) as pool:
            answers = list(pool.map(lambda client, context: client(way, context, STEP), clients, contexts))
        assert {result for result, _ in answers} == {OUT_OF_MEMORY}
        usable, got = LIMIT - processes * CONTEXT, sum(filled for _, filled in answers)
        print(f"{100 * got / usable:.2f} % of {usable}")
        assert 0.99 * usable <= got <= usable
        device = sim.books()["devices"][0]
        assert device["bytes"] == got + processes * CONTEXT
        assert device["peak_bytes"] <= LIMIT
    finally:
        for client in clients:
            client.kill()
