"""nvidia-smi next to a program that holds memory, in one share: smi.py BYTES COMMAND...

Starts COMMAND (a load program), lets it allocate BYTES, prints what nvidia-smi shows as one JSON object, and ends with
its stdin; until then the memory is held, and what is started keeps its grant.
"""

import json
import subprocess
import sys

size, *command = sys.argv[1:]


class RefusedError(Exception):
    """nvidia-smi gave no answer, or none with what was asked for."""


def smi(query: str) -> list[list[str]]:
    """Raises RefusedError."""
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=40,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RefusedError(str(error)) from None
    if done.returncode != 0:
        raise RefusedError((done.stderr or done.stdout).strip() or f"status {done.returncode}")
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]


def seen() -> dict[str, object]:
    """A process's memory stays text, since [N/A] is an answer too. Raises RefusedError."""
    rows = smi("--query-gpu=memory.total,memory.used")
    try:
        ((total, used),) = ((int(total), int(used)) for total, used in rows)
        apps = [[int(pid), memory] for pid, memory in smi("--query-compute-apps=pid,used_memory")]
    except ValueError as error:
        raise RefusedError(f"{error} in {rows}") from None
    return {"event": "smi", "total_mib": total, "used_mib": used, "apps": apps}


def answer(holder: "subprocess.Popen[str]") -> dict[str, object]:
    assert holder.stdout is not None
    found: dict[str, object] = json.loads(holder.stdout.readline())
    return found


holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
ready = answer(holder)
assert holder.stdin is not None
holder.stdin.write(f"alloc 1 {size}\n")
holder.stdin.flush()
held = answer(holder)
try:
    found = {**seen(), "holder": ready["pid"], "held_bytes": held["held_bytes"]}
except RefusedError as error:
    found = {"event": "refused", "why": str(error)[:160]}
print(json.dumps(found), flush=True)
sys.stdin.read()
holder.communicate()
