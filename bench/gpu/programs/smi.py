"""nvidia-smi beside a program that holds memory, in one share: smi.py BYTES COMMAND...

Starts COMMAND (a load program), lets it allocate BYTES, prints what nvidia-smi says as one JSON object, and ends with
its stdin; until then the memory is held.
"""

import json
import subprocess
import sys

size, *command = sys.argv[1:]


def smi(query: str) -> list[list[str]]:
    done = subprocess.run(
        ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        print(json.dumps({"event": "refused", "why": (done.stderr or done.stdout).strip()[:160]}), flush=True)
        sys.exit(0)
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines()]


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
total, used = (int(value) for value in smi("--query-gpu=memory.total,memory.used")[0])
apps = [[int(pid), memory] for pid, memory in smi("--query-compute-apps=pid,used_memory")]
print(
    json.dumps(
        {
            "event": "smi",
            "holder": ready["pid"],
            "held_bytes": held["held_bytes"],
            "total_mib": total,
            "used_mib": used,
            "apps": apps,
        }
    ),
    flush=True,
)
sys.stdin.read()
holder.communicate()
