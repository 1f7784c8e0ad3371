"""A program whose clock is ahead of the host's or behind, as in every container that CRIU restores."""

import os

import pytest
from run.running import SPIN, Daemon, Tenant
from run.waiting import until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a time namespace is made by root"),
    pytest.mark.skipif(not os.path.exists("/proc/self/timens_offsets"), reason="the kernel has no time namespaces"),
]


@pytest.mark.parametrize("offset", [100_000, -1])
def test_a_clock_of_its_own_takes_and_costs_nothing(daemon: Daemon, offset: int) -> None:
    usual = Tenant(daemon.run("1GiB", "50%", SPIN, gpu="0"))
    namespace = ("unshare", "--time", "--monotonic", str(offset), "--fork", "--kill-child")
    other = Tenant(daemon.run("1GiB", "50%", *namespace, SPIN, gpu="0"))
    pids = usual.pid, int(other.ready["pid"])
    try:
        for tenant in (usual, other):
            tenant.tell("run 500000")
        until(lambda: all(daemon.busy(*pids)), "both run")
        before = daemon.busy(*pids)
        until(lambda: sum(daemon.busy(*pids)) - sum(before) > 1_000_000_000, "they run for a second")
        first, second = (now - then for then, now in zip(before, daemon.busy(*pids), strict=True))
        assert 0.25 < first / (first + second) < 0.75  # 0.97 by a clock that is off
    finally:
        usual.kill()
        other.kill()
