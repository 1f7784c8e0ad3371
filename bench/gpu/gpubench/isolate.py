"""A part in a process group of its own, with a time limit; what it has measured by then is kept."""

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

from gpubench.process import end_group, reap, tied
from gpubench.registry import Part
from gpubench.worker import say

_GRACE_SECONDS = 20.0
END_SECONDS = _GRACE_SECONDS + 5
"""What ending a part may take beyond its limit."""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """First politely, so that it stops its daemon; then all that is left of its group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    end_group(process.pid)
    reap(process)


def _take(line: bytes, entry: dict[str, Any]) -> None:
    try:
        message = json.loads(line)
        kinds = {"row": "rows", "skip": "skipped", "broken": "broken", "failed": "", "unable": ""}
        found = [(key, kinds[key], value) for key, value in message.items()]
    except (ValueError, KeyError, AttributeError):
        say(f"  not a row: {line.decode(errors='replace')[:200]}")  # a library printed to stdout
        return
    for key, kind, value in found:
        if kind:
            entry[kind].append(value)
        else:
            entry["reason"] = value
        if key == "unable":
            entry["state"] = "skipped"


def run(
    part: Part,
    config: Path,
    environment: dict[str, str],
    limit: float,
    entry: dict[str, Any],
    changed: Callable[[], None],
) -> None:
    """Fills `entry` (state, reason, rows, skipped, seconds) and calls `changed` after each addition."""
    started = time.monotonic()
    command = [sys.executable, "-m", "gpubench.child", part.function, str(config)]
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=tied(signal.SIGTERM),
    )
    assert process.stdout is not None
    descriptor, buffer = process.stdout.fileno(), b""
    timed_out = False
    try:
        while True:
            left = started + limit - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                timed_out = True
                break
            read = os.read(descriptor, 1 << 16)
            if not read:
                break
            *lines, buffer = (buffer + read).split(b"\n")
            for line in lines:
                _take(line, entry)
            entry["seconds"] = round(time.monotonic() - started, 1)
            changed()
        if not timed_out:
            process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        timed_out = True
    except BaseException:
        entry["state"], entry["reason"] = "interrupted", "the whole run was ended"
        changed()
        raise
    finally:
        if process.poll() is None:
            _end(process)
        end_group(process.pid)  # whatever it left behind
        process.stdout.close()
    entry["seconds"] = round(time.monotonic() - started, 1)
    if timed_out:
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
