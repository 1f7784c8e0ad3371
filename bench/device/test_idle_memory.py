"""What idle memory that is lent costs its owners and whoever borrows it, with real programs under a real daemon.

A model of 1/128: device, memory of programs and contexts, and the link's rate are as many times smaller than an H200's
link and the sizes that a row names, so that a copy takes as long as there; the number of allocations, and what the
driver's calls for each take, are as there. What this machine takes by itself (host memory for a move, the daemon, the
wake of a process) is not made smaller or slower. Sizes below are those that are modelled.
"""

import json
import random
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from measures import quantile
from moving import GIB, MIB, REAL_GBPS, calls, noting
from run.running import Daemon, daemon_apart, start
from run.waiting import until

from gpushare import paths
from gpushare.errors import CannotMoveError

SCALE = 128
CONTEXT_GIB = 0.25
PROGRAM = Path(__file__).with_name("variables.py")
ADDED = 512
"""Bytes that an allocation of memory that can move takes more: with them, a whole number of pages would be one more."""
KERNEL_NS, LONG_NS = 2_000_000, 5_000_000
"""The device always has the longer ones to compute, whatever else this machine does."""

NOTEBOOKS, NOTEBOOK_GIB, TRAINER_GIB, DEVICE_GIB = 10, 8, 40, 80
PERIOD_S, ROUNDS, DUTY = 20.0, 4, 0.02
IDLE_AFTER = "1s"
WAKE_P50_MS, WAKE_P99_MS, TRAINER_PART = 250, 500, 0.95
SMALL_GIB, SET_PART, FITS_PART = 8, 0.75, 0.4
MAKESPAN = {"interactive": 1.05, "training": 1.01}
WORK_S = {"interactive": 13.0, "training": 34.0}
"""Two turns of each at least."""
WAKES, WAKE_PART, WAKE_MORE_MS = 30, 1.15, 50


def scaled(gib: float) -> int:
    """Bytes here for so much there."""
    return round(gib * GIB / SCALE)


def sizes(gib: float, count: int) -> list[int]:
    """Of so many allocations of whole pages that leave room for a context, and for what an allocation takes besides."""
    each = (scaled(gib - CONTEXT_GIB) - 2 * MIB) // (2 * MIB * count) * 2 * MIB
    return [each] * count


class Modelled(Daemon):
    """Grants may be as small as the model makes them."""

    patches = (*Daemon.patches, "from gpushare.policy.grants import admission", "admission.WORKING_BYTES = 0")


class Program:
    """A process of variables.py in a grant of its own that lends its memory."""

    def __init__(self, node: Daemon, gib: float, share: str, held: list[int], **options: str) -> None:
        self.node, self.held, self.id = node, sum(held), ""
        self._others = {grant["id"] for grant in node.client.grants()}
        texts, seed = (paths.SPIN_PTX, paths.WORDS_PTX), len(self._others)
        words = [sys.executable, str(PROGRAM), *map(str, texts), str(seed), *(str(one - ADDED) for one in held)]
        asked = {"idle_memory": "lend", "gpu": "0", "wait": "60", **options}
        self.process = start(node.run(str(scaled(gib)), share, *words, **asked), node.env)
        self.pid = self.process.pid

    def has_memory(self) -> "Program":
        assert self.read()["bytes"]
        [self.id] = {grant["id"] for grant in self.node.client.grants()} - self._others
        return self

    def send(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def read(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, f"it ended: {self.process.stderr.read()}"
        return dict(json.loads(line))

    def ask(self, line: str) -> dict[str, Any]:
        self.send(line)
        return self.read()

    @property
    def where(self) -> str:
        return str(self.node.client.grant(self.id)["residency"]["where"])

    def comes_to(self, where: str) -> None:
        until(lambda: self.where == where, f"{self.id} is {where}", 60)

    def _asked(self) -> bool:
        """False: a call has just brought its memory back, which stays for a moment."""
        try:
            self.node.client.suspend(self.id)
        except CannotMoveError:
            return False
        return True

    def suspend(self) -> None:
        until(self._asked, f"{self.id} may be suspended")
        self.comes_to("suspended")

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


class Play:
    """A node and its programs."""

    def __init__(self, stack: ExitStack, gib: float) -> None:
        self._stack = stack
        env = {
            "GPUSHARE_SIM_COPY_GBPS": f"{REAL_GBPS / SCALE:.4f}",
            "GPUSHARE_SIM_VMM_NS": calls(1),
            "GPUSHARE_SIM_CONTEXT_MIB": str(scaled(CONTEXT_GIB) // MIB),
        }
        config = f'[memory]\nhost_pool = "{scaled(2 * gib)}"\nmove_seconds = 60\n'
        device = f"1x{scaled(gib)}"
        self.node = stack.enter_context(daemon_apart(Modelled, device, env, config))

    def program(self, gib: float, share: str, held: list[int], **options: str) -> Program:
        made = Program(self.node, gib, share, held, **options)
        self._stack.callback(made.end)
        return made.has_memory()

    def borrower(self, gib: float, held: list[int], **options: str) -> Program:
        """Nothing of its time or its memory is guaranteed where a tenant without programs has a guarantee of all."""
        return self.program(gib, "0", held, borrow_memory=str(scaled(gib)), **options)

    def used(self, pid: int) -> float:
        """Seconds of device time, by the simulator's books."""
        return self.node.busy(pid)[0] / 1e9

    def copied(self) -> int:
        """Bytes over the link so far."""
        return sum(row["copied_in_bytes"] + row["copied_out_bytes"] for row in self.node.books()["processes"])


@pytest.fixture
def play() -> Iterator[Callable[[float], Play]]:
    with ExitStack() as stack:
        yield lambda gib: Play(stack, gib)


@pytest.fixture
def report(report: Callable[..., None]) -> Callable[..., None]:
    return noting(report)


# Ten notebooks and a trainer.


def cells(notebooks: list[Program]) -> list[tuple[str, float]]:
    """One cell of each notebook at a random moment of each period: where its memory was, and ms that its first kernel
    took beyond its length."""
    chance, begin = random.Random(NOTEBOOKS), time.monotonic()
    due = sorted(
        (begin + (number + chance.random() * 0.9) * PERIOD_S, one)
        for number in range(ROUNDS)
        for one in range(NOTEBOOKS)
    )
    running: dict[int, tuple[Program, str]] = {}
    found = []
    while due or running:
        pause = max(0.0, due[0][0] - time.monotonic()) if due else None
        ready = select.select([one.process.stdout for one, _ in running.values()], [], [], pause)[0]
        for number, (one, where) in list(running.items()):
            if one.process.stdout in ready:
                found.append((where, one.read()["wait_ns"] / 1e6))
                del running[number]
        if due and due[0][0] <= time.monotonic():
            number = due.pop(0)[1]
            assert number not in running, "a cell takes longer than its period"
            running[number] = notebooks[number], notebooks[number].where
            notebooks[number].send(f"cell {int(DUTY * PERIOD_S * 1e9)}")
    return found


def test_notebooks_beside_a_trainer(report, play: Callable[[float], Play]) -> None:
    node = play(DEVICE_GIB)
    interactive = {"class": "interactive", "idle_after": IDLE_AFTER}
    held = [*sizes(NOTEBOOK_GIB, 6)[:5], scaled(1)]
    notebooks = [node.program(NOTEBOOK_GIB, "10%", held, **interactive) for _ in range(NOTEBOOKS)]
    trainer = node.borrower(TRAINER_GIB, sizes(TRAINER_GIB, 19))
    trainer.ask(f"train {KERNEL_NS}")
    time.sleep(1)

    def measured(during: Callable[[], Any]) -> tuple[float, Any]:
        """The part of the time left by the notebooks in which the trainer computed."""
        before, began = [node.used(one.pid) for one in (*notebooks, trainer)], time.monotonic()
        result = during()
        took = time.monotonic() - began
        used = [node.used(one.pid) - was for one, was in zip((*notebooks, trainer), before, strict=True)]
        return used[-1] / (took - sum(used[:-1])), result

    alone, _ = measured(lambda: time.sleep(4))
    beside, found = measured(lambda: cells(notebooks))
    trainer.ask("stop")
    wrong = sum(one.ask("check")["wrong"] for one in (*notebooks, trainer))
    waits = [wait for where, wait in found if where != "resident"]
    copy = sum(held) / (REAL_GBPS / SCALE) / 1e6
    name = f"{NOTEBOOKS} notebooks of {NOTEBOOK_GIB} GiB on {DEVICE_GIB} GiB, a trainer borrows {TRAINER_GIB}"
    p50, p99 = (quantile(waits, part) for part in (0.5, 0.99))
    away = f"{len(waits)} of {len(found)} cells whose memory was away; the copy in alone: {copy:.0f} ms"
    report(f"{name}: p50 of wakes", f"{p50:.0f} ms", away, f"<= {WAKE_P50_MS} ms", p50 <= WAKE_P50_MS)
    report(
        f"{name}: p99 of wakes",
        f"{p99:.0f} ms (longest {max(waits):.0f} ms)",
        away,
        f"<= {WAKE_P99_MS} ms",
        p99 <= WAKE_P99_MS,
    )
    report(
        f"{name}: the trainer",
        f"{100 * beside:.1f} % of the time that the notebooks leave",
        f"alone: {100 * alone:.1f} %",
        f">= {100 * TRAINER_PART:.0f} % of alone",
        beside >= TRAINER_PART * alone,
    )
    report(f"{name}: words that are not what they have to be", f"{wrong} blocks", "none", "<= 0", wrong == 0)


# Sets that do not fit together, and sets that do.


@pytest.mark.parametrize("kind", MAKESPAN)
def test_two_sets_that_never_pause(report, play: Callable[[float], Play], kind: str) -> None:
    """Until both have done their work; the first one's memory is checked before it ends, which is not counted."""
    node = play(SMALL_GIB)
    node.node.client.set_tenant("others", {"memory": scaled(SMALL_GIB)})
    each = SET_PART * SMALL_GIB
    one = node.borrower(each, sizes(each, 6), **{"class": kind})
    one.suspend()  # the link is measured
    one.ask(f"work 1 {LONG_NS}")
    both = [one, node.borrower(each, sizes(each, 6), **{"class": kind})]
    used, copied = sum(node.used(program.pid) for program in both), node.copied()
    for program in both:
        program.send(f"work {WORK_S[kind]} {LONG_NS}")
    first = select.select([program.process.stdout for program in both], [], [])[0]
    both.sort(key=lambda program: program.process.stdout not in first)
    answers = [both[0].read()]
    began = time.monotonic()
    wrong = both[0].ask("check")["wrong"]
    both[0].end()
    checked = time.monotonic() - began
    answers.append(both[1].read())
    serial = sum(node.used(program.pid) for program in both) - used
    swaps = (node.copied() - copied) / (2 * one.held)
    wrong += both[1].ask("check")["wrong"]
    assert wrong == 0
    makespan = (answers[1]["ended_ns"] - min(answer["began_ns"] for answer in answers)) / 1e9 - checked
    report(
        f"two sets of {each:g} GiB on {SMALL_GIB} GiB without a pause, class {kind}: makespan",
        f"{makespan / serial:.3f} of serial ({makespan:.1f} s, {swaps:.1f} swaps)",
        f"what both computed, by the books: {serial:.1f} s",
        f"<= {MAKESPAN[kind]}",
        makespan <= MAKESPAN[kind] * serial,
    )


def test_what_fits_is_never_copied(report, play: Callable[[float], Play]) -> None:
    """Two that work and fit, in room of which half is that of one that does nothing."""
    node = play(SMALL_GIB)
    each = FITS_PART * SMALL_GIB
    idle = node.program(2 * each, "50%", sizes(2 * each, 2), idle_after=IDLE_AFTER)
    idle.suspend()
    both = [node.borrower(each, sizes(each, 4), idle_after=IDLE_AFTER) for _ in range(2)]
    for program in both:
        program.ask(f"train {KERNEL_NS}")
    before, began = node.copied(), time.monotonic()
    time.sleep(8)
    copied, took = node.copied() - before, time.monotonic() - began
    for program in both:
        program.ask("stop")
    report(
        f"two sets of {each:g} GiB that fit on {SMALL_GIB} GiB, one that is idle has moved: copied while they work",
        f"{copied} bytes in {took:.0f} s",
        f"they have {sum(program.held for program in both)}",
        "<= 0",
        copied == 0,
    )


def test_owners_wake_beside_a_borrower(report, play: Callable[[float], Play]) -> None:
    """Its memory is in host memory, and its room is that of a borrower that computes."""
    node = play(SMALL_GIB)
    each = SET_PART * SMALL_GIB
    owner = node.program(each, "50%", sizes(each, 6), idle_after=IDLE_AFTER, **{"class": "interactive"})
    owner.suspend()
    borrower = node.borrower(each, sizes(each, 6), **{"class": "interactive"})
    borrower.ask(f"train {KERNEL_NS}")
    waits = []
    for _ in range(WAKES):
        borrower.comes_to("resident")
        used = node.used(borrower.pid)
        until(lambda used=used: node.used(borrower.pid) > used + 0.05, "it computes")
        waits.append(owner.ask(f"cell {2 * KERNEL_NS}")["wait_ns"] / 1e6)
        owner.suspend()
    borrower.ask("stop")
    assert [program.ask("check") for program in (owner, borrower)] == [{"wrong": 0}] * 2
    copy = owner.held / (REAL_GBPS / SCALE) / 1e6
    bound = WAKE_PART * copy + WAKE_MORE_MS
    p50, p99 = (quantile(waits, part) for part in (0.5, 0.99))
    report(
        f"an owner of {each:g} GiB wakes, a borrower of as much computes on {SMALL_GIB} GiB",
        f"{p50:.0f} ms (p50), {p99:.0f} ms (p99 of {len(waits)})",
        f"the copy of either, one way: {copy:.0f} ms",
        f"<= {bound:.0f} ms (p50)",
        p50 <= bound,
    )
