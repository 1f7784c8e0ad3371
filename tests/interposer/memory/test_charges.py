"""Charges for every kind of client: the grant's page and the simulator agree to the byte."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pages.handmade import Grant, Simulator
from run.driverclient import CONTEXT, LIMIT, MIB, OUT_OF_MEMORY, WAYS, Client, truth
from run.waiting import until

VMM = 2 * MIB
POOL = 32 * MIB
Start = Callable[..., Client]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_the_driver_is_caught(grant: Grant, sim: Simulator, start: Start, way: str) -> None:
    client = start(grant, way)
    client.ok("init", "retain 0", "alloc 1000000")
    assert grant.charged() == truth(sim, client.pid) == CONTEXT + 1_000_448
    assert client("total 0").one == LIMIT
    info = client("info")
    assert (info.one, info.two) == (LIMIT - CONTEXT - 1_000_448, LIMIT)
    assert client(f"alloc {LIMIT}").result == OUT_OF_MEMORY
    client.ok("free 0", "release 0")
    assert grant.charged() == truth(sim, client.pid) == 0


@pytest.mark.parametrize("way", WAYS)
def test_placed_as_libcuda(
    grant: Grant,
    sim: Simulator,
    client_program: Path,
    placed: Path,
    environment: Callable[..., dict[str, str]],
    way: str,
) -> None:
    client = Client(client_program, way, {**environment(grant, ""), "LD_LIBRARY_PATH": str(placed)})
    try:
        client.ok("init", "ctx 0", "alloc 4096")
        assert grant.charged() == truth(sim, client.pid) == CONTEXT + 4096
        assert client("total 0").one == LIMIT
    finally:
        client.kill()


STEPS = [
    ("alloc 1", 512),
    ("alloc 513", 1024),
    ("alloc1 4097", 4608),
    ("managed 100000", 100_352),
    ("pitch 1000 33", 1024 * 33),
    ("free 0", -512),
    ("free 3", -100_352),
    ("free 4", -1024 * 33),
    ("array 100 50", 80_384),
    ("array3 16 16 4", 4096),
    ("mipmap 64 64 0", None),
    ("unarray 0", -80_384),
    ("unmipmap 0", None),
    (f"create {VMM}", VMM),
    ("space 16777216", 0),
    ("map 0 0", 0),
    ("drop 0", 0),  # the mapping keeps it
    ("hold 0", 0),
    (f"unmap 0 {VMM}", 0),  # the new handle keeps it
    ("drop 1", -VMM),
    (f"create {3 * VMM}", 3 * VMM),
    ("drop 2", -3 * VMM),
    ("async 1000", POOL),
    ("async 1000", 0),
    ("async 40000000", 2 * POOL),
    ("freeasync 5", 0),
    ("freeasync 6", 0),
    ("freeasync 7", 0),
    ("sync", -3 * POOL),
    ("pool", 0),
    (f"frompool {POOL + 1} 0", 2 * POOL),
    ("freeasync 8", 0),
    ("trim 0 0", None),
    ("unpool 0", None),
    ("ctx 0", CONTEXT),
    ("alloc 8192", 8192),
    ("destroy 1", -CONTEXT - 8192),
    ("ctx4 0", CONTEXT),
    ("destroy 2", -CONTEXT),
]


def test_every_allocation_is_charged_exactly(grant: Grant, sim: Simulator, start: Start) -> None:
    client = start(grant)
    client.ok("init", "retain 0")
    expected = CONTEXT
    for step, change in STEPS:
        client.ok(step)
        page, books = grant.charged(), truth(sim, client.pid)
        assert page == books, f"after {step}: charged {page}, the simulator has {books}"
        if change is not None:
            assert page - expected == change, f"{step} changed the charge by {page - expected}"
        expected = page
    client.ok("release 0")
    assert grant.charged() == truth(sim, client.pid) == 0


def test_reset_gives_everything_back(grant: Grant, sim: Simulator, start: Start) -> None:
    client = start(grant)
    client.ok("init", "retain 0", "alloc 5000", "managed 5000", "array 10 10", "reset 0")
    assert grant.charged() == truth(sim, client.pid) == 0
    client.ok("retain 0", "alloc 512")
    assert grant.charged() == truth(sim, client.pid) == CONTEXT + 512


@pytest.mark.parametrize(
    ("asked", "pages"), [(f"alloc {VMM}", 1), (f"alloc {VMM + 1}", 2), ("alloc 100000000", 48), ("pitch 1000 5000", 3)]
)
def test_large_allocations_take_whole_pages(grant: Grant, sim: Simulator, start: Start, asked: str, pages: int) -> None:
    client = start(grant)
    client.ok("init", "retain 0", asked)
    assert grant.charged() == truth(sim, client.pid) == CONTEXT + pages * VMM
    client.ok(f"alloc {LIMIT - CONTEXT - pages * VMM}")
    assert client("alloc 1").result == OUT_OF_MEMORY
    client.ok("free 0")
    assert grant.charged() == truth(sim, client.pid) == LIMIT - pages * VMM


def test_the_limit_is_exact(grant: Grant, sim: Simulator, start: Start) -> None:
    client = start(grant)
    client.ok("init", "retain 0")
    room = LIMIT - CONTEXT
    assert client(f"alloc {room + 1}").result == OUT_OF_MEMORY
    client.ok(f"alloc {room}")
    assert client("info").one == 0
    for refused in ("alloc 1", "managed 1", "array 1 1", f"create {VMM}", "pitch 4 1", "async 1", "ctx 0"):
        assert client(refused).result == OUT_OF_MEMORY, refused
    assert grant.charged() == truth(sim, client.pid) == LIMIT
    client.ok("free 0", "alloc 512")
    assert grant.charged() == truth(sim, client.pid) == CONTEXT + 512


def test_a_full_grant_still_allocates_inside_its_pool(grant: Grant, sim: Simulator, start: Start) -> None:
    """With less than one growth step left, the free memory of a pool is still usable."""
    client = start(grant)
    client.ok(
        "init", "retain 0", "async 1000", f"alloc {LIMIT - CONTEXT - POOL - VMM}", f"alloc {MIB}", f"alloc {MIB - 1024}"
    )
    client.ok("async 1000000", "async 1000000")
    assert grant.charged() == truth(sim, client.pid) == LIMIT - 1024
    assert client(f"async {POOL}").result == OUT_OF_MEMORY
    assert grant.charged() == truth(sim, client.pid)


def test_foreign_pointers_get_the_drivers_answer(grant: Grant, start: Start) -> None:
    client = start(grant)
    client.ok("init", "retain 0", "alloc 512")
    before = grant.charged()
    assert client("freeat 4096").result == 1
    assert client("freeat 0").result == 0
    client.ok("free 0")
    assert client("free 0").result == 1
    assert grant.charged() == before - 512


def test_processes_share_one_limit(grant: Grant, sim: Simulator, start: Start) -> None:
    first, second = start(grant), start(grant)
    first.ok("init", "retain 0", f"alloc {1 << 30}")
    second.ok("init", "retain 0")
    assert second("info").one == LIMIT - (1 << 30) - 2 * CONTEXT
    assert second(f"alloc {1 << 30}").result == OUT_OF_MEMORY
    first.ok("free 0")
    second.ok(f"alloc {1 << 30}")
    assert grant.charged() == truth(sim, first.pid) + truth(sim, second.pid)


def test_racing_processes_never_exceed(grant: Grant, sim: Simulator, start: Start) -> None:
    clients = [start(grant) for _ in range(4)]
    for client in clients:
        client.ok("init", "retain 0")
    step = (LIMIT - 4 * CONTEXT) // 5 // 512 * 512
    with ThreadPoolExecutor(len(clients)) as pool:
        refused = list(pool.map(lambda client: client(f"churn 300 {step}").one, clients))
    assert sum(refused) > 0, "no race: everything always fitted"
    assert sim.books()["devices"][0]["peak_bytes"] <= LIMIT
    assert grant.charged() == 4 * CONTEXT


def test_sigkill_leaves_only_the_slots_bytes(grant: Grant, sim: Simulator, start: Start) -> None:
    victim, neighbour = start(grant), start(grant)
    for client in (victim, neighbour):
        client.ok("init", "retain 0", "alloc 1048576")
    victim.say("churn 100000000 512")
    until(lambda: truth(sim, victim.pid) > 0, "the victim allocates")
    victim.kill()
    until(lambda: truth(sim, victim.pid) == 0, "the simulator has it all back")
    assert grant.slot(0).memory_bytes >= CONTEXT + MIB
    grant.give_back()
    assert grant.charged() == truth(sim, neighbour.pid) == CONTEXT + MIB
    neighbour.ok(f"alloc {LIMIT - CONTEXT - 2 * MIB}", f"alloc {MIB}")


def test_a_forked_child_is_not_its_parent(grant: Grant, sim: Simulator, start: Start) -> None:
    client = start(grant)
    client.ok("init", "retain 0", "alloc 512")
    before = grant.slot(0).memory_bytes
    client.ok("fork")
    assert grant.slot(0).memory_bytes == before == truth(sim, client.pid)
    client.ok("free 0")
    assert grant.slot(0).memory_bytes == CONTEXT


def test_racing_threads_of_one_process(grant: Grant, sim: Simulator, start: Start) -> None:
    client = start(grant)
    client.ok("init", "retain 0")
    step = (LIMIT - CONTEXT) // 5 // 512 * 512
    assert client(f"threads 4 200 {step}").one > 0, "no race: everything always fitted"
    assert sim.books()["devices"][0]["peak_bytes"] <= LIMIT
    assert grant.charged() == truth(sim, client.pid) == CONTEXT


def test_null_pointers_and_no_context(grant: Grant, start: Start) -> None:
    client = start(grant)
    assert client("alloc 512").result == 3  # CUDA_ERROR_NOT_INITIALIZED
    client.ok("init")
    assert client("alloc 512").result == 201  # CUDA_ERROR_INVALID_CONTEXT
    assert client("info").result == 201
    client.ok("retain 0")
    before = grant.charged()
    assert client("nulls").one == 0xFF
    assert grant.charged() == before == CONTEXT


def test_two_devices(pair: Simulator, both: Grant, start: Start) -> None:
    sim, grant = pair, both
    client = start(grant)
    client.ok("init", "retain 0", "alloc 1000", "retain 1", "alloc 3000", "async 100")
    assert grant.slot(0, 0).memory_bytes == truth(sim, client.pid, 0) == CONTEXT + 1024
    assert grant.slot(0, 1).memory_bytes == truth(sim, client.pid, 1) == CONTEXT + 3072 + POOL
    client.ok("free 0", "reset 1")
    assert grant.slot(0, 0).memory_bytes == truth(sim, client.pid, 0) == CONTEXT
    assert grant.slot(0, 1).memory_bytes == truth(sim, client.pid, 1) == 0


def test_ordinals_follow_the_uuid(pair: Simulator, both: Grant, start: Start) -> None:
    """The grant numbers devices differently from the node, and CUDA follows it; a program may number them anew."""
    sim, grant = pair, both
    grant.limits.device[0].uuid, grant.limits.device[1].uuid = sim.uuids[1], sim.uuids[0]
    client = start(grant)
    client.ok("init", "retain 0")
    assert grant.slot(0, 0).memory_bytes == truth(sim, client.pid, 1) == CONTEXT
    client = start(grant, CUDA_VISIBLE_DEVICES="1")
    client.ok("init", "retain 0")
    assert grant.slot(1, 1).memory_bytes == truth(sim, client.pid, 0) == CONTEXT


def test_a_device_of_somebody_else(pair: Simulator, both: Grant, start: Start) -> None:
    sim, grant = pair, both
    grant.limits.device[1].uuid = bytes(16)
    client = start(grant)
    client.ok("init", "retain 0")
    assert client("retain 1").result == 101  # CUDA_ERROR_INVALID_DEVICE from the driver
    assert client("ctx 1").result == 101
    assert truth(sim, client.pid, 1) == 0
    assert client.end() == ""
