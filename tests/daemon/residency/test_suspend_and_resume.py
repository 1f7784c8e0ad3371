"""A grant's memory leaves its device and comes back: what people ask, what processes answer, what others may have
meanwhile. The processes play the interposer's part."""

import os
import re
import signal

import pytest
from run.waiting import until

from gpushare._native import lib
from gpushare.binding.pages import LimitsPage
from gpushare.errors import CannotMoveError, NotFoundError, RefusedError, UsageError

GIB = 1 << 30


def taken(daemon, index=0):
    return daemon.client.devices()[index]["guaranteed"]["memory"]


def test_its_memory_leaves_and_comes_back_with_a_call_that_needs_it(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    asked = client.suspend(one.id)
    assert (asked["residency"]["where"], asked["phase"]) == ("suspending", "active")
    assert taken(daemon) == 8 * GIB, "its room is its own until its processes have left"
    assert one("carry") == ["told", "0"]
    away = one.comes_to("suspended")
    assert away["phase"] == "suspended"
    [device] = away["devices"]
    assert (device["memory_bytes"], device["memory_hosted_bytes"]) == (7 * GIB + GIB // 4, 7 * GIB)
    assert (device["memory_fixed_bytes"], device["memory_limit_bytes"]) == (GIB // 4, 8 * GIB)
    assert device["memory_fixed"] == {"context": GIB // 4}
    assert taken(daemon) == GIB // 4, "only what cannot be moved"
    row = next(line for line in daemon.cli_here("ps").stdout.splitlines() if line.startswith(one.id))
    assert "suspended" in row
    assert "0.25GiB +7GiB hosted" in row or "256MiB +7GiB hosted" in row, row
    assert re.search(r"in host memory since \d\d:\d\d until it needs them", daemon.cli_here("why", one.id).stdout)
    assert one("wants") == ["told", "0"]
    one.comes_to("resuming")
    assert taken(daemon) == 8 * GIB, "it has its room before it comes in"
    one("carry")
    back = one.comes_to("resident")
    assert (back["phase"], back["residency"]["why"]) == ("active", "")
    names = [decision["text"] for decision in client.call("GET", f"/v1/explain/{one.id}")["decisions"]]
    assert "its memory is on the device again" in names


def test_a_held_grant_stays_away_until_somebody_resumes_it(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    one("follow")
    assert daemon.cli("grant", "suspend", one.id, "--hold", "--wait=20").returncode == 0
    one("wants")
    one("wants")
    assert one.where == "suspended"
    done = daemon.cli("grant", "resume", one.id, "--wait=20")
    assert (done.returncode, one.where) == (0, "resident"), done.stderr


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (lib.GS_MOVE_WORKING, "work is waiting"),
        (lib.GS_MOVE_NO_HOST, "no host memory"),
        (lib.GS_MOVE_FAILED, "driver refused"),
        (lib.GS_MOVE_UNSEEN, "cannot be followed"),
        (77, "gives no reason"),
    ],
)
def test_what_cannot_leave_stays_and_says_why(daemon, client, notebook, why, words):
    one = notebook(gpu="0").holds()
    client.suspend(one.id)
    one(f"refuse {why}")
    stays = one.comes_to("resident")
    assert words in stays["residency"]["why"]
    assert taken(daemon) == 8 * GIB
    assert client.suspend(one.id)["residency"]["why"] == "", "that was the last time"


def test_the_command_that_waits_gets_the_reason(daemon, notebook):
    one = notebook(gpu="0").holds()
    waiting = daemon.cli_begun("grant", "suspend", one.id, "--wait")
    until(lambda: one.where == "suspending", "asked for")
    one(f"refuse {lib.GS_MOVE_WORKING}")
    _, errors = waiting.communicate(timeout=30)
    assert waiting.returncode == CannotMoveError.exit_code
    assert "work is waiting" in errors


def test_who_may(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    with pytest.raises(NotFoundError):
        client.suspend("g-000000000000")
    keeps, grant_id = daemon.join(gpu="1")
    with pytest.raises(CannotMoveError, match="keeps its memory"):
        client.suspend(grant_id)
    with pytest.raises(CannotMoveError, match="nothing to resume"):
        client.resume(grant_id)
    keeps.stdin.write("end\n")
    empty = notebook(gpu="1", memory="2GiB")
    with pytest.raises(CannotMoveError, match="none of its memory can be moved"):
        client.suspend(empty.id)
    assert one.where == "resident"


def test_twice_at_once_is_one_suspend(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    client.suspend(one.id)
    before = one("word")
    client.suspend(one.id)
    assert one("word") == before
    one("carry")
    one.comes_to("suspended")
    client.suspend(one.id)
    assert one("word") == before


def test_a_resume_calls_back_who_is_on_the_way_out(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    client.suspend(one.id)
    one(f"forge hosted_bytes {GIB}")
    client.resume(one.id)
    assert one.where == "resuming"
    one("carry")
    assert "resumed meanwhile" in one.comes_to("resident")["residency"]["why"]


def test_who_does_not_answer_in_time_keeps_its_memory(daemon, client, notebook):
    with daemon.configured("move_seconds = 60", "move_seconds = 0.2"):
        one = notebook(gpu="0").holds(movable=GIB // 4)
        client.suspend(one.id)
        assert "not all of its processes answered in time" in one.comes_to("resident")["residency"]["why"]
        assert taken(daemon) == 8 * GIB
        daemon.end_children()


def test_a_node_may_lend_to_who_can_only_be_moved(daemon, client, notebook):
    loan = {"memory": 8 * GIB, "time": 0, "device": 0, "idle_memory": "lend", "borrow_memory": True}
    with pytest.raises(RefusedError, match="with a max_rung of evict or kill, not demote"):
        client.create(**loan, max_rung="demote")
    with daemon.configured("[memory]", '[reclaim]\nlend_to = "demote"\n[memory]'):
        with pytest.raises(RefusedError, match="ask with a max_rung of evict or kill"):
            client.create(**loan | {"idle_memory": "keep"}, max_rung="demote")
        client.set_tenant("owner", {"memory": 12 * GIB})
        client.set_tenant("second", {"memory": 19 * GIB})
        one = notebook(gpu="0", time="0", borrow_memory="8GiB", reclaim="demote").holds()
        one("follow")
        owner = client.create(tenant="owner", memory=12 * GIB, time=0, device=0, wait_seconds=20)
        assert one.comes_to("suspended")["eviction"] is None
        one("wants")
        until(lambda: one.shown["residency"]["waits"], "it waits for room that nobody else wants")
        client.release(owner["id"])
        one.comes_to("resident")
        daemon.end_children()


def test_no_loan_without_a_way_out(daemon, client):
    small = '[reclaim]\nlend_to = "demote"\n[memory]\n#'
    with daemon.configured("[memory]\n", small), daemon.configured("#host_pool", 'host_pool = "4GiB"\n#'):
        loan = {"time": 0, "device": 0, "idle_memory": "lend", "borrow_memory": True, "max_rung": "demote"}
        with pytest.raises(RefusedError, match="host pool has 4GiB free"):
            client.create(**loan, memory=8 * GIB)
        assert client.grants() == []
        first = client.create(**loan, memory=3 * GIB)
        with pytest.raises(RefusedError, match="host pool has 1GiB free"):
            client.create(**loan, memory=3 * GIB)
        client.release(first["id"])
        client.release(client.create(**loan, memory=3 * GIB)["id"])


def test_the_end_of_its_processes_frees_everything(daemon, client, notebook):
    one = notebook(gpu="0").holds()
    client.suspend(one.id)
    os.kill(one.process.pid, signal.SIGKILL)
    until(lambda: one.shown["phase"] == "released", "released")
    assert taken(daemon) == 0
    two = notebook(gpu="0").holds().suspended()
    os.kill(two.process.pid, signal.SIGKILL)
    until(lambda: two.shown["phase"] == "released", "released")
    assert taken(daemon) == 0


@pytest.mark.promise("away-room-stays-own")
def test_what_it_left_is_only_lent(daemon, client, notebook):
    one = notebook(gpu="0", memory="12GiB").holds(movable=10 * GIB).suspended()
    with pytest.raises(RefusedError, match="is to go back to suspended grants"):
        client.create(memory=8 * GIB, time=0, device=0)
    borrower, borrowed = daemon.join(memory="8GiB", time="0", gpu="0", borrow_memory="8GiB", reclaim="kill", grace="0")
    assert client.grant(borrowed)["devices"][0]["memory_borrowed_bytes"] == 4 * GIB
    one("wants")
    one.comes_to("resident")
    until(lambda: client.grant(borrowed)["phase"] == "released", "the borrower is gone")
    assert "on loan" in client.grant(borrowed)["reason"]
    borrower.wait(20)


def test_who_is_held_wants_nobodys_room_any_more(daemon, client, notebook):
    one = notebook(gpu="0", memory="12GiB").holds(movable=10 * GIB).suspended()
    loan = {"borrow_memory": "8GiB", "reclaim": "evict", "grace": "30"}
    _, borrowed = daemon.join(memory="8GiB", time="0", gpu="0", **loan)
    one("wants")
    until(lambda: client.grant(borrowed)["eviction"], "its borrower is asked to go")
    assert one.shown["residency"]["waits"]
    client.suspend(one.id, hold=True)
    until(lambda: client.grant(borrowed)["eviction"] is None, "it may stay")
    assert one.shown["residency"]["waits"] == ""
    assert not one.shown["residency"]["wanted"]
    client.release(borrowed)


def test_a_borrower_that_cannot_give_back_enough_is_asked_to_go_at_once(daemon, client, notebook):
    client.set_tenant("owner", {"memory": 12 * GIB})
    client.set_tenant("second", {"memory": 19 * GIB})
    one = notebook(gpu="0", time="0", borrow_memory="8GiB", reclaim="evict", grace="30")
    one.holds(fixed=6 * GIB, movable=GIB)
    one("follow")
    wanted = daemon.cli_begun(
        "run", "--tenant=owner", "--memory=12GiB", "--time=0", "--gpu=0", "--wait=60", "--", "true"
    )
    until(lambda: (one.shown["eviction"] or {}).get("rung") == "evict", "it is asked to go")
    assert one.where == "suspended"
    assert "on loan cannot be moved" in daemon.log.read_text()
    client.release(one.id)
    wanted.communicate(timeout=60)


def test_without_a_daemon_it_may_come_back_only_to_room_that_is_free(daemon, client, notebook):
    def room():
        with LimitsPage.open(daemon.layout.grants / one.id / "self" / "limits", writable=False) as page:
            return page.room(0)

    one = notebook(gpu="0", memory="12GiB").holds(movable=10 * GIB).suspended()
    assert room()
    small = client.create(memory=4 * GIB, time=0, device=0)
    assert room(), "that is beside what it left"
    lent = client.create(memory=8 * GIB, time=0, device=0, borrow_memory=True)
    assert not room()
    client.release(lent["id"])
    assert room()
    lent = client.create(memory=6 * GIB, time=0, device=1)
    assert room(), "it is on another device"
    client.suspend(one.id, hold=True)
    assert not room(), "somebody has to want it"
    for grant in (small, lent):
        client.release(grant["id"])
    assert not room()


def test_watchers_and_metrics_are_told(daemon, client, notebook):
    since = client.call("GET", "/v1/grants")["rv"]
    one = notebook(gpu="0").holds().suspended()
    shown = client.text("/metrics")
    assert re.search(rf'gpushare_memory_hosted_bytes{{grant="{one.id}",[^}}]*}} {7 * GIB}', shown)
    one("wants")
    one.comes_to("resident")
    named = {}
    for event in client.watch(since, timeout=20):
        if event["name"]:
            named[event["name"]] = event["object"]["residency"]["where"]
        if "MemoryReturned" in named:
            break
    assert named == {"MemoryMoved": "suspended", "MemoryReturned": "resident"}
    shown = client.text("/metrics")
    assert int(re.search(r'gpushare_suspends_total{rung="demote",by="person",outcome="moved"} ([0-9]+)', shown)[1]) >= 1
    assert int(re.search(r"gpushare_residency_wait_seconds_count ([0-9]+)", shown)[1]) >= 1


def test_it_waits_for_room_and_says_for_whom(daemon, client, notebook):
    one = notebook(gpu="0", memory="12GiB").holds(movable=10 * GIB).suspended()
    _, borrowed = daemon.join(memory="8GiB", time="0", gpu="0", borrow_memory="8GiB", reclaim="evict", grace="30")
    client.resume(one.id)
    waits = one.shown
    assert waits["residency"]["wanted"]
    assert borrowed in waits["residency"]["waits"]
    assert borrowed in waits["notice"]
    done = daemon.cli("grant", "resume", one.id, "--wait=0.1")
    assert done.returncode == 1
    assert borrowed in done.stderr
    client.release(borrowed)
    one.comes_to("resident")


def test_a_borrower_that_can_be_moved_is_moved_before_anybody_is_asked(daemon, client, notebook):
    other = notebook(gpu="0", memory="12GiB").holds(movable=10 * GIB).suspended()
    one = notebook(gpu="0", time="0", borrow_memory="8GiB", reclaim="kill").holds()
    one("follow")
    other("wants")
    other.comes_to("resident")
    assert one.comes_to("suspended")["eviction"] is None
    other("end")
    until(lambda: other.shown["phase"] == "released", "released")
    one("wants")
    one.comes_to("resident")


def test_a_borrower_that_cannot_be_moved_is_asked_to_go(daemon, client, notebook):
    other = notebook(gpu="0", memory="12GiB").holds(movable=10 * GIB).suspended()
    one = notebook(gpu="0", time="0", borrow_memory="8GiB", reclaim="evict").holds()
    one("forge inflight 1")
    other("wants")
    one.comes_to("suspending")
    assert one.shown["eviction"]["rung"] == "demote"
    one(f"refuse {lib.GS_MOVE_WORKING}")
    until(lambda: (one.shown["eviction"] or {}).get("rung") == "evict", "it is asked")
    assert "end it or make it smaller" in one.shown["notice"]
    one("carry")
    one("end")
    other.comes_to("resident")


def test_a_share_that_lends_is_checked(daemon, client):
    for asked, words in (
        ({"devices": 2}, "one device"),
        ({"gang": "job:4"}, "one device"),
        ({"idle_memory": "maybe"}, "idle_memory"),
    ):
        with pytest.raises(UsageError, match=words):
            client.create(**{"memory": GIB, "time": 0, "idle_memory": "lend", **asked})
    done = daemon.cli("run", "--memory", "1GiB", "--time", "0", "--idle-memory", "sometimes", "--", "true")
    assert done.returncode == 2
    assert "--idle-memory" in done.stderr


def test_it_cannot_be_resized_while_it_is_away(daemon, client, notebook):
    one = notebook(gpu="0").holds().suspended()
    with pytest.raises(RefusedError, match="resume it"):
        client.resize(one.id, memory=4 * GIB)
    assert taken(daemon) == GIB // 4
