"""Case 25 of README.md: failures of the daemon. Case 24 concerns containers: tests/containers."""

import subprocess
import sys
import time
from pathlib import Path

from run.running import SPIN, Daemon
from run.waiting import until

HERE = Path(__file__).resolve().parent
COUNT = 200


def test_25_storms_and_restarts(node: Daemon) -> None:
    """Elsewhere: 200 processes that start at once take a minute, serialised by a lock of the whole node; when the
    scheduler dies its clients die with it, or later ones start without a limit. Here: starts are not serialised;
    without a daemon, tenants continue and no new tenant starts; the next daemon takes all of them over."""
    bystander = node.spin("1GiB", "10%")
    bystander.tell("run 200000")
    storm = subprocess.Popen(
        node.run("8GiB", "50%", sys.executable, HERE / "storm.py", SPIN, str(COUNT)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert storm.stdin is not None
    assert storm.stdout is not None
    with storm:
        ready, seconds = storm.stdout.readline().split()
        print(f"{COUNT} processes ready after {float(seconds):.2f} s")
        assert int(ready) == COUNT
        assert float(seconds) < 25
        [grant] = [one for one in node.client.grants() if one["pid"] == storm.pid]
        assert len(grant["processes"]) == COUNT
        node.kill()
        bystander.tell("idle")
        bystander.tell("run 200000")
        time.sleep(0.3)
        assert bystander.tell("idle")["kernels"] > 0, "work that began after the daemon's death is done"
        late = subprocess.run(node.run("1GiB", "10%", "echo", "started"), capture_output=True, text=True)
        assert (late.returncode, late.stdout) == (125, ""), late
        node.start()
        until(lambda: len(node.client.grant(grant["id"])["processes"]) == COUNT, "all joined again", 30)
        storm.stdin.close()
        assert storm.wait(30) == 0
    bystander.close()
    until(lambda: not node.client.grants(), "nothing is left", 20)
    assert node.books()["bytes"] == 0
