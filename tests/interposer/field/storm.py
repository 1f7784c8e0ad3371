"""Runs inside a grant: storm.py PROGRAM COUNT

Starts COUNT tenants at once, prints the seconds until all are ready, and stops them when its stdin is closed."""

import subprocess
import sys
import time

began = time.monotonic()
tenants = [
    subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(int(sys.argv[2]))
]
ready = sum('"ready"' in tenant.stdout.readline() for tenant in tenants)
print(ready, time.monotonic() - began, flush=True)
sys.stdin.read()
for tenant in tenants:
    tenant.kill()
    tenant.wait()
