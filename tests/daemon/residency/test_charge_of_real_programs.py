"""A program of gpushare run whose memory is moved: what its own cgroup and the pool's are charged."""

import contextlib
import os
from pathlib import Path

import pytest
from run.waiting import until

from gpushare.enforce import memory_cgroup
from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import FailedError

MIB = 1 << 20


@pytest.fixture
def tenant_cgroup():
    try:
        group = memory_cgroup.at_root(f"gpushare-test-moved-{os.getpid()}")
    except FailedError as error:
        pytest.skip(f"this machine charges memory to no cgroup that a test may make: {error}")
    yield group
    assert group.remove()


@pytest.mark.promise("host-pool-is-what-it-costs")
def test_its_own_is_charged_next_to_nothing(daemon, client, tenant_cgroup):
    with contextlib.closing(daemon.spin("4GiB", "50%", idle_memory="lend", gpu="0")) as program:
        tenant_cgroup.add(program.pid)
        [grant] = client.grants()
        for size in (256, 64):
            program.tell(f"alloc {size}MiB")
        before = memory_cgroup.charged(tenant_cgroup)
        done = daemon.cli("grant", "suspend", grant["id"], "--wait=30")
        assert done.returncode == 0, done.stderr
        pool = client.node()["host_pool"]
        assert (pool["used"], pool["reserved"]) == (320 * MIB, 0)
        own = Cgroup(Path(pool["cgroup"]), tenant_cgroup.v2)
        assert memory_cgroup.charged(own) >= 312 * MIB, "near what was filled: the kernel charges in batches"
        assert memory_cgroup.charged(tenant_cgroup) - before <= 8 * MIB
        assert program.tell("touch 3")["event"]
        until(lambda: client.node()["host_pool"]["free"] == pool["size"], "the pool has it back")
        assert memory_cgroup.charged(own) <= 64 * MIB
    until(lambda: client.grants() == [], "it has ended")


def test_after_a_kill_of_the_daemon_it_counts_what_programs_have(daemon, client):
    with contextlib.closing(daemon.spin("4GiB", "50%", idle_memory="lend", gpu="0")) as program:
        [grant] = client.grants()
        program.tell("alloc 64MiB")
        done = daemon.cli("grant", "suspend", grant["id"], "--wait=30")
        assert done.returncode == 0, done.stderr
        before = client.node()["host_pool"]
        assert before["used"] == 64 * MIB
        daemon.kill()
        daemon.start()
        pool = client.node()["host_pool"]
        assert (pool["used"], pool["reserved"], pool["segments"]) == (64 * MIB, 0, 1)
        assert program.tell("touch 2")["event"]
        until(lambda: client.node()["host_pool"]["free"] == pool["size"], "it has come back, and given it back")
    until(lambda: client.grants() == [], "it has ended")
