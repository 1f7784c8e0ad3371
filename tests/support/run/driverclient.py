"""A process that calls the driver API on command (tests/interposer/client.c)."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from pages.handmade import Simulator

MIB = 1 << 20
CONTEXT = 16 * MIB  # the same in hand-made grants and in the simulator
LIMIT = 2 << 30  # of a hand-made grant
OUT_OF_MEMORY = 2
WAYS = ("linked", "dlsym", "proc")


@dataclass(frozen=True)
class Answer:
    result: int
    one: int
    two: int


class Client:
    """A client.c process. Call the object with a command to get the answer. `under`: a command that wraps the
    program."""

    def __init__(self, program: Path, way: str, env: dict[str, str], *under: str) -> None:
        self.process = subprocess.Popen(
            [*under, program, way],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        self.pid = self.process.pid

    def __call__(self, command: str) -> Answer:
        self.say(command)
        return self.hear()

    def say(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self) -> Answer:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the client ended: {self.process.wait(10)}"
        return Answer(*map(int, line.split()))

    def ok(self, *commands: str) -> Answer:
        """The answer to the last command; all commands must succeed."""
        assert commands
        for command in commands:
            answer = self(command)
            assert answer.result == 0, f"{command}: {answer.result}"
        return answer

    def end(self) -> str:
        """Lets the process exit; returns its stderr."""
        _, errors = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return errors

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None and not pipe.closed:
                pipe.close()


def truth(sim: Simulator, pid: int, device: int = 0) -> int:
    return sum(row["bytes"] for row in sim.books()["devices"][device]["processes"] if row["pid"] == pid)
