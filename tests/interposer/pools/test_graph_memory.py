"""Memory of graphs: charged from the launch that reserves it to the trim that releases it."""

from collections.abc import Callable

import pytest
from memory.memorybooks import agreed, peak, truth
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB, OUT_OF_MEMORY, Client
from run.waiting import until

INVALID = 1
AUTO_FREE = 1
Memory = Callable[[Grant], Client]


@pytest.fixture
def client(grant: Grant, memory: Memory) -> Client:
    made = memory(grant)
    made.ok("init", "retain 0", "stream")
    return made


def held(grant: Grant, sim: Simulator) -> int:
    return agreed(grant, sim) - CONTEXT


@pytest.mark.parametrize("make", ["node", "node2", "captured"])
def test_a_launch_is_charged_what_the_graph_takes(grant: Grant, sim: Simulator, client: Client, make: str) -> None:
    if make == "captured":
        client.ok(f"capture 2 {3 * MIB} 1")
    else:
        client.ok("graph", f"{make} 0 {3 * MIB} 0", f"{make} 0 {3 * MIB} 0", "nodefree 0 0", "nodefree 0 1")
    client.ok("exec 0 0")
    assert held(grant, sim) == 0
    client.ok("launch 0 1")
    assert held(grant, sim) == 8 * MIB == client("graphmem 0").one  # pages of 2 MiB
    client.ok("sync 1")
    assert held(grant, sim) == 8 * MIB, "the device's graph pool keeps it"
    client.ok(*["launch 0 1"] * 20, "sync 1")
    assert held(grant, sim) == 8 * MIB
    client.ok("unexec 0", "ungraph 0")
    assert held(grant, sim) == 8 * MIB
    client.ok("graphtrim 0")
    assert held(grant, sim) == 0


def test_child_graphs_count(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("graph", f"node 0 {2 * MIB} 0", "nodefree 0 0")
    client.ok("graph", "child 1 0", f"node 1 {6 * MIB} 0", "nodefree 1 1", "exec 1 0", "launch 0 1", "sync 1")
    assert held(grant, sim) == 8 * MIB
    grant.set_limit(CONTEXT + 6 * MIB)
    client.ok("graphtrim 0")
    assert client("launch 0 1").result == OUT_OF_MEMORY
    assert held_now(grant, sim) == 0


def held_now(grant: Grant, sim: Simulator) -> int:
    """As held(), after the limit was lowered: the peak was reached before."""
    assert grant.charged() == truth(sim)
    return truth(sim) - CONTEXT


def test_over_the_limit_the_driver_is_not_asked(grant: Grant, sim: Simulator, client: Client) -> None:
    grant.set_limit(CONTEXT + 64 * MIB)
    client.ok("graph", f"node 0 {40 * MIB} 0", f"node 0 {26 * MIB} 0", "nodefree 0 0", "nodefree 0 1", "exec 0 0")
    for call in ("launch 0 1", "upload 0 1", "execup 0 1"):
        assert client(call).result == OUT_OF_MEMORY
        assert held(grant, sim) == 0
    assert peak(sim) == CONTEXT
    grant.set_limit(CONTEXT + 66 * MIB)
    client.ok("launch 0 1", "sync 1")
    assert held(grant, sim) == 66 * MIB
    client.ok(*["launch 0 1"] * 10, "sync 1")
    assert client("alloc 1").result == OUT_OF_MEMORY


def test_the_stream_is_usable_after_a_refusal(grant: Grant, sim: Simulator, client: Client) -> None:
    grant.set_limit(CONTEXT + 16 * MIB)
    client.ok("graph", f"node 0 {20 * MIB} 0", "nodefree 0 0", "exec 0 0")
    client.ok("graph", f"node 1 {16 * MIB} 0", "nodefree 1 1", "exec 1 0")
    assert client("launch 0 1").result == OUT_OF_MEMORY
    client.ok("launch 1 1", "sync 1", "launch 1 1", "sync 1")
    assert held(grant, sim) == 16 * MIB


def test_graphs_share_what_one_has_freed(grant: Grant, sim: Simulator, client: Client) -> None:
    """In a full grant, graphs that run one after another reuse the same memory."""
    grant.set_limit(CONTEXT + 34 * MIB)
    for number in range(3):
        client.ok("graph", f"node {number} {32 * MIB} 0", f"nodefree {number} {number}", f"exec {number} 0")
    for _ in range(3):
        client.ok("launch 0 1", "launch 1 1", "launch 2 1")
    client.ok("sync 1")
    assert held(grant, sim) == 32 * MIB


@pytest.mark.parametrize("how", ["upload", "instantiate"])
def test_upload_takes_the_memory_early(grant: Grant, sim: Simulator, client: Client, how: str) -> None:
    client.ok("graph", f"node 0 {10 * MIB} 0", "nodefree 0 0")
    client.ok("execup 0 1") if how == "instantiate" else client.ok("exec 0 0", "upload 0 1")
    assert held(grant, sim) == 10 * MIB
    client.ok("launch 0 1", "sync 1")
    assert held(grant, sim) == 10 * MIB


@pytest.mark.parametrize("free", ["free 0", "freeasync 0 1"])
def test_what_a_graph_leaves_is_freed_outside(grant: Grant, sim: Simulator, client: Client, free: str) -> None:
    client.ok("graph", f"node 0 {4 * MIB} 0", "exec 0 0")
    assert client(free).result == INVALID, "there is nothing there yet"
    client.ok("launch 0 1", "sync 1", "graphtrim 0")
    assert held(grant, sim) == 4 * MIB, "it is in use"
    assert client("launch 0 1").result == INVALID, "still not freed: the driver's own answer"
    assert held(grant, sim) == 4 * MIB
    client.ok(free, "sync 1")
    assert client(free).result == INVALID
    assert held(grant, sim) == 4 * MIB
    client.ok("launch 0 1", free, "sync 1", "graphtrim 0")
    assert held(grant, sim) == 0


def test_auto_free_on_launch(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("graph", f"node 0 {4 * MIB} 0", f"exec 0 {AUTO_FREE}", *["launch 0 1"] * 5, "sync 1")
    assert held(grant, sim) == 4 * MIB
    client.ok("free 0", "graphtrim 0")
    assert held(grant, sim) == 0


def test_a_graph_frees_what_another_left(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("graph", f"node 0 {4 * MIB} 0", "exec 0 0", "graph", "nodefree 1 0", "exec 1 0")
    client.ok("launch 0 1", "launch 1 1", "sync 1")
    assert held(grant, sim) == 4 * MIB
    client.ok("graphtrim 0")
    assert held(grant, sim) == 0


def test_reset_gives_it_back(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("graph", f"node 0 {4 * MIB} 0", "nodefree 0 0", "exec 0 0", "launch 0 1", "sync 1", "reset 0")
    assert grant.charged() == truth(sim) == 0


def test_an_executable_that_is_gone_is_forgotten(grant: Grant, sim: Simulator, client: Client) -> None:
    """Its handle is reused for a graph that allocates nothing."""
    grant.set_limit(CONTEXT + 4 * MIB)
    client.ok("graph", f"node 0 {8 * MIB} 0", "nodefree 0 0", "graph", "empty 1")
    for number in range(0, 40, 2):
        client.ok("exec 0 0", f"unexec {number}", "exec 1 0", f"launch {number + 1} 1", f"unexec {number + 1}")
    client.ok("sync 1")
    assert held(grant, sim) == 0


def test_a_captured_graph_outlives_its_source(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok(f"capture 1 {2 * MIB} 1", "exec 0 0")
    assert held(grant, sim) == 0
    client.ok("ungraph 0", "launch 0 1", "sync 1", "unexec 0", "graphtrim 0")
    assert held(grant, sim) == 0


def test_nodes_of_another_device_are_its_to_pay(pair: Simulator, both: Grant, memory: Memory) -> None:
    sim, grant = pair, both
    client = memory(grant)
    client.ok("init", "retain 1", "retain 0", "stream")
    client.ok("graph", f"node 0 {4 * MIB} 0", f"node 0 {6 * MIB} 1", "nodefree 0 0", "nodefree 0 1", "exec 0 0")
    grant.set_limit(CONTEXT + 4 * MIB, 1)
    assert client("launch 0 1").result == OUT_OF_MEMORY
    assert agreed(grant, sim, 0) == agreed(grant, sim, 1) == CONTEXT
    grant.set_limit(CONTEXT + 6 * MIB, 1)
    client.ok("launch 0 1", "sync 1")
    assert agreed(grant, sim, 0) == CONTEXT + 4 * MIB
    assert agreed(grant, sim, 1) == CONTEXT + 6 * MIB
    client.ok("graphtrim 1")
    assert agreed(grant, sim, 0) == CONTEXT + 4 * MIB
    assert agreed(grant, sim, 1) == CONTEXT


def test_sigkill_with_graph_memory(grant: Grant, sim: Simulator, client: Client, memory: Memory) -> None:
    client.ok("graph", f"node 0 {4 * MIB} 0", "exec 0 0", "launch 0 1", "sync 1")
    client.kill()
    until(lambda: truth(sim) == 0, "the simulator has it all back")
    assert grant.charged() == CONTEXT + 4 * MIB, "exactly the dead process's slot"
