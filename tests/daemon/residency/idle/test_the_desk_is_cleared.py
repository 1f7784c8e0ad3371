"""`gpushare pause` and `resume`: grants off their devices for a game or a demo, and back."""

import json

import pytest
from machine.members import as_nobody, open_to_members
from run.waiting import until

from gpushare._native import lib

GIB = 1 << 30


@pytest.fixture
def two(notebook):
    """Notebooks on both devices, which move whenever their pages say so."""
    found = [notebook(gpu=gpu).holds() for gpu in ("0", "1")]
    for one in found:
        one("follow")
    return found


def places(*notebooks):
    return [(one.where, one.shown["residency"]["hold"]) for one in notebooks]


def test_all_of_them_leave_and_come_back(daemon, two):
    one, other = two
    done = daemon.cli("pause", "--all", "--wait=60")
    assert done.returncode == 0, done.stderr
    assert places(*two) == [("suspended", True)] * 2
    for each in two:
        assert f"{each.id} is suspended, 7GiB of its memory in host memory" in done.stdout
        each("wants")
    assert one.where == other.where == "suspended", "until they are resumed"
    done = daemon.cli("resume", "--all", "--wait=60")
    assert done.returncode == 0, done.stderr
    assert places(*two) == [("resident", False)] * 2
    assert daemon.cli("resume", "--all").stdout == "there is nothing to move\n"


def test_what_cannot_leave_is_named_and_the_rest_leaves(daemon, client, two):
    one, _ = two
    keeps, kept = daemon.join(gpu="1", memory="1GiB")
    keeps.stdin.write("hold 1048576\n")
    until(lambda: client.grant(kept)["devices"][0]["memory_bytes"], "it holds memory")
    idle = client.create(memory=GIB, time=0, device=0, keep=True)["id"]
    done = daemon.cli("pause", "--all", "--wait=60")
    assert done.returncode == 3
    assert places(*two) == [("suspended", True)] * 2
    assert done.stderr.splitlines() == [
        f"gpushare: the memory of grant {kept} stays where it is: it keeps its memory (idle_memory keep): create it"
        " with idle_memory lend"
    ], "the grant in which nothing runs has nothing on the device"
    shown = daemon.cli("pause", "--all", "--json")
    found = json.loads(shown.stdout)
    assert (shown.returncode, [stays["grant"] for stays in found["stay"]]) == (3, [kept])
    assert "keeps its memory" in found["stay"][0]["reason"]
    assert {grant["id"] for grant in found["grants"]} == {each.id for each in two}
    client.release(idle)
    assert daemon.cli("resume", one.id, "--wait").returncode == 0


def test_what_fails_on_the_way_is_named_too(daemon, client, notebook):
    moves, stays = notebook(gpu="0").holds(), notebook(gpu="1").holds()
    moves("follow")
    waiting = daemon.cli_begun("pause", "--all", "--wait")
    until(lambda: stays.where == "suspending", "asked for")
    stays(f"refuse {lib.GS_MOVE_WORKING}")
    _, errors = waiting.communicate(timeout=60)
    assert (waiting.returncode, moves.where) == (3, "suspended")
    assert f"the memory of grant {stays.id} stays where it is" in errors
    assert "work is waiting" in errors


def test_resume_all_leaves_alone_who_left_by_itself(daemon, client, two):
    one, other = two
    client.suspend(one.id)
    one.comes_to("suspended")
    assert daemon.cli("pause", other.id, "--wait=60").returncode == 0
    assert daemon.cli("resume", "--all", "--wait=60").returncode == 0
    assert places(*two) == [("suspended", False), ("resident", False)]
    assert daemon.cli("pause", one.id).returncode == 0
    assert places(one) == [("suspended", True)], "one that has left is held from now on"


def test_all_is_all_of_ones_own(public, two):
    open_to_members(public.layout.socket)

    def words(*asked):
        done = public.cli_here(*asked)
        raise RuntimeError(f"{done.returncode} {done.stdout}{done.stderr}")

    assert "0 there is nothing to move" in as_nobody(lambda: words("pause", "--all", "--wait=5"))
    assert "3 " in as_nobody(lambda: words("pause", two[0].id)), "it is another user's"
    assert places(*two) == [("resident", False)] * 2


@pytest.mark.parametrize("words", [["pause"], ["resume"], ["pause", "--all", "g-000000000000"]])
def test_which_ones(daemon, words):
    done = daemon.cli(*words)
    assert (done.returncode, done.stderr) == (2, "gpushare: which grants? give their ids, or --all\n")


def test_one_that_does_not_exist(daemon, two):
    done = daemon.cli("pause", two[0].id, "g-000000000000")
    assert done.returncode == 2
    assert "g-000000000000" in done.stderr
    assert places(*two) == [("resident", False)] * 2, "nothing is moved for a slip"
