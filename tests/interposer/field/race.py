"""Runs inside a grant: race.py PROGRAM TENANTS ROUNDS SIZE

Starts tenants and lets all of them allocate at the same moment, in each of the rounds. Prints the number of successful
allocations of each round as JSON."""

import json
import subprocess
import sys
import threading

program, tenants, rounds, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
processes = [
    subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(tenants)
]


def tell(process, command):
    process.stdin.write(command + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def attempt(process, barrier, got):
    barrier.wait()
    if tell(process, f"alloc {size}")["ok"]:
        got.append(process)


for process in processes:
    assert json.loads(process.stdout.readline())["event"] == "ready"
winners = []
for _ in range(rounds):
    barrier, got = threading.Barrier(tenants), []
    threads = [threading.Thread(target=attempt, args=(process, barrier, got)) for process in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners.append(len(got))
    for process in got:
        tell(process, "free")
print(json.dumps(winners))
for process in processes:
    process.communicate("quit\n")
