"""A tenant's program that executes commands from its stdin (native/clients/spin.c)."""

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpushare.demo.interrupts import uninterrupted
from gpushare.errors import FailedError

START_SECONDS = 30.0
ANSWER_SECONDS = 20.0
END_SECONDS = 5.0


class Program:
    """`what`: its name in messages. `stderr`: file for what it writes there. Always call `end`."""

    def __init__(self, what: str, stderr: Path) -> None:
        self.what = what
        self._stderr = stderr
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def begin(self, command: Sequence[str]) -> None:
        """Starts it; `ready` waits until it has its device."""
        with open(self._stderr, "w") as stderr, uninterrupted():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                # Ctrl-C at the terminal must reach only the demo, which ends its programs in order.
                start_new_session=True,
            )
        threading.Thread(target=self._read, name=f"read-{self.what}", daemon=True).start()

    def ready(self) -> dict[str, Any]:
        """Waits until it has its device; returns its report. Raises FailedError with the last line of its stderr."""
        report = self._answer(START_SECONDS)
        if report.get("event") != "ready":
            raise FailedError(f"{self.what}: {report}")
        return report

    def running(self) -> bool:
        """Whether its process still runs."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raises FailedError with its last output if it has exited."""
        if not self.running():
            raise FailedError(self._epitaph())

    def ask(self, command: str) -> dict[str, Any]:
        """Sends one command and returns the program's answer."""
        self.send(command)
        return self.answer()

    def send(self, command: str) -> None:
        """Sends one command; its `answer` must be read before the next command."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise FailedError(self._epitaph()) from None

    def answer(self) -> dict[str, Any]:
        """Returns the answer to the command that was sent."""
        return self._answer(ANSWER_SECONDS)

    def answered(self, seconds: float) -> dict[str, Any] | None:
        """Returns the answer to the command that was sent; None: there is none within `seconds`."""
        try:
            return self._checked(self._answers.get(timeout=seconds))
        except queue.Empty:
            return None

    def leave(self) -> None:
        """Asks it to end, which it does when the device work that it waits for is done."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended with a command unread
                self._process.stdin.close()

    def end(self) -> None:
        """Ends it in any state: afterwards no process of it exists."""
        if self._process is None:
            return
        self.leave()
        if not self._ends():
            self._stop()
        if not self._ends():
            self._process.kill()
            self._process.wait()

    def _stop(self) -> None:
        """Makes it end if it has not ended after `leave`."""
        assert self._process is not None
        self._process.terminate()

    def _ends(self) -> bool:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        return not self.running()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._answers.put(json.loads(line))
            except ValueError:
                continue
        self._answers.put(None)

    def _answer(self, seconds: float) -> dict[str, Any]:
        if (found := self.answered(seconds)) is None:
            raise FailedError(f"{self.what} does not answer within {seconds:.0f} s")
        return found

    def _checked(self, found: dict[str, Any] | None) -> dict[str, Any]:
        if found is None:
            raise FailedError(self._epitaph())
        if found.get("event") == "error":
            raise FailedError(f"{self.what}: {found.get('call')} failed with {found.get('name')}")
        return found

    def _epitaph(self) -> str:
        assert self._process is not None
        status = self._process.wait(END_SECONDS)
        lines = self._stderr.read_text().strip().splitlines()
        return f"{self.what} ended with status {status}: {lines[-1] if lines else 'without a word'}"
