"""Memory leaves and comes back thousands of times, in a random order of what the daemon may write at any moment, under
kernels that change it: not one word is lost, and none is used where it is not."""

import random
import time
from collections import Counter

import pytest
from memory.moving import held
from pages.handmade import Simulator
from pages.lending import Lender
from run.interposed import Interpose, Interposed
from run.waiting import until

from gpushare._native import lib

PIECES = 2
FEW, MANY = 100, 1_500


class Mover:
    """Moves a program's memory at random until it has really been away `goal` times. `seen`: how often what
    happened."""

    def __init__(self, sim: Simulator, lender: Lender, worker: Interposed, seed: int) -> None:
        self.sim, self.lender, self.worker, self.rng = sim, lender, worker, random.Random(seed)
        self.seen: Counter[str] = Counter()

    def play(self, goal: int) -> None:
        """Every thousandth time it waits until memory is copied ahead, which takes a second of rest."""
        acts = (self.away, self.away_and_back, self.given_up, self.come_back, self.prepare)
        while self.seen["moved"] < goal:
            [act] = self.rng.choices(acts, (8, 16, 5, 5, 2))
            act()
            if self.seen["moved"] >= (self.seen["clean"] + 1) * 1000 - 950:
                self.clean()
            assert self.seen["tried"] < 3 * goal + 100, self.seen

    def away(self) -> None:
        if self.rng.random() < 0.9:
            self.lender.revoke()
        self.seen["tried"] += 1
        how = self.lender.carried_out(self.lender.want(lib.GS_HOSTED))
        slot = self.lender.slot()
        assert how in (lib.GS_MOVED, lib.GS_MOVE_WORKING), how
        if how == lib.GS_MOVED and slot.hosted_bytes:
            self.seen["moved"] += 1
            if self.rng.random() < 0.02:
                self.judge()

    def judge(self) -> None:
        """It is away: the device has no byte of it."""
        slot = self.lender.slot()
        until(
            lambda: held(self.sim, self.worker) == slot.memory_bytes - slot.hosted_bytes, "it may free some meanwhile"
        )
        self.seen["judged"] += 1

    def come_back(self) -> None:
        assert self.lender.resume(self.rng.choice((lib.GS_RESIDENT, lib.GS_PREPARED))) == lib.GS_MOVED
        assert self.lender.slot().hosted_bytes == 0

    def away_and_back(self) -> None:
        self.away()
        time.sleep(self.rng.uniform(0, 0.001))
        self.come_back()

    def given_up(self) -> None:
        """The word is set back at any moment of the move, and at any moment of the way back."""
        if self.rng.random() < 0.5:
            self.lender.revoke()
        for residency in self.rng.choices((lib.GS_HOSTED, lib.GS_RESIDENT, lib.GS_PREPARED), k=self.rng.randrange(4)):
            self.lender.want(residency)
            time.sleep(self.rng.uniform(0, 0.002))
        self.seen["given up"] += 1
        self.come_back()

    def prepare(self) -> None:
        self.lender.resume(lib.GS_PREPARED)
        time.sleep(self.rng.uniform(0, 0.002))

    def clean(self) -> None:
        """What was copied ahead is given up without a copy, or is void because a kernel runs."""
        assert self.lender.resume(lib.GS_PREPARED) == lib.GS_MOVED
        self.worker.do("program.rest()")
        slot = self.lender.slot()
        until(lambda: slot.clean_bytes == slot.movable_bytes, "it is copied ahead")
        copied = slot.copied_bytes
        if self.rng.random() < 0.5:
            self.away()
            assert slot.copied_bytes == copied
        self.seen["clean"] += 1
        self.worker.do("program.go_on()")
        self.away_and_back()


@pytest.mark.parametrize("goal", [FEW, pytest.param(MANY, marks=[pytest.mark.slow, pytest.mark.timeout(400)])])
def test_no_word_is_lost(sim: Simulator, lender: Lender, interpose: Interpose, goal: int) -> None:
    seed, lender.keeps = random.randrange(1 << 32), True
    worker = interpose(lender)
    worker.do(f"from memory import touching; program = touching.Program({seed}, {PIECES}); program.start()")
    mover = Mover(sim, lender, worker, seed)
    began = time.monotonic()
    mover.play(goal)
    mover.come_back()
    took = time.monotonic() - began
    assert worker.get("program.end()") == [], f"seed {seed}"
    rounds = worker.get("program.rounds")
    print(f"seed {seed}: {dict(mover.seen)} in {took:.1f} s, {rounds} rounds of the program")
    assert rounds > goal
    assert lender.resume() == lib.GS_MOVED
    assert lender.slot().hosted_bytes == 0
    until(lambda: lender.segments == [], "the host pool has everything back")
    assert worker.charged() > 0
    [row] = [row for row in sim.books()["devices"][0]["processes"] if row["pid"] == worker.pid]
    assert row["illegal_accesses"] == 0
