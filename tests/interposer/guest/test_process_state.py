"""In a program's process: the interposer does nothing before the first CUDA call, and does not change the program's
state after it."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages.handmade import Grant
from run import built

from gpushare import paths

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[2] / "native"


@pytest.fixture(scope="session")
def guest_program() -> Path:
    return built.program("guest")


def test_nothing_is_touched(grant: Grant, guest_program: Path, environment: Callable[..., dict[str, str]]) -> None:
    env = environment(grant)
    with open(HERE / "guest.c") as some_file:
        os.lseek(some_file.fileno(), 3, os.SEEK_SET)
        run = subprocess.run([guest_program], env=env, stdin=some_file, capture_output=True, text=True, check=True)
    seen: dict[str, Any] = json.loads(run.stdout)  # the interposer prints nothing on stdout
    before, after = seen["before"], seen["after"]
    assert before["threads"] == 1
    assert [number for number, _ in before["descriptors"]] == [0, 1, 2]
    for name in ("umask", "handlers", "cwd", "environment", "blocked", "locale", "settings", "offset"):
        assert before[name] == after[name], name
    assert (before["umask"], before["cwd"], before["offset"]) == (0o027, "/proc", 3), "nothing was at its default"
    assert before["locale"] == "C.UTF-8"
    assert before["blocked"] == 1 << signal.SIGUSR1 | 1 << signal.SIGTERM
    assert [one for one in before["descriptors"] if one not in after["descriptors"]] == []
    assert seen["errno_kept"] == 1
    new = [one for one in after["descriptors"] if one not in before["descriptors"]]
    assert all(close_on_exec for _, close_on_exec in new)
    ours = [number for number, _ in new if number >= 512]
    assert len(ours) >= 2, "the socket and the bell keep out of the numbers that programs use"
    assert run.stderr.startswith("gpushare: 64TiB refused: ") and run.stderr.count("\n") == 1, "what it asked for"


def test_a_program_without_cuda(grant: Grant, environment: Callable[..., dict[str, str]]) -> None:
    """It does not open the grant, and the exit status is the program's."""
    env = {**environment(grant), "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(grant.directory / "debug")}
    run = subprocess.run(["/bin/sh", "-c", "exit 7"], env=env, capture_output=True, check=False)
    assert run.returncode == 7
    assert run.stdout == run.stderr == b""
    assert grant.connections == 0
    loaded = "".join(path.read_text() for path in grant.directory.glob("debug.*"))
    assert "libgpushare.so" in loaded
    assert str(paths.SIM_LIB_DIR) not in loaded


def test_stderr_is_capped(grant: Grant, environment: Callable[..., dict[str, str]], start: Callable[..., Any]) -> None:
    (grant.directory / "limits").unlink()  # not truncated: this process has it mapped and writes its heartbeat into it
    (grant.directory / "limits").write_bytes(b"")
    client = start(grant)
    for _ in range(30):
        assert client("init").result == 802
    assert len(client.end().splitlines()) == 1
