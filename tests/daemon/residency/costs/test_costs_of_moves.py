"""What moving memory costs, as people see it: usage, metrics, receipts. The judge of bytes is the simulator's books, or
the process's own counter."""

import os
import signal
import time
from collections import Counter

import pytest
from run.movedprogram import MovedProgram
from run.waiting import until

GIB = 1 << 30
MIB = 1 << 20
S = 10**9


def usage(daemon, grant):
    """The grant's row of usage, of all seconds that are over."""
    rows = daemon.client.usage(by="grant", since=None, until=None, tenant=None)["rows"]
    return Counter(next((row for row in rows if row["grant"] == grant), {}))


def holders(daemon):
    rows = daemon.client.usage(by="holder", since=None, until=None, tenant=None)["rows"]
    return {(row.get("holder_tenant", ""), row.get("holder", "")): row["stalled_ns"] for row in rows}


def copied(daemon, pid):
    [row] = [row for row in daemon.books()["processes"] if row["pid"] == pid]
    return row["copied_out_bytes"], row["copied_in_bytes"]


def metric(daemon, name, **labels):
    for line in daemon.client.text("/metrics").splitlines():
        if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            yield float(line.rsplit(" ", 1)[1])


def decisions(daemon, grant):
    return [one["text"] for one in daemon.client.call("GET", f"/v1/explain/{grant}")["decisions"]]


def test_bytes_of_a_real_program_are_those_of_the_simulators_books(daemon, client):
    program, out, back = MovedProgram(daemon), 0, 0
    for _ in range(3):
        before = copied(daemon, program.pid)
        program.suspended()
        client.resume(program.id)
        program.comes_to("resident")
        after = copied(daemon, program.pid)
        out, back = out + after[0] - before[0], back + after[1] - before[1]
        program.is_whole()  # reads all of it, which is no move
    until(lambda: usage(daemon, program.id)["moved_in_bytes"] == back, "the bytes that came back")
    assert usage(daemon, program.id)["moved_out_bytes"] == out == back > 0
    ways = {way: max(metric(daemon, "gpushare_swap_bytes_total", dir=way, cause="person")) for way in ("out", "in")}
    assert ways["out"] >= out and ways["in"] >= back


def test_hosted_bytes_count_as_hosted_and_not_as_held_on_the_device(daemon, client, notebook):
    one = notebook(gpu="0").holds().suspended()
    first = until(lambda: usage(daemon, one.id), "it has a row")
    until(lambda: usage(daemon, one.id)["hosted_byte_s"] - first["hosted_byte_s"] > 3 * 7 * GIB, "3 s of 7 GiB", 20)
    row = usage(daemon, one.id)
    hosted, here = (row[name] - first[name] for name in ("hosted_byte_s", "memory_byte_s"))
    assert hosted == pytest.approx(28 * here, rel=0.01), "7 GiB are away and 256 MiB are there"
    assert max(metric(daemon, "gpushare_tenant_memory_byte_seconds_total", tier="host")) > 0
    table = daemon.cli_here("usage", "--by", "grant").stdout
    assert "HOSTED" in table


def test_a_stall_is_from_the_call_to_the_memory(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    client.suspend(one.id)
    one("carry")
    one.comes_to("suspended")
    assert not usage(daemon, one.id)["stalled_ns"]
    began = time.monotonic_ns()
    one("wants")
    one.comes_to("resuming")
    until(lambda: usage(daemon, one.id)["stalled_ns"] > S, "it has waited for more than a second", 20)
    one("carry")
    one.comes_to("resident")
    until(lambda: usage(daemon, one.id)["stalls"] == 1, "the wait is over")
    done = usage(daemon, one.id)["stalled_ns"]
    assert done <= time.monotonic_ns() - began
    assert holders(daemon)["", ""] == done, "nobody was in the way"
    assert max(metric(daemon, "gpushare_swap_stall_seconds_total", **{"for": "copy"})) > 1


def test_who_held_it_away_has_the_stall(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    one("follow")
    client.suspend(one.id, hold=True)
    one.comes_to("suspended")
    one("wants")
    until(lambda: holders(daemon).get(("(held)", "")), "a person held it away")


def lent(daemon, client, notebook):
    """A notebook of tenant a, which is away, and a borrower that has its room."""
    client.set_tenant("a", {"memory": 9 * GIB})
    client.set_tenant("b", {"memory": 22 * GIB})
    one = notebook(gpu="0", tenant="a", time="0").holds().suspended()
    other = notebook(
        gpu="0", tenant="default", memory="14GiB", time="0", borrow_memory="14GiB", reclaim="demote"
    ).holds(movable=13 * GIB)
    return one, other


def test_both_sides_get_a_receipt(daemon, client, notebook):
    with daemon.configured("[memory]", '[reclaim]\nlend_to = "demote"\n[memory]'):
        one, other = lent(daemon, client, notebook)
        assert client.grant(other.id)["devices"][0]["memory_borrowed_bytes"]
        assert "its room lent to tenant default, until it needs them" in daemon.cli_here("why", one.id).stdout
        one("wants")  # its room is taken: the borrower is moved first, which has not been told how to yet
        until(lambda: holders(daemon).get(("default", other.id)), "whose memory is in the way is named")
        other("follow")
        other.comes_to("suspended")
        one.comes_to("resident")
        [receipt] = [text for text in decisions(daemon, one.id) if "on the device again" in text]
        assert " lent " in receipt and " to tenant default; back in " in receipt, receipt
        assert client.grant(one.id)["residency"]["receipt"] == receipt.partition(": ")[2]
        [given] = [text for text in decisions(daemon, other.id) if "on loan; moved out" in text]
        assert given.endswith(" s"), given
        assert "to tenant default" in daemon.cli_here("why", one.id).stdout
        until(lambda: usage(daemon, one.id)["stalls"] == 1, "the wait is over")
        table = daemon.cli_here("usage", "--by", "holder").stdout
        assert other.id in table and "(copy)" in table, table
        daemon.end_children()


def test_a_killed_daemon_loses_no_stall_and_counts_nothing_twice(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    client.suspend(one.id)
    one(f"forge copied_bytes {7 * GIB}")
    one("carry")
    one.comes_to("suspended")
    began = time.monotonic_ns()
    one("wants")
    one.comes_to("resuming")
    until(lambda: usage(daemon, one.id)["stalled_ns"] > S, "its wait is in the ledger", 20)
    until(lambda: usage(daemon, one.id)["moved_out_bytes"] == 7 * GIB, "so are the bytes")
    started = usage(daemon, one.id)
    os.kill(daemon.process.pid, signal.SIGKILL)
    daemon.process.wait()
    one(f"forge copied_bytes {9 * GIB}")  # while no daemon ran
    daemon.start()
    one.comes_to("resuming")
    until(lambda: usage(daemon, one.id)["stalled_ns"] > started["stalled_ns"] + S, "it goes on waiting", 20)
    found = usage(daemon, one.id)["stalled_ns"]
    assert found <= time.monotonic_ns() - began, "no second counts twice"
    [(gap,)] = daemon.rows("SELECT gap_ns FROM runs ORDER BY run DESC LIMIT 1")
    assert found >= started["stalled_ns"] + gap > started["stalled_ns"], "it waited without a daemon, too"
    until(lambda: usage(daemon, one.id)["moved_in_bytes"] == 2 * GIB, "what was copied meanwhile")
    assert usage(daemon, one.id)["moved_out_bytes"] == 7 * GIB
    one("rejoin")
    one("carry")
    one.comes_to("resident")
    until(lambda: usage(daemon, one.id)["stalls"] == 1, "it was one wait")


def test_hosted_memory_goes_on_after_a_kill_and_the_gap_is_in_nobodys_bill(daemon, client, notebook):
    began = time.monotonic_ns()
    one = notebook(gpu="0").holds().suspended()
    until(lambda: usage(daemon, one.id)["hosted_byte_s"] > 7 * GIB, "a second of 7 GiB", 20)
    before = usage(daemon, one.id)["hosted_byte_s"]
    daemon.kill()
    daemon.start()
    one.comes_to("suspended")
    assert usage(daemon, one.id)["hosted_byte_s"] >= before
    until(lambda: usage(daemon, one.id)["hosted_byte_s"] > before + 2 * 7 * GIB, "it goes on", 20)
    hosted, took = usage(daemon, one.id)["hosted_byte_s"], time.monotonic_ns() - began
    [(gap,)] = daemon.rows("SELECT gap_ns FROM runs ORDER BY run DESC LIMIT 1")
    assert gap > 0 and hosted <= 7 * GIB * (took - gap) / S
    assert usage(daemon, one.id)["moved_out_bytes"] == 0, "the process says that it has copied nothing"


def test_a_liar_has_no_more_than_its_limit(daemon, client, notebook):
    """Claims of bytes hosted and copied beyond anything that is there."""
    one = notebook(gpu="0").holds()
    client.suspend(one.id)
    one(f"forge hosted_bytes {1 << 62}")
    one(f"forge copied_bytes {1 << 63}")
    one("carry")
    one(f"forge hosted_bytes {1 << 62}")
    one.comes_to("suspended")
    first = until(lambda: usage(daemon, one.id), "it has a row")
    until(lambda: usage(daemon, one.id)["hosted_byte_s"] > first["hosted_byte_s"], "it is counted", 20)
    row = usage(daemon, one.id)
    assert row["moved_out_bytes"] == 8 * GIB
    assert row["hosted_byte_s"] <= 8 * GIB * 120
    for number in (0, (1 << 64) - 1, 5):
        one(f"forge copied_bytes {number}")
    assert all(number < 1 << 50 for number in metric(daemon, "gpushare_swap_bytes_total"))
    daemon.end_children()


def test_copies_ahead_and_those_that_a_call_caused_are_told_apart(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('[memory]\nhost_pool = "1GiB"\nidle_after_seconds = 0.2\nmove_seconds = 60\n')
    node = make_daemon("--simulate", "1x4GiB", "--config", str(config)).start()
    program = node.spin("1GiB", "50%", idle_memory="lend")
    [grant] = node.client.grants()
    assert program.tell("alloc 64MiB")["ok"]
    until(lambda: node.client.grant(grant["id"])["devices"][0]["memory_clean_bytes"] == 64 * MIB, "it is copied ahead")
    assert node.cli("grant", "suspend", grant["id"], "--wait=30").returncode == 0
    program.tell("touch 3")
    until(lambda: node.client.grant(grant["id"])["residency"]["where"] == "resident", "it is back")
    out, back = copied(node, program.pid)

    def counted(way):
        causes = ("person", "reclaim", "want", "turn", "wake", "ahead")
        found = {why: max(metric(node, "gpushare_swap_bytes_total", dir=way, cause=why)) for why in causes}
        return {why: size for why, size in found.items() if size}

    assert counted("in") == {"wake": back} == {"wake": 64 * MIB}
    until(lambda: counted("out") == {"ahead": copied(node, program.pid)[0]}, "giving it up copied nothing")
    assert out >= 64 * MIB
    assert program.tell("idle") is not None
    program.close()
    node.stop()
