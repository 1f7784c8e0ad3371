"""Where the host pool's cgroup is, on each kind of machine."""

import os
from pathlib import Path

import pytest

from gpushare.enforce import memory_cgroup
from gpushare.enforce.memory_cgroup import Hierarchy
from gpushare.errors import FailedError

UNIFIED = "30 24 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
OTHER = "32 24 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
HYBRID = "33 24 0:31 / /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n"


def test_the_controller_is_v1s_where_that_has_it():
    assert Hierarchy.find(UNIFIED) == Hierarchy(Path("/sys/fs/cgroup"), v2=True)
    assert Hierarchy.find(HYBRID + OTHER + V1) == Hierarchy(Path("/sys/fs/cgroup/memory"), v2=False)
    assert Hierarchy.find(OTHER + "1 1 0:1 / / rw - ext4 /dev/sda rw\n") is None


def test_a_root_that_lends_its_controller(tmp_path):
    (tmp_path / "cgroup.subtree_control").write_text("cpu\n")
    with pytest.raises(FailedError, match="counts no memory: the memory controller is not enabled"):
        memory_cgroup.at_root("gpushare-test", Hierarchy(tmp_path, v2=True))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory", "it was asked for"
    assert not (tmp_path / "gpushare-test").exists()


def test_one_that_is_there_already_is_used_and_removed_when_it_holds_nothing(tmp_path):
    where, usage = Hierarchy(tmp_path, v2=False), tmp_path / "gpushare-test" / "memory.usage_in_bytes"
    usage.parent.mkdir()
    usage.write_text("1073741824\n")
    group = memory_cgroup.at_root("gpushare-test", where)
    assert memory_cgroup.charged(group) == 1 << 30
    memory_cgroup.remove_unused(group)
    assert usage.exists(), "segments of an earlier daemon are charged to it"


@pytest.mark.parametrize(
    ("v2", "most", "now", "unlimited"),
    [
        (True, "memory.max", "memory.current", "max"),
        (False, "memory.limit_in_bytes", "memory.usage_in_bytes", str(2**63 - 4096)),
    ],
)
def test_what_is_left_is_the_least_on_the_way_to_the_root(tmp_path, monkeypatch, v2, most, now, unlimited):
    where = Hierarchy(tmp_path, v2)
    monkeypatch.setattr(
        memory_cgroup, "memberships", lambda _: iter([(["cpu"], []), ([], ["a", "b"]), (["memory"], ["a", "b"])])
    )
    for group, limit, used in ((tmp_path / "a", 8 << 30, 1 << 30), (tmp_path / "a" / "b", unlimited, 1)):
        group.mkdir()
        (group / most).write_text(f"{limit}\n")
        (group / now).write_text(f"{used}\n")
    assert memory_cgroup.room(hierarchy=where) == 7 << 30
    (tmp_path / "a" / "b" / most).write_text(f"{1 << 30}\n")
    assert memory_cgroup.room(hierarchy=where) == (1 << 30) - 1
    (tmp_path / "a" / now).write_text(f"{9 << 30}\n")
    assert memory_cgroup.room(hierarchy=where) == 0
    assert memory_cgroup.room(hierarchy=Hierarchy(tmp_path / "none", v2)) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_real_one():
    if Hierarchy.find() is None:
        pytest.skip("this machine has no memory controller")
    name = f"gpushare-test-at-root-{os.getpid()}"
    group = memory_cgroup.at_root(name)
    try:
        assert memory_cgroup.at_root(name) == group
        assert memory_cgroup.charged(group) == 0
    finally:
        memory_cgroup.remove_unused(group)
    assert not group.path.exists()
    with pytest.raises(FailedError, match="no cgroup can be made"):
        memory_cgroup.at_root("not/there", Hierarchy(group.path.parent, group.v2))
