"""`gpushare yield`: what runs in a share says that its memory is not needed, or is again."""

import os
import subprocess
import sys

import pytest
from pages.joinmessages import request
from run.movedprogram import MOVABLE, MovedProgram
from run.running import GPUSHARE, start
from run.waiting import until

from gpushare._native import lib
from gpushare.errors import RefusedError
from gpushare.paths import YIELD

GIB = 1 << 30
REFUSED, UNREACHABLE = 3, 4


@pytest.fixture
def kept(client):
    """A kept grant that lends: programs run in it beside a notebook."""
    grant = client.create(memory=8 * GIB, time=300, device=0, idle_memory="lend", keep=True)["id"]
    yield grant
    client.release(grant)


def inside(daemon, grant, *command):
    return daemon.cli("run", "--grant", grant, "--", *command)


def says(daemon, grant, *options):
    done = inside(daemon, grant, YIELD, *options)
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.fixture
def one(notebook, kept):
    """A notebook in that grant, which moves whenever its page says so."""
    made = notebook(grant=kept).holds()
    made("follow")
    return made


def test_it_says_that_it_is_idle_and_that_it_is_back(daemon, client, kept, one):
    assert says(daemon, kept) == (0, "")
    assert one.shown["residency"]["said_idle"]
    assert one.where == "resident", "it moves when somebody wants the room"
    assert "its programs say that they are idle" in daemon.cli_here("grant", "show", kept).stdout
    assert says(daemon, kept, "--back") == (0, "")
    assert not one.shown["residency"]["said_idle"]


def test_who_says_that_it_is_idle_makes_room_at_once(daemon, client, kept, one):
    loan = {"memory": 14 * GIB, "time": 0, "device": 0, "borrow_memory": True, "max_rung": "kill"}
    with pytest.raises(RefusedError) as refused:
        client.create(**loan)
    assert type(refused.value) is RefusedError, "it counts as idle after five minutes"
    assert says(daemon, kept) == (0, "")
    client.create(**loan, wait_seconds=30)
    assert one.where == "suspended"


def test_its_memory_leaves_now_and_comes_back_ahead_of_a_call(daemon, kept, one):
    assert says(daemon, kept, "--now") == (0, "")
    one.comes_to("suspended")
    assert says(daemon, kept, "--now") == (0, ""), "it has left already"
    assert says(daemon, kept, "--back") == (0, "")
    one.comes_to("resident")


def test_the_verb_says_it_too(daemon, kept, one):
    assert inside(daemon, kept, *GPUSHARE, "yield", "--now").returncode == 0
    one.comes_to("suspended")
    done = inside(daemon, kept, *GPUSHARE, "yield", "--now", "--back")
    assert (done.returncode, "not allowed with" in done.stderr) == (2, True)


def test_what_a_person_holds_stays_away(daemon, client, kept, one):
    client.suspend(kept, hold=True)
    one.comes_to("suspended")
    status, why = says(daemon, kept, "--back")
    assert (status, one.where) == (REFUSED, "suspended")
    assert "holds its memory away" in why
    client.resume(kept)
    one.comes_to("resident")


def test_what_cannot_move_says_why(daemon, client, kept, one):
    one("forge movable_bytes 0")
    status, why = says(daemon, kept, "--now")
    assert (status, why[:60]) == (REFUSED, "gpushare: its memory stays: none of its memory can be moved:")
    keeps = client.create(memory=GIB, time=0, device=1, keep=True)["id"]
    assert says(daemon, keeps) == (0, ""), "a shell says it at each prompt, wherever it runs"
    status, why = says(daemon, keeps, "--now")
    assert (status, "idle_memory" in why) == (REFUSED, True), why
    assert says(daemon, keeps, "--back")[0] == REFUSED
    client.release(keeps)


def test_a_real_program_and_its_own_child(daemon):
    program = MovedProgram(daemon)
    program.do("import subprocess")
    before = program.held
    assert program.get(f"subprocess.run([{str(YIELD)!r}, '--now']).returncode") == 0
    program.comes_to("suspended")
    assert program.held == before - MOVABLE
    assert program.get(f"subprocess.run([{str(YIELD)!r}, '--back']).returncode") == 0
    program.is_whole()


def test_the_owner_asks_the_node_from_inside(daemon, kept, one):
    script = 'grant=$(basename "$(dirname "$GPUSHARE_GRANT_DIR")"); exec "$@" grant suspend "$grant" --wait=30'
    done = inside(daemon, kept, "sh", "-c", script, "sh", *GPUSHARE)
    assert (done.returncode, one.where) == (0, "suspended"), done.stderr


def test_where_there_is_no_share_it_is_silent(daemon):
    for options in ([], ["--now"], ["--back"]):
        environment = {name: value for name, value in daemon.env.items() if name != "GPUSHARE_GRANT_DIR"}
        done = subprocess.run([YIELD, *options], env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run([YIELD, "--later"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "give nothing, --now or --back" in done.stderr


@pytest.mark.promise("yield-own-grant")
def test_nobody_else_says_it(daemon, client, kept, one):
    """From a process that reaches the socket and is not in the grant's cgroup."""
    environment = {**os.environ, "GPUSHARE_GRANT_DIR": one.shown["dir"]}
    for options in ([], ["--now"], ["--back"]):
        done = subprocess.run([YIELD, *options], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == REFUSED
        assert f"is not in the cgroup of grant {kept}" in done.stderr
    assert not one.shown["residency"]["said_idle"]
    assert one.where == "resident"


@pytest.mark.promise("yield-own-grant")
def test_it_is_not_moved_as_often_as_it_says(daemon, client, kept, one):
    script = 'n=0; while [ $n -lt 200 ]; do "$0" --now && "$0" --back || exit; n=$((n+1)); done'
    done = inside(daemon, kept, "sh", "-c", script, YIELD)
    assert (done.returncode, "too often" in done.stderr) == (REFUSED, True), done.stderr
    assert says(daemon, kept) == (0, ""), "to say that it is idle costs nothing"


SEND = """
import os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks:
    asks.connect(os.environ["GPUSHARE_GRANT_DIR"] + "/grant.sock")
    asks.send(bytes.fromhex(sys.argv[1]))
    print(int.from_bytes(asks.recv(128)[8:12], "little"))
"""


@pytest.mark.parametrize("words", [{"slot": 3}, {"slot": (1 << 32) - 1}, {"slot": 1, "version": 2}])
def test_what_is_not_understood_changes_nothing(daemon, kept, one, words):
    message = request(magic=lib.GS_YIELD_MAGIC, **words)
    assert inside(daemon, kept, sys.executable, "-c", SEND, message.hex()).stdout.strip() == str(lib.GS_JOIN_VERSION)
    assert (one.where, one.shown["residency"]["said_idle"]) == ("resident", False)


def test_without_a_daemon_a_prompt_stays_silent(daemon, kept):
    script = 'echo in; read go; "$0"; echo $?; "$0" --now; echo $?'
    asked = ["run", "--socket", str(daemon.client.path), "--grant", kept, "--", "sh", "-c", script, str(YIELD)]
    child = start([*GPUSHARE, *asked], daemon.env)
    daemon.children.append(child)
    assert child.stdout.readline() == "in\n"
    daemon.kill()
    child.stdin.write("go\n")
    out, errors = child.communicate(60)
    daemon.start()
    assert out.split() == ["0", str(UNREACHABLE)]
    assert errors.count("\n") == 1
    assert "cannot be reached" in errors
    until(lambda: daemon.client.grant(kept)["phase"] == "bound", "it has ended")
