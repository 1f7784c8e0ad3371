"""Real programs that together need more than their device has, whose kernels change their memory, each at work and idle
at random moments: they have the device in turn, and every byte is what it has to be."""

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from run.built import SUPPORT
from run.simworker import Worker
from run.waiting import until

from gpushare.errors import CannotMoveError

MIB = 1 << 20
SECONDS = 4
DEVICE, EACH, BALLAST, PIECES = 136 * MIB, 64 * MIB, 8 * MIB, 12
OWNER: dict[str, str] = {"time": "30%"}
BORROWER = {"time": "0", "borrow_memory": "64MiB", "wait": "60"}
SEED = os.environ.get("GPUSHARE_LENDING_SEED")
"""A failure names it."""


class Program(Worker):
    """With a thread that works, or rests, and with bytes that nobody touches."""

    def __init__(self, daemon: Any, seed: int, options: dict[str, str]) -> None:
        self.client = daemon.client
        self._start = lambda *command: daemon.tenant(
            *map(str, command), memory=str(EACH), idle_memory="lend", gpu="0", **options
        )
        super().__init__(self)
        self.do("import os, random")
        self.id = Path(str(self.get("os.environ['GPUSHARE_GRANT_DIR']"))).parent.name
        self.do(f"""
            from memory import touching
            ok(d.cuInit(0)); ctx = context(0)
            kept = random.Random({seed}).randbytes({BALLAST - 512})
            ballast = ok(d.cuMemAlloc(len(kept))); put(ballast, kept)
            work = touching.Program({seed}, {PIECES})
            ok(d.cuCtxSynchronize())
        """)

    def spawn(self, *command: object, env: object = None) -> Any:
        return self._start(*command)

    def where(self) -> str:
        return str(self.client.grant(self.id)["residency"]["where"])

    def _asked(self) -> bool:
        """False: a call has just brought its memory back, which stays for a moment."""
        try:
            self.client.suspend(self.id)
        except CannotMoveError:
            return False
        return True

    def suspend(self) -> None:
        until(self._asked, "it may be suspended")
        until(lambda: self.where() == "suspended", "it is")


@pytest.fixture
def daemon(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('[memory]\nhost_pool = "512MiB"\nmove_seconds = 60\nidle_after_seconds = 0.2\n')
    made = make_daemon("--simulate", f"1x{DEVICE}", "--config", str(config))
    made.env |= {"PYTHONPATH": str(SUPPORT), "GPUSHARE_SIM_CONTEXT_MIB": "2", "GPUSHARE_SIM_COPY_GBPS": "2"}
    return made.patch("from gpushare.policy.grants import admission", "admission.WORKING_BYTES = 0").start()


def test_programs_that_need_more_than_there_is(daemon):
    seed = int(SEED) if SEED else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}: GPUSHARE_LENDING_SEED={seed} plays the same programs", file=sys.stderr)
    rng = random.Random(seed)
    programs = []
    for options in (OWNER, OWNER, BORROWER):
        for other in programs:
            other.suspend()
        programs.append(Program(daemon, rng.getrandbits(32), options))
    for program in programs:
        program.do("work.start()")
    been_away: set[str] = set()
    ends = time.monotonic() + SECONDS

    def look() -> int:
        """Bytes on the device, by the simulator's books."""
        been_away.update(program.id for program in programs if program.where() == "suspended")
        held = sum(row["bytes"] for row in daemon.books()["processes"])
        assert held <= DEVICE, seed
        return held

    def state() -> str:
        grants = [daemon.client.grant(program.id) for program in programs]
        return f"seed {seed}, away so far: {been_away}, now: {grants}, {daemon.log.read_text()[-4000:]}"

    while time.monotonic() < ends or len(been_away) < len(programs):
        assert time.monotonic() < ends + 80, state()
        rng.choice(programs).do(rng.choice(("work.pause()", "work.go_on()")))
        look()
        time.sleep(rng.choice((0.02, 0.1, 0.3, 0.5)))
    for program in programs:
        program.do("work.pause()")
    for program in programs:
        assert program.get("work.end()") == [], f"seed {seed}"
        assert program.get(f"get(ballast, {BALLAST - 512}) == kept"), f"seed {seed}"
        assert program.get("work.rounds") > 1
    assert [row["illegal_accesses"] for row in daemon.books()["processes"] if row["alive"]] == [0] * len(programs)
    until(lambda: look() > 0, "they are there")
    for program in programs:
        program.end()
