"""Grants whose memory may be moved, with processes that play the interposer's part (run/mover.py)."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from run.built import SUPPORT
from run.running import GPUSHARE, start
from run.waiting import until

GIB = 1 << 30


class Notebook:
    """A process of a grant, of its own or of a kept one, that can have 7 of its 8 GiB in memory that can be moved."""

    def __init__(self, daemon: Any, memory: str = "8GiB", grant: str = "", **options: str) -> None:
        command = [sys.executable, str(SUPPORT / "run" / "mover.py")]
        self.daemon = daemon
        with _environment(daemon, {"PYTHONPATH": str(SUPPORT)}):
            if grant:
                words = [*GPUSHARE, "run", "--socket", str(daemon.client.path), "--grant", grant, "--", *command]
                self.process = start(words, daemon.env, stderr=False)
                daemon.children.append(self.process)
            else:
                self.process = daemon.tenant(*command, memory=memory, **{"idle_memory": "lend", **options})
        words = self.process.stdout.readline().split()
        assert words[:1] == ["joined"], (words, daemon.log.read_text()[-2000:])
        self.id = words[1]

    def __call__(self, line: str) -> list[str]:
        self.process.stdin.write(line + "\n")
        return self.process.stdout.readline().split()

    @property
    def shown(self) -> dict[str, Any]:
        return self.daemon.client.grant(self.id)

    @property
    def where(self) -> str:
        return self.shown["residency"]["where"]

    def holds(self, fixed: int = GIB // 4, movable: int = 7 * GIB) -> "Notebook":
        self(f"hold {fixed} {movable}")
        until(lambda: self.shown["devices"][0]["memory_bytes"] == fixed + movable, "the bytes are seen")
        return self

    def comes_to(self, where: str) -> dict[str, Any]:
        until(
            lambda: self.where == where,
            f"{self.id} is {where}: {self.shown['residency']} {self.daemon.log.read_text()[-1500:]}",
        )
        return self.shown

    def suspended(self) -> "Notebook":
        """Moved to host memory, and back whenever its page says so."""
        self("follow")
        self.daemon.client.suspend(self.id)
        self.comes_to("suspended")
        return self


@contextlib.contextmanager
def _environment(daemon: Any, more: dict[str, str]) -> Iterator[None]:
    before = dict(daemon.env)
    daemon.env.update(more)
    try:
        yield
    finally:
        daemon.env.clear()
        daemon.env.update(before)


@pytest.fixture
def daemon(lending: Any) -> Any:
    return lending


@pytest.fixture
def notebook(daemon: Any) -> Callable[..., Notebook]:
    def made(**options: str) -> Notebook:
        return Notebook(daemon, **options)

    return made
