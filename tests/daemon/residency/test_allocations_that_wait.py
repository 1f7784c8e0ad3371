"""Real programs that allocate while their grant's memory is away: by the simulator's books none of them takes any of
the room that others may have."""

from pathlib import Path
from typing import Any

import pytest
from memory import growing, moving
from run.movedprogram import MovedProgram, _Run
from run.simworker import Worker
from run.waiting import until

MIB = 1 << 20


@pytest.fixture
def hasty(daemon: Any):
    """Allocations are refused after half a second."""
    with daemon.configured("move_seconds = 60\n", "move_seconds = 60\nallocation_wait_seconds = 0.5\n"):
        yield daemon


@pytest.fixture
def kept(client):
    made = client.create(memory="4GiB", time="30%", device=0, idle_memory="lend", keep=True)["id"]
    yield made
    client.release(made)


def held(daemon: Any, *programs: Worker) -> int:
    pids = {program.pid for program in programs}
    return sum(row["bytes"] for row in daemon.books()["processes"] if row["pid"] in pids)


def test_it_waits_for_the_owner_s_room_that_others_have(make_daemon, tmp_path):
    """The whole way: the wish is heard, the borrower makes room, and the call succeeds."""
    config = tmp_path / "gpushare.toml"
    config.write_text('[memory]\nhost_pool = "1GiB"\nmove_seconds = 60\n')
    daemon = make_daemon("--simulate", "1x560MiB", "--config", str(config)).start()
    client = daemon.client
    client.set_tenant("owner", {"memory": 288 * MIB})
    owner = daemon.spin("288MiB", "20%", tenant="owner", idle_memory="lend")
    assert owner.tell("alloc 200MiB")["ok"]
    [grant] = client.grants()
    client.suspend(grant["id"])
    until(lambda: client.grant(grant["id"])["residency"]["where"] == "suspended", "it is away")
    borrower = daemon.spin("300MiB", "0", idle_memory="lend", borrow_memory="300MiB", reclaim="evict", wait="60")
    assert borrower.tell("alloc 240MiB")["ok"], "it has the owner's room"
    assert owner.tell("alloc 1MiB")["ok"], "of the size that never moves"
    until(lambda: client.grant(grant["id"])["residency"]["where"] == "resident", "and all of it is back")
    owner.close()
    borrower.close()


@pytest.mark.parametrize("size", [MIB, 4 * MIB], ids=["that stays", "that moves"])
def test_it_is_refused_after_the_time_that_is_configured(hasty, client, size):
    program = MovedProgram(hasty)
    before = program.held
    client.suspend(program.id, hold=True)
    program.comes_to("suspended")
    away = program.held
    program.do(f"import time; began = time.monotonic(); refused = error(d.cuMemAlloc({size}))")
    assert program.get("refused") == growing.OUT
    assert program.get("time.monotonic() - began") >= 0.5
    until(lambda: client.grant(program.id)["devices"][0]["memory_refusals"] == 1, "it is counted", 20)
    last = client.grant(program.id)["devices"][0]["memory_refused"]
    assert (last["why"], last["asked_bytes"] >= size) == ("away", True)
    assert program.held == away < before
    assert program.where == "suspended", "everything else is as it was"
    client.resume(program.id)
    program.is_whole()
    program.do(f"ok(d.cuMemFree(ok(d.cuMemAlloc({size}))))")
    program.end()


def test_another_time_is_for_grants_that_live_too(daemon, client):
    program = MovedProgram(daemon)
    with daemon.configured("move_seconds = 60\n", "move_seconds = 60\nallocation_wait_seconds = 0\n"):
        client.suspend(program.id, hold=True)
        program.comes_to("suspended")
        assert program.error("d.cuMemAlloc(1 << 20)") == growing.OUT
        client.resume(program.id)
        program.is_whole()
        program.end()


@pytest.mark.promise("away-takes-no-more")
def test_no_process_of_the_grant_takes_any_while_it_is_away(hasty, client, kept, tmp_path: Path):
    """Neither one with nothing to move, nor one that joins meanwhile; they go on when it is back."""
    owner = MovedProgram(hasty, grant=kept)
    beside = Worker(_Run(hasty, kept, {}))
    beside.do("ok(d.cuInit(0)); ctx = context(0)")
    growing.ready(beside, tmp_path)  # type: ignore[arg-type]
    beside.do(moving.AWAY)
    client.suspend(kept, hold=True)
    owner.comes_to("suspended")
    away = held(hasty, owner, beside)
    late = Worker(_Run(hasty, kept, {}))
    late.do("ok(d.cuInit(0))")
    assert late.error("d.cuDevicePrimaryCtxRetain(0)") == growing.OUT
    assert late.error("d.cuCtxCreate(None, 0, 0)") == growing.OUT
    for what in ("small", "movable", "pool", "handle", "array", "context", "module", "stacks"):
        assert beside.error(growing.TAKES[what]) == growing.OUT, what
    beside.do(f"thread = start(lambda: {growing.LAUNCHES['launch']}); thread.join(0.7)")
    assert beside.get("results") == [], "a launch is never refused"
    assert held(hasty, owner, beside, late) == away
    client.resume(kept)
    owner.comes_to("resident")
    beside.do("thread.join(); ok(results[0])")
    late.do("ctx = context(0); ok(d.cuMemAlloc(4 << 20))")
    assert held(hasty, owner, beside, late) > away
    shown = client.grant(kept)["devices"][0]
    until(lambda: client.grant(kept)["devices"][0]["memory_bytes"] == held(hasty, owner, beside, late), f"{shown}")
    for one in (owner, beside, late):
        one.end()
