"""A program that takes commands: one per line, and answers each with one JSON object."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubench.process import tied

Json = dict[str, Any]
ANSWER_SECONDS = 60.0
START_SECONDS = 180.0
"""A first `import torch` reads gigabytes from a cold disk."""


class WorkerError(Exception):
    """The program ended, answered with an error, or did not answer in time."""


@dataclass(frozen=True)
class Unit:
    """What bench/gpu/native/load.c repeats; `kernel_us` is the device time of each kernel in a row of them
    that has the device to itself, its launch included."""

    kernels: int
    kernel_us: float
    gap_us: float = 0
    graph: bool = False
    copy: int = 0
    depth: int = 2
    pause_ms: float = 0
    wake: bool = False

    @property
    def work_ns(self) -> float:
        return self.kernels * self.kernel_us * 1000

    def line(self) -> str:
        numbers = (
            self.kernels,
            self.kernel_us * 1e3,
            self.gap_us * 1e3,
            self.graph,
            self.copy,
            self.depth,
            self.pause_ms * 1e6,
            self.wake,
        )
        return "unit " + " ".join(str(int(number)) for number in numbers)


class Worker:
    """Ends with `close`; a context manager."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.command = list(command)
        self._log = log
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                self.command,
                env=dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                preexec_fn=tied(),
            )
        self._buffer = b""
        try:
            self.ready = self.read(START_SECONDS)
        except BaseException:
            self.close()
            raise
        self.pid: int = self.process.pid  # `gpushare run` becomes the command

    def _ended(self, what: str) -> WorkerError:
        tail = " | ".join(self._log.read_text(errors="replace").splitlines()[-4:])
        return WorkerError(f"{Path(self.command[-1]).name} of {' '.join(self.command)[:200]}: {what}; {tail}")

    def read(self, seconds: float = ANSWER_SECONDS) -> Json:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise self._ended(f"no answer in {seconds:.0f} s")
            read = os.read(descriptor, 1 << 16)
            if not read:
                raise self._ended(f"ended with status {self.process.wait(10)}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Json = json.loads(line)
        if answer.get("event") in ("error", "unknown"):
            raise self._ended(f"answered {line.decode()}")
        return answer

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended("went away") from None

    def ask(self, line: str, seconds: float = ANSWER_SECONDS) -> Json:
        self.send(line)
        return self.read(seconds)

    def set(self, unit: Unit) -> "Worker":
        self.ask(unit.line())
        return self

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def window(seconds: float, *workers: Worker) -> list[Json]:
    """Runs all of them at the same time for so long, and returns their reports."""
    for worker in workers:
        worker.ask("run")
    time.sleep(seconds)
    for worker in workers:
        worker.send("idle")
    return [worker.read() for worker in workers]


def rate(report: Json) -> float:
    """Units per second."""
    return 1e9 * float(report["units"]) / float(report["wall_ns"])


def show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
