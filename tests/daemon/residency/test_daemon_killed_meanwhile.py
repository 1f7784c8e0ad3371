"""A daemon that is killed while a grant's memory moves: the next one takes the grant over in the state that it is in.
The processes play the interposer's part."""

import contextlib
import os
import signal

import pytest
from run.waiting import until

from gpushare.errors import GpushareError

GIB = 1 << 30
KILL_AFTER = """
import os, signal
import gpushare.daemon.residency.residency as shell
inner = shell.Residency._step
left = {count}
def step(self, live, one):
    global left
    if type(one).__name__ == {name!r}:
        left -= 1
        if left == 0 and not {after}:
            os.kill(os.getpid(), signal.SIGKILL)
    inner(self, live, one)
    if type(one).__name__ == {name!r} and left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
shell.Residency._step = step
"""


def taken(daemon):
    return daemon.client.devices()[0]["guaranteed"]["memory"]


def killed(daemon, act):
    """Does something that kills the daemon, and starts the next one."""
    with contextlib.suppress(GpushareError):
        act()
    until(lambda: daemon.process.poll() is not None, "the daemon is killed")


@pytest.fixture
def again(daemon):
    """Starts the daemon anew, without what killed the one before."""
    before = list(daemon.statements)

    def start():
        daemon.statements = before
        daemon.patch().start()

    yield start
    daemon.statements = before
    daemon.patch()


def armed(daemon, name, count=1, *, after):
    daemon.kill()
    daemon.patch(KILL_AFTER.format(name=name, count=count, after=after)).start()


@pytest.mark.promise("moves-survive-kills")
@pytest.mark.parametrize(("name", "after"), [("Record", False), ("Record", True), ("Write", True)])
def test_killed_as_it_begins_to_suspend(daemon, client, notebook, again, name, after):
    one = notebook(gpu="0").holds()
    armed(daemon, name, after=after)
    one("rejoin")
    killed(daemon, lambda: client.suspend(one.id))
    told = name == "Write" and after
    again()
    assert one("rejoin")[0] == "joined"
    if not told:
        assert one.comes_to("resident")["phase"] == "active"
        assert taken(daemon) == 8 * GIB
        return
    assert one.where == "suspending"
    one("carry")
    one.comes_to("suspended")
    assert taken(daemon) == GIB // 4
    one("follow")
    one("wants")
    one.comes_to("resident")


@pytest.mark.promise("moves-survive-kills")
@pytest.mark.parametrize(("name", "after"), [("Count", True), ("Record", True)])
def test_killed_as_all_have_moved_out(daemon, client, notebook, again, name, after):
    one = notebook(gpu="0").holds()
    armed(daemon, name, count=2 if name == "Record" else 1, after=after)
    one("rejoin")
    client.suspend(one.id)
    killed(daemon, lambda: one("carry"))
    again()
    one("rejoin")
    one.comes_to("suspended")
    assert taken(daemon) == GIB // 4
    one("follow")
    client.resume(one.id)
    one.comes_to("resident")
    assert taken(daemon) == 8 * GIB


@pytest.mark.promise("moves-survive-kills")
@pytest.mark.parametrize(("name", "after"), [("Count", True), ("Record", True), ("Write", True)])
def test_killed_as_it_comes_back(daemon, client, notebook, again, name, after):
    one = notebook(gpu="0").holds().suspended()
    armed(daemon, name, after=after)
    killed(daemon, lambda: (client.resume(one.id), one("wants")))
    again()
    one("rejoin")
    client.resume(one.id)
    one.comes_to("resident")
    assert taken(daemon) == 8 * GIB


def test_who_came_back_without_a_daemon_has_its_room(daemon, client, notebook, again):
    one = notebook(gpu="0").holds()
    client.suspend(one.id)
    one("carry")
    one.comes_to("suspended")
    daemon.kill()
    one("forge hosted_bytes 0")
    again()
    one("rejoin")
    one.comes_to("resident")
    assert taken(daemon) == 8 * GIB


def test_its_end_without_a_daemon_leaves_nothing(daemon, client, notebook, again):
    one = notebook(gpu="0").holds().suspended()
    daemon.kill()
    os.kill(one.process.pid, signal.SIGKILL)
    again()
    until(lambda: client.grant(one.id)["phase"] == "released", "released")
    assert taken(daemon) == 0
