"""Several processes of one grant that fill it at the same time: race.py COUNT PIECE COMMAND...

Starts COUNT of COMMAND (a load program), lets each allocate pieces until it is refused, prints what each holds as one
JSON object, and ends with its stdin.
"""

import json
import subprocess
import sys

count, piece, *command = sys.argv[1:]
racers = [
    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(int(count))
]


def answer(racer: "subprocess.Popen[str]") -> dict[str, object]:
    assert racer.stdout is not None
    line = racer.stdout.readline()
    if not line:
        sys.exit(f"a racer ended with status {racer.wait()}")
    found: dict[str, object] = json.loads(line)
    return found


for racer in racers:
    answer(racer)
for racer in racers:
    assert racer.stdin is not None
    racer.stdin.write(f"fill {piece}\n")
    racer.stdin.flush()
held = [answer(racer)["held_bytes"] for racer in racers]
print(json.dumps({"event": "raced", "held_bytes": held}), flush=True)
sys.stdin.read()
for racer in racers:
    racer.communicate()
