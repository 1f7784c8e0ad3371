import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine.freezer import freeze, frozen
from run.waiting import until

from gpushare.enforce import cgroup
from gpushare.enforce.cgroup import Cgroup, Hierarchies
from gpushare.errors import FailedError

HYBRID = """\
24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
30 24 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
31 24 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
32 24 0:30 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw
"""


def test_hierarchies():
    hybrid = Hierarchies(Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/freezer"))
    assert Hierarchies.of(HYBRID) == hybrid
    assert Hierarchies.of("".join(HYBRID.splitlines(True)[:3])) == Hierarchies(None, hybrid.freezer)
    assert Hierarchies.of("24 1 0:22 / /sys/fs/cgroup rw - cgroup2 none rw") == Hierarchies(
        Path("/sys/fs/cgroup"), None
    )


def test_neither():
    with pytest.raises(FailedError, match="neither cgroup v2 nor the v1 freezer"):
        cgroup.below(os.getpid(), "g-1", Hierarchies(None, None))


@pytest.fixture(params=["v2", "v1"])
def group(request) -> Iterator[Cgroup]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    found = Hierarchies.of()
    where = Hierarchies(found.unified, None) if request.param == "v2" else Hierarchies(None, found.freezer)
    if where == Hierarchies(None, None):
        pytest.skip(f"no {request.param} hierarchy is mounted")
    made = Cgroup((where.unified or where.freezer) / f"test-{os.getpid()}", where.unified is not None)
    made.make()
    yield made
    made.kill()
    until(made.remove, "the cgroup goes")


@pytest.fixture
def sleeper(group) -> Iterator[subprocess.Popen]:
    """A process with a child."""
    process = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & echo up; wait"], stdout=subprocess.PIPE, preexec_fn=lambda: group.add(os.getpid())
    )
    assert process.stdout.readline() == b"up\n"
    with process:
        yield process
        group.kill()


def test_a_life(group, sleeper):
    assert sleeper.pid in group.pids() and len(group.pids()) == 2
    assert group.populated() and not frozen(group)
    assert not group.remove()
    group.kill()
    assert sleeper.wait(10) == -signal.SIGKILL
    until(lambda: not group.populated(), "it is empty")
    assert group.pids() == []
    assert group.remove() and group.remove()
    assert not group.path.exists()
    assert not group.populated()
    group.kill()


def test_kill_reaches_a_frozen_one(group, sleeper):
    freeze(group)
    until(lambda: frozen(group), "it is frozen")
    group.kill()
    assert sleeper.wait(10) == -signal.SIGKILL


def test_events_tell_the_end(group, sleeper):
    descriptor = group.events()
    if not group.v2:
        assert descriptor is None
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLPRI)
        poll.poll(0)
        os.pread(descriptor, 256, 0)
        group.kill()
        assert poll.poll(10000)
        until(lambda: not group.populated(), "it is empty")
    finally:
        os.close(descriptor)


def test_inner_cgroups_count_and_go(group, sleeper):
    inner = Cgroup(group.path / "a" / "b", group.v2)
    inner.path.mkdir(parents=True)
    inner.add(sleeper.pid)
    assert sleeper.pid in group.pids()
    group.kill()
    sleeper.wait(10)
    until(group.remove, "the cgroup goes")


def test_made_once(group):
    with pytest.raises(FailedError, match="File exists"):
        group.make()


def test_process_that_is_gone(group):
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(FailedError, match="ended before it could be moved"):
        group.add(process.pid)
    with pytest.raises(FailedError, match="ended"):
        cgroup.of_process(process.pid)


def test_of_process(group, sleeper):
    where = Hierarchies(group.path.parent, None) if group.v2 else Hierarchies(None, group.path.parent)
    assert cgroup.of_process(sleeper.pid, where) == group


def test_a_share_is_below_its_callers_cgroup(group, sleeper):
    top = group.path.parent
    where = Hierarchies(top, None) if group.v2 else Hierarchies(None, top)
    first = cgroup.below(sleeper.pid, "g-0123456789ab", where)
    assert first == Cgroup(group.path / "gpushare-g-0123456789ab", group.v2)
    first.make()
    first.add(sleeper.pid)
    # From inside a grant: its sibling. A cgroup of another user that only has such a name counts as any other.
    assert cgroup.below(sleeper.pid, "g-ba9876543210", where).path == group.path / "gpushare-g-ba9876543210"
    foreign = Cgroup(group.path / "gpushare-g-000000000000", group.v2)
    foreign.make()
    os.chown(foreign.path, 1000, 1000)
    foreign.add(sleeper.pid)
    assert cgroup.below(sleeper.pid, "g-ba9876543210", where).path == foreign.path / "gpushare-g-ba9876543210"


def test_a_cgroup_shared_with_strangers_is_not_the_containers_own(group, sleeper):
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        where = Hierarchies.of() if group.v2 else Hierarchies(None, Hierarchies.of().freezer)
        group.add(sleeper.pid)
        assert cgroup.own_of_process(sleeper.pid, where) == group
        group.add(stranger.pid)
        assert cgroup.own_of_process(sleeper.pid, where) is None
    finally:
        stranger.kill()
        stranger.wait()
