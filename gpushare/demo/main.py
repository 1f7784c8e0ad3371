"""Connects node, story and screen, and cleans everything up."""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from gpushare.demo.interrupts import interruptible, uninterrupted
from gpushare.demo.node import Node
from gpushare.demo.screen import Screen
from gpushare.demo.story import BORROWER, OWNER, Story
from gpushare.demo.verdict import Claim, Facts, claims
from gpushare.errors import FailedError
from gpushare.paths import HOOK, INTERPOSERS, LIB_DIR, RUNTIME_WRAPPER

CGROUPS = Path("/sys/fs/cgroup")
REMOVE_SECONDS = 5.0


def run(phase_seconds: float, *, quiet: bool) -> tuple[dict[str, Any], Facts, list[Claim]]:
    """(device, facts, claims). Leaves nothing behind, however it ends."""
    _check()
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(interruptible())
        with uninterrupted():
            # Short, because a socket's path has at most 107 bytes.
            where = Path(tempfile.mkdtemp(prefix="gpushare-demo-"))
            cleanup.callback(_remove, where)
        screen = Screen((OWNER, BORROWER))
        say = _silence if quiet else screen.step
        cleanup.callback(say, "taking everything away")
        say("starting a daemon of its own")
        node = Node(where / "node")
        (where / "node").mkdir()
        cleanup.callback(node.end)
        simulated = node.start()["simulated"]
        found = node.client.devices()[0]
        device = {"name": found["name"], "uuid": found["id"], "simulated": simulated}
        if not quiet:
            screen.begin({"device": device})
        story = Story(node, where, phase_seconds, say, _silence if quiet else screen.watch)
        facts = story.play(simulated)
    return device, facts, claims(facts)


def _silence(_: Any) -> None:
    """Replaces the screen for JSON output."""


def _check() -> None:
    if os.geteuid() != 0:
        raise FailedError("the demo starts containers: run it as root")
    if shutil.which("runc") is None:
        raise FailedError("runc is not installed: apt-get install runc")
    for path in (*INTERPOSERS, HOOK, RUNTIME_WRAPPER, LIB_DIR / "gpushare-spin"):
        if not path.exists():
            raise FailedError(f"{path} is not built: make demo builds it")


@uninterrupted()
def _remove(where: Path) -> None:
    for parent in (CGROUPS, *CGROUPS.iterdir()):
        # The runtime removes each container's cgroup, but not the parent that it created for all of them.
        with contextlib.suppress(OSError):
            (parent / "gpushare-demo").rmdir()
    # A process that is exiting may still create files there.
    deadline = time.monotonic() + REMOVE_SECONDS
    while True:
        shutil.rmtree(where, ignore_errors=True)
        if not where.exists():
            return
        if time.monotonic() > deadline:
            raise FailedError(f"{where} cannot be removed")
        time.sleep(0.05)
