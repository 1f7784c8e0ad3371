"""tests/interposer/memory/history_client.c as a process driven by a test."""

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from memory.memorymodel import Process

ROOT = Path(__file__).resolve().parents[3]


class Client:
    """A history_client process, or a child that one of them forked."""

    def __init__(self, pid: int, process: subprocess.Popen[str] | None) -> None:
        self.pid, self.process = pid, process
        self.model = Process()
        self.stale: dict[str, list[int]] = {}  # numbers that were once valid

    def __call__(self, command: str, *numbers: int) -> tuple[int, int]:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join([command, *map(str, numbers)]) + "\n")
        self.process.stdin.flush()
        if command == "exec":
            return self("hello")
        line = self.process.stdout.readline()
        assert line, f"{command} {numbers} ended the program: {self.process.wait(10)}"
        result, made = map(int, line.split())
        return result, made

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]
