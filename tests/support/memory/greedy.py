"""A process without a share that takes all free memory of a device, and holds it until it is told to give it back."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gpushare.paths import LIB_DIR, SIM_DIR_ENV, SIM_LIB_DIR

PIECES = ("1G", "64M", "2M", "128K", "8K", "512")  # the device's smallest unit last, so that nothing remains


class Greedy:
    def __init__(self, simulator: Path, device: int = 0) -> None:
        """`simulator`: the directory of its socket."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSHARE_", "CUDA_", "LD_"))}
        env = kept | {SIM_DIR_ENV: str(simulator), "LD_LIBRARY_PATH": str(SIM_LIB_DIR)}
        command = [LIB_DIR / "gpushare-spin", "--device", str(device)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True)
        self._answer("ready")

    @property
    def pid(self) -> int:
        return self.process.pid

    def take(self) -> int:
        """Takes what is free now; returns the bytes it holds."""
        for piece in PIECES:
            held = self._ask(f"fill 1T {piece}", "alloc")["held_bytes"]
        return int(held)

    def give_back(self) -> None:
        self._ask("free", "free")

    def _ask(self, line: str, event: str) -> dict[str, int]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer(event)

    def _answer(self, event: str) -> dict[str, int]:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert answer["event"] == event, answer
        return dict(answer)


@contextlib.contextmanager
def greedy(simulator: Path, device: int = 0) -> Iterator[Greedy]:
    made = Greedy(simulator, device)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()
