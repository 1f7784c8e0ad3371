"""A tenant: one container under runc that executes commands from its stdin."""

import contextlib
import json
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any

from gpushare.demo import bundle
from gpushare.demo.interrupts import uninterrupted
from gpushare.errors import FailedError
from gpushare.inject.oci import GRANT
from gpushare.paths import RUNTIME_WRAPPER

START_SECONDS = 30.0
ANSWER_SECONDS = 20.0
END_SECONDS = 5.0


class Container:
    """`runtime_root`: a private directory for runc's state. Always call `end`."""

    def __init__(self, name: str, where: Path, runtime_root: Path, socket: Path) -> None:
        self.name = name
        self._id = f"{where.name}-{name}"
        self._bundle = where / name
        self._wrapper = [str(RUNTIME_WRAPPER), f"--gpushare-socket={socket}", "--root", str(runtime_root)]
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def start(self, annotations: dict[str, str]) -> None:
        """Returns when the program in it has its device; otherwise raises FailedError with the engine's message."""
        bundle.make(self._bundle, annotations, [bundle.TENANT_PROGRAM], f"/gpushare-demo/{self._id}")
        with open(self._bundle / "stderr", "w") as stderr, uninterrupted():
            self._process = subprocess.Popen(
                [*self._wrapper, "run", "--bundle", str(self._bundle), self._id],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                # Ctrl-C at the terminal must reach only the demo, which ends its containers in order.
                start_new_session=True,
            )
        threading.Thread(target=self._read, name=f"read-{self.name}", daemon=True).start()
        ready = self._answer(START_SECONDS)
        if ready.get("event") != "ready":
            raise FailedError(f"container {self.name}: {ready}")

    @property
    def grant(self) -> str:
        """Its id, which the runtime wrapper wrote to the config."""
        annotations = json.loads((self._bundle / "config.json").read_text())["annotations"]
        return str(annotations[GRANT])

    def running(self) -> bool:
        """Whether its process still runs."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """Raises FailedError with its last output if it has exited."""
        if not self.running():
            raise FailedError(self._epitaph())

    def ask(self, command: str) -> dict[str, Any]:
        """Sends one command and returns the program's answer."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(command + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise FailedError(self._epitaph()) from None
        return self._answer(ANSWER_SECONDS)

    def end(self) -> None:
        """Ends it in any state: afterwards neither the container nor a process of it exists."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # an unread command
                self._process.stdin.close()
        if not self._ends():
            self._delete()
        if not self._ends():
            self._process.kill()
            self._process.wait()
        self._delete()

    def _ends(self) -> bool:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        return not self.running()

    def _delete(self) -> None:
        subprocess.run([*self._wrapper, "delete", "--force", self._id], capture_output=True, check=False)

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._answers.put(json.loads(line))
            except ValueError:
                continue
        self._answers.put(None)

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            found = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise FailedError(f"container {self.name} does not answer within {seconds:.0f} s") from None
        if found is None:
            raise FailedError(self._epitaph())
        if found.get("event") == "error":
            raise FailedError(f"container {self.name}: {found.get('call')} failed with {found.get('name')}")
        return found

    def _epitaph(self) -> str:
        assert self._process is not None
        status = self._process.wait(END_SECONDS)
        said = (self._bundle / "stderr").read_text().strip().splitlines()
        return f"container {self.name} ended with status {status}: {said[-1] if said else 'without a word'}"
