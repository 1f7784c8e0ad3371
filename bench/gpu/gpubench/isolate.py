"""A group in a process group of its own, with a time limit; what it has measured by then is kept."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpubench.groups import Group
from gpubench.process import end_group, reap, tied
from gpubench.worker import show

_GRACE_SECONDS = 20.0
END_SECONDS = _GRACE_SECONDS + 5
"""How long ending a group may take after its limit."""
_LISTS = {"row": "rows", "skip": "skipped", "broken": "broken"}


def _take(line: bytes, entry: dict[str, Any]) -> None:
    try:
        ((key, value),) = json.loads(line).items()
        if key in _LISTS:
            entry[_LISTS[key]].append(value)
        else:  # "failed" or "unable"
            entry["state"], entry["reason"] = {"failed": "failed", "unable": "skipped"}[key], value
    except (ValueError, KeyError, AttributeError):
        show(f"  not a row: {line.decode(errors='replace')[:200]}")  # a library printed to stdout


def _read(process: "subprocess.Popen[bytes]", end: float, take: Callable[[bytes], None]) -> bool:
    """False when the time was over first."""
    assert process.stdout is not None
    descriptor, buffer = process.stdout.fileno(), b""
    while (left := end - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
        read = os.read(descriptor, 1 << 16)
        if not read:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
                return True
            return False
        *lines, buffer = (buffer + read).split(b"\n")
        for line in lines:
            take(line)
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """First SIGTERM, so that it stops its daemon; then SIGKILL for what is left of its group."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    end_group(process.pid)
    reap(process)
    assert process.stdout is not None
    process.stdout.close()


def run(
    group: Group,
    config: Path,
    environment: dict[str, str],
    limit: float,
    entry: dict[str, Any],
    changed: Callable[[], None],
) -> None:
    """Fills `entry` (state, reason, rows, skipped, broken, seconds) and calls `changed` after each addition."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "gpubench.child", group.function, str(config)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=tied(signal.SIGTERM),
    )

    def take(line: bytes) -> None:
        _take(line, entry)
        entry["seconds"] = round(time.monotonic() - started, 1)
        changed()

    try:
        done = _read(process, started + limit, take)
    except BaseException:
        entry["state"], entry["reason"] = "interrupted", "the whole run was ended"
        changed()
        raise
    finally:
        _end(process)
    entry["seconds"] = round(time.monotonic() - started, 1)
    if not done:
        entry["state"], entry["reason"] = "timed out", f"stopped after its limit of {limit:.0f} s"
    elif process.returncode != 0:
        entry["state"] = "failed"
        entry["reason"] = entry["reason"] or f"its process ended with status {process.returncode}"
    elif entry["broken"]:
        entry["state"], entry["reason"] = "incomplete", f"{len(entry['broken'])} of what it measures failed"
    elif entry["state"] == "running":
        entry["state"] = "ok"
    elif entry["rows"]:  # one thing could not be had, others were measured
        entry["state"] = "incomplete"
    changed()
