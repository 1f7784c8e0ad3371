"""A real program in a grant that lends its memory, of a real daemon: a worker (run/worker.py) with known bytes on the
device, whose moves a test can stop at any step."""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory import moving
from run.built import SUPPORT
from run.running import GPUSHARE, start
from run.simworker import Worker
from run.waiting import until

MIB = 1 << 20
SIZES = {"a": 6 * MIB, "b": 3 * MIB + 7, "c": 2 * MIB}
MOVABLE = (6 + 4 + 2) * MIB
"""What of them is mapped, and moves."""


@dataclass(frozen=True)
class Step:
    """An instant of a move: the mover's call of a driver function, before (0) or after (1) its effect, after `skip`
    other ones. Without a function: the daemon has been asked for host memory and has not answered."""

    hosted: bool
    function: str = ""
    when: int = 1
    skip: int = 0

    def __str__(self) -> str:
        if self is AWAY:
            return "away"
        way, number = ("out", "in")[not self.hosted], f"-{self.skip + 1}" if self.skip else ""
        return f"{way}-{('before', 'after')[self.when]}-{self.function or 'asking'}{number}"


AWAY = Step(True, "away")
"""Between the moves."""
OUT = [
    Step(True),
    Step(True, "cuCtxRecordEvent", 0),
    Step(True, "cuCtxRecordEvent"),
    Step(True, "cuMemHostRegister"),
    Step(True, "cuMemcpyDtoHAsync"),
    Step(True, "cuMemUnmap", 0),
    Step(True, "cuMemUnmap"),
    Step(True, "cuMemUnmap", skip=2),
]
IN = [
    Step(False, "cuMemCreate", 0),
    Step(False, "cuMemCreate", skip=1),
    Step(False, "cuMemMap"),
    Step(False, "cuMemSetAccess"),
    Step(False, "cuMemcpyHtoDAsync"),
    Step(False, "cuEventSynchronize"),
    Step(False, "cuMemHostUnregister"),
]


class _Run:
    """Starts programs as Worker wants them."""

    def __init__(self, daemon: Any, grant: str, options: dict[str, str]) -> None:
        self._daemon, self._grant, self._options = daemon, grant, options

    def spawn(self, *command: Any, env: dict[str, str] | None) -> Any:
        daemon, words = self._daemon, [str(word) for word in command]
        environment = {**daemon.env, "PYTHONPATH": str(SUPPORT), **(env or {})}
        if self._grant:
            asked = ["run", "--socket", str(daemon.client.path), "--grant", self._grant, "--", *words]
            child = start([*GPUSHARE, *asked], environment, stderr=False)
        else:
            child = start(daemon.run("4GiB", "30%", *words, **self._options), environment, stderr=False)
        daemon.children.append(child)
        return child


class MovedProgram(Worker):
    """`grant`: a kept one; else it gets its own, with `options` of gpushare run."""

    def __init__(self, daemon: Any, grant: str = "", **options: str) -> None:
        super().__init__(_Run(daemon, grant, {"idle_memory": "lend", "gpu": "0", **options}))
        self.daemon = daemon
        self.do("import os; from memory import holds; ok(d.cuInit(0)); ctx = context(0); hold = None")
        self.id = Path(str(self.get("os.environ['GPUSHARE_GRANT_DIR']"))).parent.name
        for seed, (name, size) in enumerate(SIZES.items()):
            moving.filled(self, name, size, seed)  # type: ignore[arg-type]

    @property
    def shown(self) -> dict[str, Any]:
        return dict(self.daemon.client.grant(self.id))

    @property
    def where(self) -> str:
        return str(self.shown["residency"]["where"])

    def comes_to(self, *where: str) -> None:
        try:
            until(lambda: self.where in where, f"it is {' or '.join(where)}")
        except AssertionError as late:
            raise AssertionError(f"{late}: {self.shown['residency']} {self.daemon.log.read_text()[-1500:]}") from None

    @property
    def held(self) -> int:
        """Bytes that it has of the device, by the simulator's books."""
        return sum(row["bytes"] for row in self.daemon.books()["processes"] if row["pid"] == self.pid)

    @property
    def illegal(self) -> int:
        return sum(row["illegal_accesses"] for row in self.daemon.books()["processes"] if row["pid"] == self.pid)

    def suspended(self) -> "MovedProgram":
        self.daemon.client.suspend(self.id)
        self.comes_to("suspended")
        return self

    def is_whole(self) -> None:
        """Asserts that it is back with every byte of its memory, that the books are exact, and that the pool has
        everything back."""
        self.comes_to("resident")
        wrong = [name for name in SIZES if not moving.same(self, name)]  # type: ignore[arg-type]
        assert not wrong, f"bytes are lost: {wrong}"
        assert self.illegal == 0
        until(lambda: self.shown["devices"][0]["memory_hosted_bytes"] == 0, "nothing of it is hosted")
        until(lambda: self.shown["devices"][0]["memory_bytes"] == self.held, "the books are exact")
        pool_is_empty(self.daemon)

    @contextlib.contextmanager
    def at(self, step: Step) -> Iterator[None]:
        """Begins the move, and stops it at the step. At the end it goes on, if there is something left of it."""
        if step is AWAY:
            self.suspended()
            yield
            return
        stopped = helpers(self.daemon) if not step.function else []
        for helper in stopped:
            os.kill(helper, signal.SIGSTOP)
        if step.function:
            self.do(f"hold = holds.Hold({step.function!r}, {step.when}, 0, {step.skip})")
        if step.hosted:
            self.daemon.client.suspend(self.id)
        else:
            self.daemon.client.resume(self.id)
        if step.function:
            assert self.get("hold.stopped(20)"), step
        else:
            until(lambda: self.daemon.client.node()["host_pool"]["used"], "host memory is asked for")
        try:
            yield
        finally:
            for helper in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(helper, signal.SIGCONT)

    def goes_on(self, step: Step) -> None:
        """Lets a move go on that is stopped in the driver."""
        if step.function and step is not AWAY:
            self.do("hold.release()")


def helpers(daemon: Any) -> list[int]:
    """Pids of the host pool's helpers."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{daemon.process.pid}\n" in status.read_text():
                command = (status.parent / "cmdline").read_bytes()
                found += [int(status.parent.name)] if b"hostpool" in command else []
    return found


def pool_is_empty(daemon: Any) -> None:
    def counts() -> tuple[int, int, int]:
        pool = daemon.client.node()["host_pool"]
        return pool["used"], pool["reserved"], pool["segments"]

    until(lambda: counts() == (0, 0, 0), lambda: f"the host pool has all of it back: {counts()}")
