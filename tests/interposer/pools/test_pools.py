"""Pools: charged the memory they reserve, usable up to the limit, never beyond it; frees in stream order."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

import pytest
from memory.memorybooks import agreed, truth
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, MIB, OUT_OF_MEMORY, Client
from run.interposed import Interpose, Interposed

STEP = 32 * MIB
LIMIT = 2 << 30  # of a hand-made grant
Memory = Callable[[Grant], Client]


@pytest.fixture
def client(grant: Grant, memory: Memory) -> Client:
    made = memory(grant)
    made.ok("init", "retain 0", "stream")
    return made


def held(grant: Grant, sim: Simulator) -> int:
    return agreed(grant, sim) - CONTEXT


def test_nearly_all_of_the_limit_is_usable(grant: Grant, sim: Simulator, client: Client) -> None:
    """A pool grows by 32 MiB. In steps of 2 MiB, all but the last growth is usable."""
    room = LIMIT - CONTEXT
    usable = client(f"fill {2 * MIB} 0 1").one
    assert usable == room // STEP * STEP
    assert usable >= room * 0.99
    assert held(grant, sim) == usable
    client.ok(f"alloc {room - usable}")
    assert held(grant, sim) == room


def test_a_capped_pool_grows_finely_to_its_cap(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok(f"pool {40 * MIB}", f"frompool {30 * MIB} 0 1", f"frompool {4 * MIB} 0 1")
    assert held(grant, sim) == 36 * MIB
    assert client(f"frompool {6 * MIB} 0 1").result == OUT_OF_MEMORY
    client.ok(f"frompool {4 * MIB} 0 1")
    assert held(grant, sim) == 40 * MIB
    client.ok("freeasync 0 1", "freeasync 1 1", "freeasync 2 1", "sync 1", "unpool 0")
    assert held(grant, sim) == 0


def test_a_capped_pool_fits_where_a_step_does_not(grant: Grant, sim: Simulator, client: Client) -> None:
    grant.set_limit(CONTEXT + 10 * MIB)
    client.ok(f"pool {8 * MIB}", f"frompool {2 * MIB} 0 1", f"frompool {6 * MIB} 0 1")
    assert held(grant, sim) == 8 * MIB
    assert client(f"frompool {2 * MIB} 0 1").result == OUT_OF_MEMORY
    assert client(f"async {2 * MIB} 1").result == OUT_OF_MEMORY
    client.ok(f"alloc {2 * MIB}")
    assert held(grant, sim) == 10 * MIB


@pytest.mark.parametrize("wait", ["sync 1", "syncall", "wait 0"])
def test_the_release_threshold(grant: Grant, sim: Simulator, client: Client, wait: str) -> None:
    client.ok("event", "default 0", f"threshold 0 {STEP}")
    client.ok(*[f"async {STEP} 1"] * 3, *[f"freeasync {i} 1" for i in range(3)], "record 0 1", wait)
    assert held(grant, sim) == STEP
    client.ok("trim 0 0")
    assert held(grant, sim) == 0


def test_a_full_grant_allocates_behind_the_last_block_of_its_pool(grant: Grant, sim: Simulator, client: Client) -> None:
    """What else is free in a pool only the driver knows, and a growth that does not fit is refused in advance, not
    tried and undone. Once a piece is unused, it is given back and the pool can grow again."""
    grant.set_limit(CONTEXT + STEP + 31 * MIB)
    client.ok(f"async {12 * MIB} 1", f"async {12 * MIB} 1", "freeasync 0 1", "sync 1")  # 12 free, 12 used, 8 free
    assert client(f"async {16 * MIB} 1").result == OUT_OF_MEMORY
    client.ok(f"async {8 * MIB} 1")
    assert client(f"async {12 * MIB} 1").result == OUT_OF_MEMORY
    assert held(grant, sim) == STEP
    client.ok("freeasync 1 1", "freeasync 2 1", f"async {30 * MIB} 1")
    assert held(grant, sim) == STEP


@pytest.mark.slow  # it waits for 5 s, as docs/concepts/inside/allocation.md states
def test_a_full_grant_does_not_wait_for_ever_for_a_stream_that_its_program_holds(
    grant: Grant, sim: Simulator, client: Client
) -> None:
    grant.set_limit(CONTEXT + STEP)
    client.ok(f"async {20 * MIB} 1", "hold 1", "freeasync 0 1")
    watchdog = Timer(60, client.kill)
    watchdog.start()
    assert client(f"async {20 * MIB} 1").result == OUT_OF_MEMORY
    watchdog.cancel()
    client.ok("go", "sync 1", f"async {20 * MIB} 1")
    assert held(grant, sim) == STEP


def test_a_refusal_leaves_the_stream_usable(grant: Grant, sim: Simulator, client: Client) -> None:
    assert client(f"async {LIMIT} 1").result == OUT_OF_MEMORY
    assert client(f"async {1 << 62} 1").result == OUT_OF_MEMORY
    client.ok("async 1000 1", "freeasync 0 1", "sync 1")
    assert held(grant, sim) == 0


@pytest.mark.parametrize(
    "asked",
    [f"async {(1 << 64) - 1} 1", f"async {LIMIT + MIB} 1", f"frompool {9 * MIB} 0 1", "launch 0 1", "upload 0 1"],
)
def test_what_can_never_fit_is_refused_at_once(grant: Grant, sim: Simulator, client: Client, asked: str) -> None:
    """The stream stays blocked until after the answer, and memory cached by another pool stays there."""
    client.ok(f"pool {8 * MIB}", "default 0", f"threshold 1 {STEP}", f"async {STEP} 1", "freeasync 0 1", "sync 1")
    client.ok(
        "graph",
        f"node 0 {LIMIT + MIB} 0",
        "exec 0 0",
        f"alloc {LIMIT - CONTEXT - STEP - 2 * MIB}",
        f"alloc {MIB}",
        "hold 1",
    )
    watchdog = Timer(20, client.kill)
    watchdog.start()
    assert client(asked).result == OUT_OF_MEMORY
    watchdog.cancel()
    assert held(grant, sim) == LIMIT - CONTEXT - MIB
    client.ok("go", "sync 1")


def test_freed_memory_of_queued_work_comes_back_before_a_refusal(grant: Grant, sim: Simulator, client: Client) -> None:
    """As a driver does on a full device: the stream is waited for and other pools are trimmed."""
    client.ok(f"pool {0}", f"frompool {LIMIT - CONTEXT - STEP} 0 1", "freeasync 0 1", f"async {LIMIT // 2} 1")
    assert held(grant, sim) == LIMIT // 2


def test_a_destroyed_pool_is_charged_until_its_last_block_is_back(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("pool 0", f"frompool {STEP} 0 1", f"frompool {STEP} 0 1", "unpool 0")
    assert held(grant, sim) == 2 * STEP
    client.ok("freeasync 0 1", "sync 1")
    assert held(grant, sim) == 2 * STEP
    client.ok("hold 1", "freeasync 1 1")
    assert grant.charged() == truth(sim) == CONTEXT + 2 * STEP, "the free is queued"
    client.ok("go", "sync 1")
    assert held(grant, sim) == 0


@pytest.mark.parametrize("end", ["reset 0", "release 0"])
@pytest.mark.parametrize("unpool", ["before", "after", "never"])
def test_blocks_end_with_their_context(grant: Grant, sim: Simulator, client: Client, end: str, unpool: str) -> None:
    """Whether their pool is destroyed before the context, after it, or not at all."""
    client.ok("pool 0", f"frompool {STEP} 0 1", f"frompool {STEP} 0 1", "frompool 1000 0 1", "freeasync 0 1")
    client.ok(*["unpool 0"] * (unpool == "before"), end, *["unpool 0"] * (unpool == "after"))
    assert grant.charged() == truth(sim) == 0
    client.ok("retain 0", "stream", "pool 0", f"frompool {STEP} 1 2")
    assert held(grant, sim) == STEP
    client.ok("unpool 1", "freeasync 3 2", "sync 2")
    assert held(grant, sim) == 0


def test_a_destroyed_pool_outlives_one_context_of_its_blocks(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("pool 0", f"frompool {STEP} 0 1", "ctx 0", "stream", f"frompool {STEP} 0 2", "unpool 0", "destroy 1")
    assert grant.charged() == truth(sim) == CONTEXT + 2 * STEP
    client.ok("retain 0", "freeasync 0 1", "sync 1")
    assert held(grant, sim) == 0


def test_a_queued_free_ends_with_the_context_of_its_stream(grant: Grant, sim: Simulator, client: Client) -> None:
    """No call waits for the free before the context ends."""
    client.ok("pool 0", f"frompool {STEP} 0 1", "alloc 4096", "ctx 0", "stream", "hold 2", "unpool 0")
    client.ok("freeasync 0 2", "freeasync 1 2", "go", "destroy 1")
    assert held(grant, sim) == 0


def test_a_block_freed_in_a_stream_of_another_context(grant: Grant, sim: Simulator, client: Client) -> None:
    """The last block of a destroyed pool; the block's context ends before the stream reaches the free."""
    client.ok("pool 0", f"frompool {STEP} 0 1", "ctx 0", "stream", "hold 2", "unpool 0", "freeasync 0 2", "reset 0")
    assert grant.charged() >= truth(sim)
    client.ok("go", "sync 2")
    assert held(grant, sim) == 0


def test_memory_freed_in_a_stream_of_another_context_is_charged_until_it_is(
    grant: Grant, sim: Simulator, client: Client
) -> None:
    rest = LIMIT - 2 * CONTEXT
    client.ok("ctx 0", "stream", "hold 2", "retain 0", f"alloc {rest}", "freeasync 0 2")
    assert client(f"alloc {rest}").result == OUT_OF_MEMORY, "the stream has not come to the free"
    assert held(grant, sim) == LIMIT - CONTEXT
    client.ok("go", "sync 2", f"alloc {rest}")
    assert held(grant, sim) == LIMIT - CONTEXT


def test_what_one_stream_has_not_freed_hides_no_other(grant: Grant, interpose: Interpose) -> None:
    """However many frees are queued."""
    worker = interpose(grant)
    worker.do("""
        import ctypes
        flags = (ctypes.c_uint32 * 2).from_address(int(ok(d.cuMemHostAlloc(4096, 2)))); flags[:] = [0, 0]
        streams = [ok(d.cuStreamCreate(1)) for _ in flags]
        for i, s in enumerate(streams):
            ok(d.cuStreamWaitValue32(s, ctypes.addressof(flags) + 4 * i, 1, 0))
        blocks = [ok(d.cuMemAlloc(1 << 20)) for _ in range(1000)]
        for i, block in enumerate(blocks):
            ok(d.cuMemFreeAsync(block, streams[i % 2]))
    """)
    assert worker.charged() == CONTEXT + 1000 * MIB
    worker.do("flags[1] = 1; ok(d.cuStreamSynchronize(streams[1]))")
    assert worker.charged() == CONTEXT + 500 * MIB
    worker.do("flags[0] = 1; ok(d.cuStreamSynchronize(streams[0]))")
    assert worker.charged() == CONTEXT


@pytest.mark.parametrize("kind", ["alloc 4000000", "managed 4000000 1"])
def test_a_free_in_stream_order_is_charged_until_it_happened(
    grant: Grant, sim: Simulator, client: Client, memory: Memory, kind: str
) -> None:
    neighbour = memory(grant)
    neighbour.ok("init", "retain 0")
    rest = LIMIT - 2 * CONTEXT
    client.ok(kind, "hold 1", "freeasync 0 1")
    assert agreed(grant, sim) > 2 * CONTEXT, "the stream has not come to the free"
    assert neighbour(f"alloc {rest}").result == OUT_OF_MEMORY
    assert client(f"alloc {rest}").result == OUT_OF_MEMORY
    assert client("freeasync 0 1").result == client("free 0").result == 1, "freed is freed"
    client.ok("go", "sync 1")
    assert agreed(grant, sim) == 2 * CONTEXT
    neighbour.ok(f"alloc {rest}")
    assert agreed(grant, sim) == LIMIT


def test_frees_in_stream_order_come_back_when_they_are_needed(grant: Grant, sim: Simulator, client: Client) -> None:
    """No call synchronises: the next allocation that does not fit finds them."""
    client.ok(*["alloc 1048576"] * 600, "hold 1", *[f"freeasync {i} 1" for i in range(600)])
    assert held(grant, sim) == 600 * MIB
    client.ok("go", "event", "record 0 1", f"alloc {LIMIT // 4}")
    client.ok("wait 0")
    assert held(grant, sim) == LIMIT // 4
    client.ok(f"alloc {LIMIT - CONTEXT - LIMIT // 4}")
    assert held(grant, sim) == LIMIT - CONTEXT


def test_a_context_that_ends_takes_its_queued_frees_along(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("ctx 0", "stream", "alloc 4000000", "freeasync 0 2", "alloc 512", "destroy 1")
    assert held(grant, sim) == 0
    client.ok("retain 0", "sync 1", "reset 0")
    assert grant.charged() == truth(sim) == 0


def test_pools_of_host_memory_are_not_charged(grant: Grant, sim: Simulator, client: Client) -> None:
    client.ok("place 2 1", f"frompool {MIB} 0 1")
    assert client("reserved 0").one == STEP
    assert held(grant, sim) == 0


def test_what_is_no_pool_is_not_remembered_as_one(grant: Grant, sim: Simulator, client: Client) -> None:
    """A handle that was refused, and later is a new pool's, is charged."""
    client.ok("pool 0", "unpool 0")
    assert client(f"frompool {MIB} 0 1").result == 1
    client.ok("pool 0", f"frompool {MIB} 1 1")
    assert held(grant, sim) == STEP


@pytest.mark.parametrize("free", ["free 0", "freeasync 0 1"])
def test_the_exporter_of_a_pool_pays(grant: Grant, sim: Simulator, client: Client, memory: Memory, free: str) -> None:
    importer = memory(grant)
    importer.ok("init", "retain 0", "stream")
    client.ok("sharedpool", "frompool 1000 0 1", f"frompool {STEP} 0 1")
    shared = client.ok("export 0 1")
    assert agreed(grant, sim) == 2 * CONTEXT + 2 * STEP
    importer.ok(f"import {client.pid} {shared.one} {shared.two}")
    assert agreed(grant, sim) == 2 * CONTEXT + 2 * STEP
    assert importer("frompool 512 0 1").result == 1, (
        "the driver's own answer: nothing is allocated from an imported pool"
    )
    importer.ok(free, "sync 1")
    assert importer(free).result == 1
    importer.ok("trim 0 0", "unpool 0")
    assert agreed(grant, sim) == 2 * CONTEXT + 2 * STEP
    importer.ok("async 512 1")
    assert agreed(grant, sim) == 2 * CONTEXT + 3 * STEP
    client.ok("freeasync 0 1", "freeasync 1 1", "sync 1")
    assert agreed(grant, sim) == 2 * CONTEXT + STEP


def test_what_a_pool_has_is_not_reserved_again(grant: Grant, sim: Simulator, start: Memory) -> None:
    """A neighbour sees all remaining memory as free, and can allocate it, during a small allocation."""
    worker, neighbour = Interposed(sim, grant), start(grant)
    try:
        neighbour.ok("init", "retain 0")
        worker.do("""
            import threading
            s, stop = ok(d.cuStreamCreate(1)), threading.Event()
            ok(d.cuMemFreeAsync(ok(d.cuMemAllocAsync(1 << 20, s)), s))
            def churn():
                ok(d.cuCtxSetCurrent(ctx))
                while not stop.is_set():
                    ok(d.cuMemFreeAsync(ok(d.cuMemAllocAsync(1 << 20, s)), s))
            thread = threading.Thread(target=churn); thread.start()
        """)
        left = LIMIT - 2 * CONTEXT - STEP
        assert {neighbour("info").one for _ in range(3000)} == {left}
        for i in range(1000):
            neighbour.ok(f"alloc {left}", f"free {i}")
        worker.do("stop.set(); thread.join(); ok(d.cuStreamSynchronize(s))")
        assert agreed(grant, sim) == 2 * CONTEXT
    finally:
        worker.kill()


def test_racing_threads_and_processes(grant: Grant, sim: Simulator, memory: Memory) -> None:
    """Pools, graphs and frees in stream order of 3 processes with 6 threads each, in a grant that is too small: blocks
    of 36 MiB, for which a pool takes 64, never fit."""
    rounds, clients = 150, [memory(grant) for _ in range(3)]
    for client in clients:
        client.ok("init", "retain 0", "stream")
    grant.set_limit(3 * CONTEXT + 60 * MIB)
    with ThreadPoolExecutor(len(clients)) as pool:
        refused = list(pool.map(lambda client: client(f"race {rounds} {12 * MIB}").one, clients))
    assert 0 < sum(refused) < len(clients) * 6 * rounds
    for client in clients:
        client.ok("syncall", "graphtrim 0")
    assert agreed(grant, sim) == 3 * CONTEXT
