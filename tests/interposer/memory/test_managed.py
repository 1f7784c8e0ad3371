"""Managed memory: charged in full, or refused as by a device that does not support it. What ends with a thread, and
with an exec."""

from collections.abc import Callable

import pytest
from memory.memorybooks import agreed, truth
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB, OUT_OF_MEMORY, Client
from run.waiting import until

from gpushare._native import lib

STEP = 32 * MIB
NOT_SUPPORTED = 801
INVALID = 1
MANAGED_MEMORY, CONCURRENT_MANAGED_ACCESS = 83, 89  # CU_DEVICE_ATTRIBUTE_*
DEVICE, MANAGED_KIND = 1, 2  # CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ALLOCATION_TYPE_MANAGED
Memory = Callable[[Grant], Client]


@pytest.fixture
def client(grant: Grant, memory: Memory) -> Client:
    made = memory(grant)
    made.ok("init", "retain 0", "stream")
    return made


def test_managed_memory_is_charged_in_full(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("managed 1000000 1", f"place {DEVICE} {MANAGED_KIND}", "frompool 1000 0 1")
    assert agreed(grant, sim) == CONTEXT + 1_000_448 + STEP
    assert client(f"managed {2 << 30} 1").result == OUT_OF_MEMORY
    assert client(f"attribute {MANAGED_MEMORY}").one == 1
    client.ok("free 0", "freeasync 1 1", "sync 1")
    assert agreed(grant, sim) == CONTEXT


def test_a_grant_can_refuse_managed_memory(grant: Grant, sim: Simulator, memory: Memory) -> None:
    grant.limits.managed = lib.GS_MANAGED_REFUSE
    client = memory(grant)
    client.ok("init")
    assert client("managed 512 1").result == 201, "no context: the driver's own answer comes first"
    client.ok("retain 0", "stream")
    assert client("managed 512 1").result == NOT_SUPPORTED
    assert client("managed 512 7").result == INVALID
    assert client(f"place {DEVICE} {MANAGED_KIND}").result == NOT_SUPPORTED
    for attribute in (MANAGED_MEMORY, CONCURRENT_MANAGED_ACCESS):
        assert client.ok(f"attribute {attribute}").one == 0
    assert client.ok("attribute 16").one > 0, "other attributes are the device's own"
    client.ok("alloc 512", "async 512 1")
    assert agreed(grant, sim) == CONTEXT + 512 + STEP


def test_a_child_and_an_exec_start_with_nothing(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("graph", f"node 0 {4 * MIB} 0", "nodefree 0 0", "exec 0 0", "launch 0 1", "sync 1")
    client.ok("async 1000 1", "alloc 512", "hold 1", "freeasync 2 1")
    before = grant.charged()
    assert before == truth(sim) == CONTEXT + 4 * MIB + STEP + 512
    client.ok("fork")
    assert grant.charged() == before == truth(sim)
    client.say("execself")
    until(lambda: truth(sim) == 0, "the program that was is gone")
    grant.give_back()
    client.ok("init", "retain 0", "async 1000 0")
    assert agreed(grant, sim) == CONTEXT + STEP


def test_threads_that_end_leave_what_they_took(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok(f"race 20 {MIB}", "syncall", "graphtrim 0")
    assert agreed(grant, sim) == CONTEXT
    client.end()
    until(lambda: truth(sim) == 0, "the simulator has it all back")
