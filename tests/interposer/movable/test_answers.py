"""What a program asks about its memory, and what it asks of it, has the same answers whether or not the grant lends its
idle memory, and so whether the driver has memory of cuMemAlloc there or mapped memory."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pages.handmade import Grant, Simulator
from run.interposed import Spawner

from gpushare._native import lib

HERE = Path(__file__).resolve().parent
NOT_SUPPORTED = 801
MIB = 1 << 20

Answers = dict[str, Any]


class Program:
    """A program of this folder in a grant."""

    def __init__(self, sim: Simulator, grant: Grant, name: str) -> None:
        self.grant = grant
        self.process = subprocess.Popen(
            [sys.executable, HERE / name, "large"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=Spawner(sim, grant).environment({"PYTHONPATH": str(HERE)}),
        )

    def __call__(self, command: str) -> Answers:
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()[-2000:]
        return json.loads(line)  # type: ignore[no-any-return]

    def movable(self) -> int:
        return self.grant.slot().movable_bytes

    def finish(self) -> str:
        """What it said."""
        _, errors = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, errors[-2000:]
        return errors


Start = Callable[[str, bool], Program]


@pytest.fixture
def start(tmp_path: Path, sim: Simulator) -> Iterator[Start]:
    made: list[Program] = []
    grants: list[Grant] = []

    def run(name: str, lends: bool) -> Program:
        grant = Grant(tmp_path / ("lends" if lends else "keeps"), sim)
        grant.limits.idle_memory = lib.GS_IDLE_LEND if lends else lib.GS_IDLE_KEEP
        grant.lease()
        grants.append(grant)
        made.append(Program(sim, grant, name))
        return made[-1]

    yield run
    for program in made:
        program.process.kill()
        program.process.communicate()
    for grant in grants:
        grant.close()


def differences(keeps: Answers, lends: Answers) -> dict[str, tuple[Any, Any]]:
    assert keeps.keys() == lends.keys()
    return {what: (keeps[what], lends[what]) for what in keeps if keeps[what] != lends[what]}


PROXIES = 4 * 512 + 1024 + 4096
"""What allocations that may move take besides: a block, or a row."""


def allowed(what: str, kept: Any, lent: Any) -> bool:
    if what.endswith(": cuIpcGetMemHandle"):  # memory that moves has no handles for other processes
        return bool(lent == NOT_SUPPORTED)
    if what.endswith("IS_LEGACY_CUDA_IPC_CAPABLE"):
        return kept == [0, 1] and lent == [0, 0]
    if what.endswith("past: cuPointerGetAttributes HOST_POINTER"):  # where the program has no memory
        return bool(lent == [0, 0])
    return what == "memory taken" and bool(lent - kept == PROXIES)


def test_every_answer_is_that_of_memory_that_stays(start: Start) -> None:
    kept = start("answers.py", False)
    answers = {command: kept(command) for command in ("ask", "synchronous", "end")}
    assert kept.movable() == 0
    assert kept.finish() == ""
    assert len(answers["ask"]) > 2000
    lent = start("answers.py", True)
    found = differences(answers["ask"], lent("ask"))
    assert lent.movable() > 1024 * MIB
    assert found, "handles for other processes are refused"
    assert {what: pair for what, pair in found.items() if not allowed(what, *pair)} == {}
    assert differences(answers["synchronous"], lent("synchronous")) == {}
    assert lent.movable() == 0, "what a network card may have stays"
    assert differences(answers["end"], lent("end")) == {}
    said = lent.finish().splitlines()
    assert [line for line in said if "cuIpcGetMemHandle" in line and "--idle-memory keep" in line] == said


def test_every_end_is_that_of_memory_that_stays(start: Start) -> None:
    """Sizes that are refused, frees by other threads, in other contexts, in the order of streams and during captures,
    ends of contexts."""
    kept, lent = start("ends.py", False), start("ends.py", True)
    for command in ("asked", "places", "contexts", "captures", "narrow"):
        found = differences(kept(command), lent(command))
        if command == "asked":  # of the last of them that fits, 512 bytes do not
            assert found.pop("full of 3 MiB + 7") == ([504, 2, 0, 0], [503, 2, 3, 0])
        assert found == {}
    assert lent.movable() == kept.movable() == 0
    said = lent.finish()
    assert said == kept.finish()
    assert said.startswith("gpushare: 1TiB refused: this share has --memory 2GiB, ") and said.count("\n") == 1
