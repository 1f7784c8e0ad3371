"""A grant whose files a thread makes while other requests are answered: nobody sees it half made."""

import contextlib
import os
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pages.pagewords import device_limits
from run.waiting import until

from gpushare.binding.pages import LimitsPage
from gpushare.client import Client
from gpushare.errors import FailedError
from gpushare.inject import grantdir

# Before each job, the thread writes into a FIFO, where it blocks until the FIFO is opened for reading.
HELD = """
from gpushare.inject import filethread, steps
run = filethread.FileThread.run
def held(self, made, directory, over):
    if os.path.exists({pipe!r}):
        run(self, steps.Steps(steps.replacement("x", 0o600, {pipe!r})), "/nowhere", lambda error: None)
    return run(self, made, directory, over)
filethread.FileThread.run = held
"""


class Gate:
    """Blocks the file threads of daemons from `close` until `open`."""

    def __init__(self, path):
        self.path = path

    def close(self):
        os.mkfifo(self.path)

    def open(self):
        """Lets waiting and later threads go on. It may be open already."""
        with contextlib.suppress(FileNotFoundError):
            self.reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # stays open: the thread's write succeeds
        self.path.unlink(missing_ok=True)  # the thread removes it too, as its step fails


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path / "gate")


@pytest.fixture
def daemon(make_daemon, gate):
    return make_daemon().patch("import os", HELD.format(pipe=str(gate.path))).start()


@pytest.fixture
def making(daemon, gate):
    """A call that creates a grant whose files are not made before the gate opens, and the grant's id."""
    gate.close()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(Client(daemon.layout.socket).create, memory="1GiB", time="10%")
        try:
            until(daemon.client.grants, "it is known")
            yield call, daemon.client.grants()[0]["id"]
        finally:
            gate.open()


def files(daemon, grant):
    return grantdir.self_dir(daemon.layout, grant).is_dir(), f"gpushare.dev-gpu_{grant}.json" in daemon.specs()


def test_others_are_answered_meanwhile_and_it_is_answered_when_they_are_there(daemon, gate, making):
    call, grant = making
    assert files(daemon, grant) == (False, False)
    for _ in range(100):
        assert daemon.client.version()
    assert not call.done()
    gate.open()
    assert call.result(20)["id"] == grant
    assert files(daemon, grant) == (True, True)
    assert daemon.client.release(grant)["phase"] == "released"
    assert (daemon.client.grants(), daemon.grant_dirs(), daemon.specs()) == ([], set(), [])


def opens(gate):
    """Opens the gate in a moment, as the test's call blocks the daemon until then."""
    timer = threading.Timer(0.2, gate.open)
    timer.start()
    return timer


@pytest.fixture
def idle():
    """A process to bind a grant to. It is then in the grant's cgroup, which denies other devices."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("kind", ["container", "process"])
def test_who_binds_it_meanwhile_gets_it_whole(daemon, gate, making, idle, kind):
    call, grant = making
    opens(gate)
    found = daemon.client.bind(grant, kind, **({"pid": idle.pid} if kind == "process" else {}))
    assert os.path.exists(f"{found['dir']}/limits")
    assert os.path.exists(f"{found['dir']}/grant.sock")
    assert call.result(20)["phase"] in ("bound", "active")


def test_who_resizes_it_meanwhile_changes_what_is_made(daemon, gate, making):
    call, grant = making
    opens(gate)
    assert daemon.client.resize(grant, memory="2GiB")["devices"][0]["memory_limit_bytes"] == 2 << 30
    assert call.result(20)["devices"][0]["memory_limit_bytes"] == 2 << 30
    with LimitsPage.open(grantdir.self_dir(daemon.layout, grant) / "limits", writable=False) as page:
        assert [device.memory_bytes for device in device_limits(page)] == [2 << 30]


def test_one_that_is_released_meanwhile_leaves_nothing(daemon, gate, making):
    call, grant = making
    opens(gate)
    assert daemon.client.release(grant)["phase"] == "released"
    assert call.result(20)["phase"] == "released"
    assert (daemon.client.grants(), daemon.grant_dirs(), daemon.specs()) == ([], set(), [])


def test_one_whose_time_is_over_meanwhile_leaves_nothing(daemon, gate):
    gate.close()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(Client(daemon.layout.socket).create, memory="1GiB", time="10%", ttl_seconds=1)
        until(daemon.client.grants, "it is known")
        threading.Timer(1.5, gate.open).start()
        assert call.result(20)["phase"] == "expired"
    assert (daemon.client.grants(), daemon.grant_dirs(), daemon.specs()) == ([], set(), [])


def test_a_daemon_that_is_killed_meanwhile_ends_it(daemon, gate, making):
    _, grant = making
    daemon.kill()
    gate.path.unlink()
    daemon.start()
    assert (daemon.client.grants(), daemon.grant_dirs(), daemon.specs()) == ([], set(), [])
    assert daemon.client.grant(grant)["phase"] == "failed"


def test_one_whose_files_were_not_finished_ends_with_the_next_daemon(daemon):
    grant, other = (daemon.client.create(memory="1GiB", time="10%")["id"] for _ in range(2))
    daemon.kill()
    grantdir.preload_file(daemon.layout, grant).unlink()
    daemon.start()
    assert [one["id"] for one in daemon.client.grants()] == [other]
    assert daemon.client.grant(grant)["phase"] == "failed"
    assert daemon.grant_dirs() == {other}


def test_who_binds_one_that_cannot_be_made_is_told(make_daemon, gate, idle):
    """Even if its files could be made at the next try."""
    once = (
        "import os, gpushare.daemon.grants.resources as resources",
        "from gpushare.errors import FailedError",
        "make, tried = resources.Resources.make, []",
        "def failing(self, live, *, later=False):",
        "    tried.append(later)",
        "    if tried == [True, False]: raise FailedError('no room for it')",
        "    make(self, live, later=later)",
        "resources.Resources.make = failing",
    )
    daemon = make_daemon().patch(*once, HELD.format(pipe=str(gate.path))).start()
    gate.close()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(Client(daemon.layout.socket).create, memory="1GiB", time="10%")
        until(daemon.client.grants, "it is known")
        [grant] = daemon.client.grants()
        shutil.rmtree(daemon.layout.cdi)
        opens(gate)
        with pytest.raises(FailedError, match="no room for it"):
            daemon.client.bind(grant["id"], "process", pid=idle.pid)
        with pytest.raises(FailedError, match="no room for it"):
            call.result(20)
    assert (daemon.client.grants(), daemon.grant_dirs(), daemon.specs()) == ([], set(), [])


def test_a_directory_of_specs_that_was_removed_is_made_again(daemon):
    shutil.rmtree(daemon.layout.cdi)
    grant = daemon.client.create(memory="1GiB", time="10%")["id"]
    assert files(daemon, grant) == (True, True)


def test_where_they_cannot_be_made_the_grant_ends_and_its_owner_is_told(daemon):
    shutil.rmtree(daemon.layout.cdi)
    daemon.layout.cdi.touch()
    with pytest.raises(FailedError, match="cannot be made"):
        daemon.client.create(memory="1GiB", time="10%")
    assert (daemon.client.grants(), daemon.grant_dirs()) == ([], set())
    assert [grant["phase"] for grant in daemon.client.grants(ended=True)] == ["failed"]
    daemon.layout.cdi.unlink()
    assert daemon.client.create(memory="1GiB", time="10%")["phase"] == "reserved"
