"""The test's side of tests/support/run/worker.py."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

CONTEXT = 16 << 20  # default device memory of one context
PROGRAM = Path(__file__).parent / "worker.py"


class WorkerError(Exception):
    """A line that raised an exception in the worker."""


class Worker:
    """A process on the simulated device that executes lines of Python."""

    def __init__(self, sim: Any, env: dict[str, str] | None = None) -> None:
        """`sim` forks it with the environment of its processes, or starts it as a program where `fork` is unset."""
        self.process = sim.fork(env) if hasattr(sim, "fork") else sim.spawn(sys.executable, PROGRAM, env=env)
        self.pid = self.process.pid

    def _ask(self, kind: str, text: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([kind, textwrap.dedent(text)]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the worker ended with {self.process.wait(10)} in {text!r}"
        answer = json.loads(line)
        if "failure" in answer:
            raise WorkerError(f"{answer['failure']} in {text!r}")
        return answer["value"]

    def do(self, text: str) -> None:
        self._ask("do", text)

    def get(self, expression: str) -> Any:
        return self._ask("get", expression)

    def error(self, call: str) -> str:
        """The name of a driver result code."""
        return str(self._ask("get", f"error({call})"))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0


def start(sim: Any, device: int = 0, env: dict[str, str] | None = None) -> Worker:
    """A worker with the primary context of a device current."""
    worker = Worker(sim, env)
    worker.do(f"ok(d.cuInit(0)); ctx = context({device})")
    return worker


def held(sim: Any, worker: Worker, device: int = 0) -> int:
    """Bytes beyond one context, according to the simulator."""
    return int(sim.process(worker.pid, device)["bytes"]) - CONTEXT
