"""Every row of hooks.tsv is called while the program's memory is in host memory. A call that needs memory of the device
waits, and says so; any other returns at once, and none takes any. Then the memory is brought back, and the call and all
that the program does next have the results that they have on the bare driver."""

import re
import select
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from memory.rowruns import Answer, Run
from pages.handmade import Simulator
from pages.lending import Lender
from run import built
from run.waiting import until
from values import hooktable

from gpushare._native import lib

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rows"))
import gen_rows

HOOKS = {row.symbol: row for row in hooktable.ROWS}
SNIPPETS = gen_rows.snippets()
APART = {"programs"}
"""Its kernels are collectives, after which a process keeps its memory on the device: a process for each row."""
WAITING_KINDS = {"alloc", "copy", "fill", "launch"}
WAITING = re.compile(
    r"cuCtxCreate|cuDevicePrimaryCtxRetain|cuModuleLoad|cuGraph(Launch|Instantiate|Upload)|cuMem(Prefetch|Discard|Batch)"
    r"|cuPointerSetAttribute|cuMemGetHandleForAddressRange"
    r"|cuLibraryGet(Module|Global)|cuKernelGetFunction|cuCtxSetLimit"
)
"""Calls of other kinds that take, use or may have used memory of the device."""

RELIED_ON = re.compile(
    r"cuCtxCreate|cuCtxDestroy|cuDevicePrimaryCtx|cuGreenCtx(Create|Destroy)|cuStreamBeginCapture"
    r"|cuGraph(Launch|Instantiate|Upload)|cuMem(Prefetch|Discard|Batch)"
    r"|cuPointerSetAttribute|cuMemGetHandleForAddressRange"
)


class Moved(Run):
    """how: for each row which of its calls waited, of those that were made while memory was away. grown: rows that took
    memory of the device meanwhile, by the simulator's books."""

    mode = "moved"

    def __init__(self, sim: Simulator, lender: Lender, rows: str, env: dict[str, str], *files: int) -> None:
        super().__init__(sim, lender, [built.program("rows"), "linked", "main", rows], env, self.mode, *files)
        self.lender, self.away = lender, False
        self.grown: dict[str, int] = {}
        self.how: dict[str, list[bool]] = {}

    def _hear(self) -> str:
        self.line = super()._hear()
        return self.line

    def _stop(self, answer: Answer, at: str) -> bool:
        if at == "done" and self.away:
            self._bring_back()
        if at in ("start", "work") and '"occupied":true' not in self.line:
            row = self.line.split('"')[3]
            self.how.setdefault(row, []).append(self._waits_away())
            return True
        if at in ("allocated", "freed", "end"):
            return super()._stop(answer, at)
        self._say()
        return True

    def _carried_out(self, residency: int) -> int:
        index = self._index()
        assert index is not None
        return self.lender.carried_out(self.lender.want(residency), index)

    def _bring_back(self) -> None:
        assert self._carried_out(lib.GS_RESIDENT) == lib.GS_MOVED
        self.lender.lease()
        self.away = False

    def _waits_away(self) -> bool:
        self.lender.revoke()
        assert self._carried_out(lib.GS_HOSTED) == lib.GS_MOVED
        slot = self._slot()
        assert slot is not None and (slot.hosted_bytes > 0 or self.mode == "bare")
        before = self._held()
        self.away = True
        self._say()
        until(lambda: slot.flags & lib.GS_SLOT_WANTS or self._returned(), "the call waits or returns")
        if (more := self._held() - before) > 0:
            self.grown[self.line] = more
        if self._returned():
            return False
        self._bring_back()
        return True

    def _held(self) -> int:
        rows = self.sim.books()["devices"][0]["processes"]
        return sum(row["bytes"] for row in rows if row["pid"] == self.pid)

    def _returned(self) -> bool:
        return bool(select.select([self.process.stdout], [], [], 0)[0])


class Bare(Moved):
    """Of the program nothing can be moved but what rows have: where that is nothing, the daemon does not wait for it,
    and it must not grow either."""

    mode = "bare"


STILL_S = 0.05
"""A thread asleep this long in one system call is taken to wait."""


class Moving(Moved):
    """The calls are made while the memory is on its way: the mover is stopped where it is about to unmap."""

    def __init__(self, sim: Simulator, lender: Lender, rows: str, env: dict[str, str]) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            env = {**env, "ROWS_CONTROL": str(theirs.fileno())}
            super().__init__(sim, lender, rows, env, theirs.fileno())

    def rows(self) -> dict[str, Answer]:
        with self.control:
            return super().rows()

    def _waits_away(self) -> bool:
        self.lender.revoke()
        waits, word = self._called_during("cuMemUnmap", lib.GS_HOSTED)
        index, slot = self._index(), self._slot()
        assert index is not None and slot is not None
        assert self.lender.carried_out(word, index) == lib.GS_MOVED
        self.away = True
        if waits:
            until(lambda: slot.flags & lib.GS_SLOT_WANTS or self._returned(), "it waits for memory now, or returns")
        if waits and not self._returned():
            self._bring_back()
        return waits

    def _called_during(self, step: str, residency: int) -> tuple[bool, int]:
        """Whether the call waits while the mover is stopped before that step; the residency word."""
        assert self._asks(f"{step} {self._mover()}")
        word = self.lender.want(residency)
        assert self._asks("held")
        self._say()
        waits = until(lambda: (self._returned() and "returned") or (self._asleep() and "waits")) == "waits"
        assert self._asks("release")
        return waits, word

    def _asks(self, what: str) -> bool:
        self.control.send(what.encode())
        return self.control.recv(1) == b"\1"

    def _mover(self) -> str:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return next(task.name for task in tasks if (task / "comm").read_text() == "gpushare-mover\n")

    def _asleep(self) -> bool:
        call = Path(f"/proc/{self.pid}/syscall")
        before = call.read_text()
        time.sleep(STILL_S)
        return before != "running\n" and call.read_text() == before and not self._returned()


class Returning(Moving):
    """The calls are made while the memory is on its way back, and mapped, but not usable yet."""

    def _waits_away(self) -> bool:
        self.lender.revoke()
        assert self._carried_out(lib.GS_HOSTED) == lib.GS_MOVED
        waits, word = self._called_during("cuMemSetAccess", lib.GS_RESIDENT)
        index = self._index()
        assert index is not None
        assert self.lender.carried_out(word, index) == lib.GS_MOVED
        self.lender.lease()
        return waits


def waits(symbol: str, calls: int) -> list[bool]:
    """Whether each of its calls waits while memory is away."""
    row = HOOKS[symbol]
    waits = row.looks or row.kind in WAITING_KINDS or bool(WAITING.match(symbol))
    if symbol == "cuDevicePrimaryCtxRetain":
        return [True, False]  # the second one takes nothing
    return [waits] * calls


def waits_on_the_way_out(symbol: str, calls: int) -> list[bool]:
    """What changes contexts and captures, on which the move relies, does as well."""
    return [waits(symbol, 1)[0] or bool(RELIED_ON.match(symbol))] * calls


def waits_on_the_way_in(symbol: str, calls: int) -> list[bool]:
    """What takes other memory does not: there is room for it."""
    row = HOOKS[symbol]
    return [row.looks or row.kind in WAITING_KINDS - {"alloc"} or bool(RELIED_ON.match(symbol))] * calls


def allowed(symbol: str, why: str) -> bool:
    """Memory that moves has no handles for other processes."""
    return symbol == "cuIpcGetMemHandle" and "801" in why


def one_of_each() -> list[str]:
    """A row of each handler and kind: the others differ in what they pass to it."""
    found: dict[tuple[str, ...], str] = {}
    for symbol, row in HOOKS.items():
        each = symbol if row.handler == "=forward" or row.handler.endswith(".c") else row.handler
        found.setdefault((each, row.kind, str(row.looks)) if row.kind != "pass" else ("pass",), symbol)
    return list(found.values())


def run_rows(
    kind: type[Moved], symbols: list[str], sim: Simulator, lender: Lender, env: dict[str, str]
) -> dict[str, list[bool]]:
    """Which calls waited. Their results, and what is charged at the end of each row, are right."""
    answers: dict[str, Answer] = {}
    how: dict[str, list[bool]] = {}
    apart = {symbol for symbol in symbols if SNIPPETS[gen_rows.lender(symbol, SNIPPETS)][0] in APART}
    for rows in [",".join(symbol for symbol in symbols if symbol not in apart), *sorted(apart)]:
        run = kind(sim, lender, rows, env)
        answers |= run.rows()
        how |= run.how
        assert run.grown == {}
    wrong = [f"{name}: {answer.report['why']}" for name, answer in answers.items() if not answer.report.get("ok")]
    assert [line for line in wrong if not allowed(*line.split(": ", 1))] == []
    assert answers.keys() == set(symbols)
    assert {name: answer.page for name, answer in answers.items() if answer.page != answer.books} == {}
    assert len(how) > 0.9 * len(symbols)
    return how


@pytest.mark.drawn(1)
@pytest.mark.promise("away-takes-no-more")
@pytest.mark.parametrize("kind", [Moved, Bare])
@pytest.mark.parametrize(
    "symbols",
    [pytest.param(one_of_each(), id="one of each"), pytest.param(list(HOOKS), id="all", marks=pytest.mark.slow)],
)
def test_rows(
    sim: Simulator,
    lender: Lender,
    environment: Callable[..., dict[str, str]],
    symbols: list[str],
    kind: type[Moved],
) -> None:
    how = run_rows(kind, symbols, sim, lender, environment(lender))
    assert {name: calls for name, calls in how.items() if calls != waits(name, len(calls))} == {}


@pytest.mark.drawn(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "waits_for_the_move"), [(Moving, waits_on_the_way_out), (Returning, waits_on_the_way_in)]
)
def test_rows_while_memory_moves(
    sim: Simulator,
    lender: Lender,
    environment: Callable[..., dict[str, str]],
    kind: type[Moved],
    waits_for_the_move: Callable[[str, int], list[bool]],
) -> None:
    how = run_rows(kind, one_of_each(), sim, lender, environment(lender))
    assert {name: calls for name, calls in how.items() if calls != waits_for_the_move(name, len(calls))} == {}
