"""The rows of hooks.tsv as the program tests/interposer/rows calls them, one group of them in a process."""

import json
import subprocess
import threading
from dataclasses import dataclass, field
from typing import Any

from pages.handmade import Grant, Simulator, Slot
from run.waiting import until

WAIT_SECONDS = 10  # until a call that must wait does wait
SECONDS = 100  # for the rows of a group, on a busy machine


@dataclass
class Answer:
    """The report of one row's process, and the simulator's numbers at its stops."""

    report: dict[str, Any] = field(default_factory=dict)
    books: dict[str, int] = field(default_factory=dict)  # at "allocated", "freed", "end"
    page: dict[str, int] = field(default_factory=dict)
    busy_ns: int = 0  # of the process so far, by the simulator
    metered_ns: int = 0  # of the process so far, by the grant's page


class Run:
    """The rows of one group in one process."""

    def __init__(
        self, sim: Simulator, grant: Grant | None, command: list[Any], env: dict[str, str], mode: str, *files: int
    ) -> None:
        self.sim, self.grant, self.gated = sim, grant, mode == "gated"
        self.answers: dict[str, Answer] = {}
        self.process = subprocess.Popen(
            [*map(str, command), mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            pass_fds=files,
        )
        self.pid = self.process.pid

    def rows(self) -> dict[str, Answer]:
        watchdog = threading.Timer(SECONDS, self.process.kill)
        watchdog.start()
        last = None
        try:
            while line := self._hear():
                last = json.loads(line)
                answer = self.answers.setdefault(last["row"], Answer())
                if "at" not in last:
                    answer.report = last
                elif not self._stop(answer, last["at"]):
                    self.process.kill()
            errors = self.process.stderr.read()  # type: ignore[union-attr]
            code = self.process.wait(10)
        finally:
            watchdog.cancel()
            self.process.kill()
            self.process.wait(10)
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                pipe.close()  # type: ignore[union-attr]
        if code != 0:
            where = last["row"] if last else "before the first row"
            why = f"the process ended with {code} after {last}: {errors}"
            self.answers.setdefault(where, Answer()).report = {"ok": False, "why": why}
        elif "main" in self.answers:
            del self.answers["main"]
        return self.answers

    def _hear(self) -> str:
        return self.process.stdout.readline()  # type: ignore[union-attr]

    def _say(self) -> None:
        self.process.stdin.write("\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]

    def _stop(self, answer: Answer, at: str) -> bool:
        if self.gated:
            self.grant.revoke()  # type: ignore[union-attr]
        if at in ("allocated", "freed", "end"):
            rows = self.sim.books()["devices"][0]["processes"]
            answer.books[at] = sum(row["bytes"] for row in rows if row["pid"] == self.pid)
            answer.busy_ns = sum(row["busy_ns"] for row in rows if row["pid"] == self.pid)
            if self.grant is not None:
                answer.page[at] = self._charged()
                answer.metered_ns = slot.busy_ns if (slot := self._slot()) else 0
        self._say()
        if at not in ("work", "helper") or not self.gated:
            return True
        try:  # its next call must wait for the lease
            until(lambda: (slot := self._slot()) and slot.waiting == 1, "the call waits for the lease", WAIT_SECONDS)
        except AssertionError:
            return False
        self.grant.lease()  # type: ignore[union-attr]
        return True

    def _index(self) -> int | None:
        for index in range(self.grant._slots):  # type: ignore[union-attr]
            if self.grant.usage.slot[index].pid == self.pid:  # type: ignore[union-attr]
                return index
        return None

    def _slot(self) -> Slot | None:
        index = self._index()
        return None if index is None else self.grant.slot(index)  # type: ignore[union-attr]

    def _charged(self) -> int:
        index = self._index()
        if index is None:
            return 0
        return self.grant.slot(index).memory_bytes  # type: ignore[union-attr]
