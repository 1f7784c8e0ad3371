"""Grants that stay until they are released, with several workloads at once or one after another."""

import contextlib
import os
import signal
import sqlite3
import subprocess

import pytest
from machine.members import NOBODY, as_nobody, open_to_members
from run.running import GPUSHARE, SPIN, Tenant
from run.waiting import until

from gpushare.client import Client
from gpushare.errors import ForbiddenError, NotFoundError, RefusedError, UsageError

GIB = 1 << 30
MIB = 1 << 20


def inside(daemon, grant_id, *command):
    return [*GPUSHARE, "run", "--socket", str(daemon.client.path), "--grant", grant_id, "--", *map(str, command)]


@pytest.fixture
def spin_in(daemon):
    tenants = []

    def start(grant_id):
        tenants.append(Tenant(inside(daemon, grant_id, SPIN)))
        return tenants[-1]

    yield start
    for tenant in tenants:
        tenant.close()


def test_processes_share_it_at_once_and_in_turn(daemon, client, spin_in, phase_of):
    kept = client.create(memory=GIB, time=300, keep=True)
    assert (kept["keep"], kept["phase"], kept["expires_ns"]) == (True, "reserved", None)
    one, two = spin_in(kept["id"]), spin_in(kept["id"])
    assert one.tell("alloc 600MiB")["ok"]
    assert not two.tell("alloc 600MiB")["ok"], "the limit is that of both together"
    assert two.tell("alloc 300MiB")["ok"]
    assert set(client.grant(kept["id"])["processes"]) == {one.pid, two.pid}
    first, second = daemon.cgroup(kept["id"]).path, daemon.cgroup(f"{kept['id']}.2").path
    one.kill()
    until(lambda: not first.exists(), "the first one's cgroup goes")
    assert second.exists()
    until(lambda: two.tell("alloc 600MiB")["ok"], "its memory is the other's", 20)
    assert phase_of(kept["id"]) == "active"
    two.kill()
    until(lambda: phase_of(kept["id"]) == "bound", "nothing runs in it", 20)
    assert client.grant(kept["id"])["expires_ns"] is None
    three = spin_in(kept["id"])
    assert phase_of(kept["id"]) == "active"
    assert three.tell("alloc 900MiB")["ok"]
    assert client.release(kept["id"])["phase"] == "released"
    assert three.process.wait(20) == -signal.SIGKILL
    with pytest.raises(NotFoundError, match="has ended"):
        client.bind(kept["id"], "process")


def test_it_is_the_same_again_by_its_key(client):
    kept = client.create(memory=GIB, time=300, keep=True, key="claim-1")
    assert client.create(memory=GIB, time=300, keep=True, key="claim-1")["id"] == kept["id"]
    with pytest.raises(RefusedError, match="claim-1"):
        client.create(memory=GIB, time=300, key="claim-1")


def test_without_a_workload_for_as_long_as_was_asked(client, spin_in, phase_of):
    kept = client.create(memory=GIB, time=300, keep=True, ttl_seconds=1)
    tenant = spin_in(kept["id"])
    assert client.grant(kept["id"])["expires_ns"] is None
    tenant.kill()
    until(lambda: phase_of(kept["id"]) == "expired", "its time without a workload is over", 20)


@pytest.mark.parametrize("stop", ["kill", pytest.param("terminate", marks=pytest.mark.slow)])
def test_a_daemon_that_comes_back_has_it(daemon, spin_in, phase_of, stop):
    client = daemon.client
    idle = client.create(memory=GIB, time=100, keep=True)["id"]
    fresh = client.create(memory=GIB, time=100, keep=True)["id"]
    used = client.create(memory=GIB, time=100, keep=True)["id"]
    gone = client.create(memory=GIB, time=100, keep=True)["id"]
    spin_in(idle).kill()
    until(lambda: phase_of(idle) == "bound", "it is idle", 20)
    tenants = [spin_in(used), spin_in(used)]
    going = spin_in(gone)
    getattr(daemon, stop)()
    going.kill()
    daemon.start()
    assert [phase_of(one) for one in (idle, fresh, used, gone)] == ["bound", "reserved", "active", "bound"]
    assert tenants[0].tell("alloc 600MiB")["ok"]
    assert not tenants[1].tell("alloc 600MiB")["ok"]
    for grant in (idle, fresh, gone):
        assert spin_in(grant).tell("alloc 900MiB")["ok"]
    assert spin_in(used).tell("alloc 300MiB")["ok"]


def test_after_a_reboot_it_is_reserved_again(daemon, phase_of, spin_in):
    kept = daemon.client.create(memory=GIB, time=100, keep=True)["id"]
    tenant = spin_in(kept)
    daemon.kill()
    tenant.kill()
    with contextlib.closing(sqlite3.connect(daemon.layout.ledger)) as ledger:
        ledger.execute("UPDATE runs SET boot_id = 'another'")
        ledger.commit()
    daemon.start()
    assert phase_of(kept) == "reserved"
    assert spin_in(kept).tell("alloc 900MiB")["ok"]


def test_one_kind_of_workload(client, spin_in):
    kept = client.create(memory=GIB, time=300, keep=True)
    client.bind(kept["id"], "container")
    client.bind(kept["id"], "container")
    with pytest.raises(RefusedError, match="is for a container, not for a process"):
        client.bind(kept["id"], "process")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kind": "container", "pid": 1}, "a container is known by its hook"),
        ({"kind": "process", "uid": 1}, "give both"),
        ({"kind": "process", "uid": 1, "gid": 1, "pid": 5}, "leave pid out"),
    ],
)
def test_who_is_bound_is_reported_clearly(client, asked, message):
    kept = client.create(memory=GIB, time=300, keep=True)
    with pytest.raises(UsageError, match=message):
        client.bind(kept["id"], **asked)
    once = client.create(memory=GIB, time=300)
    with pytest.raises(UsageError, match="only a grant that is kept"):
        client.bind(once["id"], "process", uid=NOBODY, gid=NOBODY)


def test_a_scheduler_binds_a_process_by_its_pid(daemon, client, phase_of):
    kept = client.create(memory=GIB, time=300, keep=True)
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as task:
        directory = client.bind(kept["id"], "process", pid=task.pid)["env"]["GPUSHARE_GRANT_DIR"]
        assert client.bind(kept["id"], "process", pid=task.pid)["env"]["GPUSHARE_GRANT_DIR"] == directory
        assert daemon.cgroup(kept["id"]).pids() == [task.pid]
        assert phase_of(kept["id"]) == "active"
    until(lambda: phase_of(kept["id"]) == "bound", "the task has ended", 20)
    with pytest.raises(Exception, match=f"process {task.pid} cannot be watched|has ended"):
        client.bind(kept["id"], "process", pid=task.pid)
    assert phase_of(kept["id"]) == "bound"


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@needs_root
def test_users_bind_only_their_own(public):
    path = public.layout.socket
    open_to_members(public.layout.socket)
    theirs = public.client.create(memory=GIB, time=100, keep=True, uid=NOBODY, key="job")
    assert theirs["uid"] == NOBODY
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as roots:
        answer = as_nobody(lambda: Client(path).bind(theirs["id"], "process", pid=roots.pid))
        assert answer.startswith(ForbiddenError.__name__) and "another user's" in answer
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, user=NOBODY, group=NOBODY, extra_groups=[]) as own:
        assert as_nobody(lambda: Client(path).bind(theirs["id"], "process", pid=own.pid)) == "ok"
        assert public.client.grant(theirs["id"])["phase"] == "active"
    answer = as_nobody(lambda: Client(path).create(memory=GIB, time=100, uid=0))
    assert answer.startswith(ForbiddenError.__name__) and "only root" in answer
    answer = as_nobody(lambda: Client(path).bind(theirs["id"], "process", uid=NOBODY, gid=NOBODY))
    assert answer.startswith(ForbiddenError.__name__) and "only root" in answer


@needs_root
def test_all_of_a_users_processes_where_a_scheduler_asks_for_it(public, phase_of):
    client = public.client
    job = client.create(memory=GIB, time=100, keep=True, uid=NOBODY)["id"]
    env = client.bind(job, "process", uid=NOBODY, gid=NOBODY)["env"]
    assert phase_of(job) == "active"
    assert not any(wall["holds"] for wall in client.grant(job)["walls"])
    as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    tasks = [Tenant([*as_user, str(SPIN)], {**os.environ, **env}) for _ in range(2)]
    assert tasks[0].tell("alloc 600MiB")["ok"]
    assert not tasks[1].tell("alloc 600MiB")["ok"]
    for task in tasks:
        task.close()
    until(lambda: not client.grant(job)["processes"], "they are gone", 20)
    assert phase_of(job) == "active", "the scheduler says when the job has ended"
    client.release(job)
