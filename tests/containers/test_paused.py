"""A paused container's time is lent, and comes back when it resumes. The simulator's books are the judge."""

import json
import subprocess

import pytest
from run.waiting import until

from gpushare.demo.bundle import TENANT_PROGRAM

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("machine")]


def test_a_paused_container_lends_its_time(runc, node):
    other = node.spin("1GiB", "30%")
    process = runc.start(TENANT_PROGRAM, annotations={"memory": "1GiB", "time": "70%"})

    def order(verb: str) -> None:
        done = subprocess.run([*runc.wrapper, verb, runc.names[-1]], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    with process:
        try:
            assert json.loads(process.stdout.readline())["event"] == "ready"
            (pid,) = [grant["pid"] for grant in node.client.grants() if grant["kind"] == "container"]
            for tenant in (process, other.process):
                tenant.stdin.write("run 500000\n")
                tenant.stdin.flush()
            until(lambda: min(node.busy(pid, other.pid)) > 0, "both run", 20)
            until(lambda: 600 < node.shares(1, pid, other.pid)[0] < 800, "each has its share", 40)
            order("pause")
            until(lambda: node.shares(0.1, pid, other.pid)[0] == 0, "it stands still", 20)

            def all_is_lent() -> bool:
                before = node.busy(pid, other.pid)
                assert node.shares(1, pid, other.pid)[0] == 0
                after = node.busy(pid, other.pid)
                assert after[0] == before[0]
                # Its own 30 % would be less than a third of a second.
                return after[1] - before[1] > 700_000_000

            until(all_is_lent, "the other has nearly all of the device", 40)
            grant = next(grant for grant in node.client.grants() if grant["pid"] == pid)
            assert (grant["phase"], grant["devices"][0]["time_milli"]) == ("active", 700)
            order("resume")
            until(lambda: node.shares(0.2, pid, other.pid)[0] > 600, "its time comes back", 20)
            until(lambda: 600 < node.shares(1, pid, other.pid)[0] < 800, "each has its share again", 40)
        finally:
            subprocess.run([*runc.wrapper, "resume", runc.names[-1]], capture_output=True)
            process.kill()
            other.kill()
    runc.delete_all()
