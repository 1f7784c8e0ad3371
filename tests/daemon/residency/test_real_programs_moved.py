"""Programs of gpushare run whose memory is moved: by the simulator's books it leaves the device and comes back."""

from run.waiting import until

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
