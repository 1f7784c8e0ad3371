"""Bad input gets the driver's own result: the same calls with and without the interposer, compared line by line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from pages.lending import Lender
from run import built
from run.interposed import Spawner
from values import hooktable

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "native"
KINDS = {"alloc", "free", "map", "pool", "context", "module"}


@pytest.fixture(scope="module")
def program() -> Path:
    return built.program("misuse")


@pytest.fixture
def run(program: Path, sim: Simulator) -> Callable[[Grant | None], tuple[list[str], int]]:
    def run(grant: Grant | None) -> tuple[list[str], int]:
        process = Spawner(sim, grant).spawn(program)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out[-500:]
        return out.splitlines(), process.pid

    return run


def test_every_answer_is_the_drivers(
    run: Callable[[Grant | None], tuple[list[str], int]], grant: Grant, sim: Simulator
) -> None:
    alone, _ = run(None)
    with_us, pid = run(grant)
    assert len(alone) > 1000
    differing = [f"{b}, alone {a.split()[-1]}" for a, b in zip(alone, with_us, strict=True) if a != b]
    assert not differing, "\n".join(differing)
    rest = [row for row in sim.books()["devices"][0]["processes"] if row["pid"] == pid]
    assert [row["peak_bytes"] <= 2 << 30 for row in rest] == [True]
    assert grant.charged(pid=pid) == 0, "the last calls reset the primary context"


def test_a_grant_that_lends_its_memory_answers_alike(
    run: Callable[[Grant | None], tuple[list[str], int]], sim: Simulator, tmp_path: Path
) -> None:
    lender = Lender(tmp_path / "lender", sim)
    lender.lease()
    try:
        alone, with_us = run(None)[0], run(lender)[0]
        assert [pair for pair in zip(alone, with_us, strict=True) if pair[0] != pair[1]] == []
    finally:
        lender.close()


def test_every_row_is_misused() -> None:
    text = (HERE / "misuse.c").read_text()
    symbols = [row.symbol for row in hooktable.ROWS if row.kind in KINDS]
    assert len(symbols) > 50
    assert [symbol for symbol in symbols if not re.search(rf"X\({symbol}\(", text)] == []
