"""Programs of gpushare run whose memory is moved: by the simulator's books it leaves the device and comes back."""

import pytest
from memory import moving
from run.movedprogram import SIZES, MovedProgram
from run.waiting import until

from gpushare.errors import CannotMoveError

MIB = 1 << 20


def held(daemon, pid):
    return sum(row["bytes"] for row in daemon.books()["processes"] if row["pid"] == pid)


def test_a_program_waits_for_its_memory_and_goes_on(daemon, client):
    program = daemon.spin("4GiB", "50%", idle_memory="lend", gpu="0")
    try:
        [grant] = client.grants()
        program.tell("alloc 64MiB")
        program.tell("alloc 32MiB")
        before = held(daemon, program.pid)
        assert before > 96 * MIB
        done = daemon.cli("grant", "suspend", grant["id"], "--wait=30")
        assert done.returncode == 0, done.stderr
        assert before - held(daemon, program.pid) == 96 * MIB
        assert client.grant(grant["id"])["devices"][0]["memory_hosted_bytes"] == 96 * MIB
        assert program.tell("touch 3")["event"]
        shown = client.grant(grant["id"])
        until(lambda: client.grant(grant["id"])["residency"]["where"] == "resident", f"it is back: {shown}")
        assert 0 <= held(daemon, program.pid) - before <= 4096, "and what the kernel was given"
        assert client.grant(grant["id"])["devices"][0]["memory_hosted_bytes"] == 0
    finally:
        program.close()


def test_a_program_that_computes_is_stopped_moved_and_goes_on(daemon, client):
    program = daemon.spin("4GiB", "50%", idle_memory="lend", gpu="0")
    try:
        [grant] = client.grants()
        program.tell("alloc 64MiB")
        program.tell("run 1000000")
        until(lambda: client.grant(grant["id"])["devices"][0]["held"], "it computes")
        done = daemon.cli("grant", "suspend", grant["id"], "--hold", "--wait=30")
        assert done.returncode == 0, done.stderr
        events = client.call("GET", f"/v1/events?grant={grant['id']}")["events"]
        assert [one["rule"] for one in events if one["kind"] == "revoke"][-1] == "away"
        [away] = client.grant(grant["id"])["devices"]
        [busy] = daemon.busy(program.pid)
        assert not away["held"]
        until(lambda: client.grant(grant["id"])["residency"]["hold"], "it is away")
        [later] = client.grant(grant["id"])["devices"]
        assert daemon.busy(program.pid) == [busy]
        assert later["wait_ns"] == away["wait_ns"], "it waits for its memory, not for others"
        assert daemon.cli("grant", "resume", grant["id"], "--wait=30").returncode == 0
        until(lambda: daemon.busy(program.pid)[0] > busy, "it computes again")
        program.tell("idle")
    finally:
        program.close()


def test_a_borrower_makes_room_for_the_owner_and_comes_back(make_daemon, tmp_path):
    """On a device that has room for only one of both."""
    config = tmp_path / "gpushare.toml"
    config.write_text('[memory]\nhost_pool = "512MiB"\nmove_seconds = 60\n')
    daemon = make_daemon("--simulate", "1x768MiB", "--config", str(config)).start()
    client = daemon.client
    client.set_tenant("owner", {"memory": 512 * MIB})
    borrower = daemon.spin("512MiB", "0", idle_memory="lend", borrow_memory="512MiB", reclaim="evict")
    [grant] = client.grants()
    assert borrower.tell("alloc 384MiB")["ok"]
    owner = daemon.spin("512MiB", "20%", tenant="owner", wait="60")
    assert owner.tell("alloc 448MiB")["ok"], "by the driver's books there is room"
    shown = client.grant(grant["id"])
    assert shown["phase"] == "suspended"
    assert shown["eviction"] is None, "nobody was asked to go"
    borrower.process.stdin.write("touch 1\n")
    until(lambda: client.grant(grant["id"])["residency"]["waits"], "its program needs it, and there is no room")
    owner.close()
    assert borrower.process.stdout.readline(), "its call has returned"
    until(lambda: client.grant(grant["id"])["residency"]["where"] == "resident", "it is back")
    assert held(daemon, borrower.pid) >= 384 * MIB
    borrower.close()


def test_a_program_that_is_away_outlives_the_daemon(daemon, client):
    program = daemon.spin("4GiB", "50%", idle_memory="lend", gpu="0")
    try:
        [grant] = client.grants()
        program.tell("alloc 32MiB")
        program.tell("touch 5")
        before = program.tell("sum")["sum"]
        assert daemon.cli("grant", "suspend", grant["id"], "--wait=30").returncode == 0
        daemon.kill()
        daemon.start()
        away = client.grant(grant["id"])
        assert (away["phase"], away["residency"]["where"]) == ("suspended", "suspended")
        program.tell("touch 3")
        program.tell("touch 3")
        assert program.tell("sum")["sum"] == before
        until(lambda: client.grant(grant["id"])["residency"]["where"] == "resident", "it is back")
        until(lambda: client.node()["host_pool"]["used"] == 0, "and has nothing in host memory")
    finally:
        program.close()


@pytest.mark.slow
@pytest.mark.parametrize("back", ["before", "after"])
def test_without_a_daemon_it_comes_back_by_itself(daemon, back):
    """A daemon that starts before it is back counts its room as taken, although nothing has arrived yet."""
    program = MovedProgram(daemon).suspended()
    program.do(moving.AWAY)
    program.do("hold = holds.Hold('cuMemMap', holds.AFTER)")
    daemon.kill()
    program.do("thread = start(lambda: d.cuMemcpyDtoH(bytearray(9), a, 9))")
    assert program.get("hold.stopped(40)")
    if back == "before":
        daemon.start()
        assert program.where == "resuming"
    program.do("hold.release(); thread.join()")
    if back == "after":
        daemon.start()
    program.is_whole()
    program.end()


def test_people_are_told_what_stays_and_why(daemon, client):
    program = MovedProgram(daemon)

    def fixed():
        return program.shown["devices"][0]["memory_fixed"]

    program.do("pool = ok(d.cuMemAllocAsync(32 << 20, 0)); small = [ok(d.cuMemAlloc(1 << 20)) for _ in range(8)]")
    until(lambda: fixed().get("pools") == 32 * MIB and fixed().get("small", 0) >= 8 * MIB, "it says so")
    [device] = program.shown["devices"]
    assert sum(fixed().values()) == device["memory_fixed_bytes"] < device["memory_bytes"]
    text = daemon.cli_here("grant", "show", program.id).stdout
    assert "of its memory cannot be moved: " in text
    assert "32MiB in memory pools and graphs, " in text
    program.do("[ok(d.cuMemFree(each)) for each in (a, b, c)]")
    why = "none of its memory can be moved: .*32MiB in memory pools and graphs, .* in blocks of up to 1MiB"
    with pytest.raises(CannotMoveError, match=why):
        client.suspend(program.id)
    program.end()


def test_a_program_that_cannot_reach_the_daemon_has_its_memory_back(daemon, tmp_path):
    """The socket is not in its root directory any more."""
    program = MovedProgram(daemon).suspended()
    program.do(f"os.chroot({str(tmp_path)!r})")
    assert [name for name in SIZES if not moving.same(program, name)] == []
    program.comes_to("resident")
    program.end()
