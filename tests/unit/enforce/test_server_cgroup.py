"""Which hierarchies limit a carrier's server, and the files that are written there."""

import os
from pathlib import Path

import pytest

from gpushare.enforce import server_cgroup
from gpushare.enforce.server_cgroup import Tree
from gpushare.errors import FailedError

_V2 = "30 20 0:26 / {} rw - cgroup2 cgroup2 rw\n"
_V1 = "31 20 0:27 / {} rw - cgroup cgroup rw,{}\n"


def test_one_hierarchy_for_all() -> None:
    assert server_cgroup.trees(_V2.format("/cg")) == [Tree(Path("/cg"), True, frozenset({"memory", "pids"}))]


def test_hybrid() -> None:
    text = _V1.format("/m", "memory") + _V2.format("/cg") + _V1.format("/cpu", "cpu,cpuacct")
    assert server_cgroup.trees(text) == [
        Tree(Path("/cg"), True, frozenset({"pids"})),
        Tree(Path("/m"), False, frozenset({"memory"})),
    ]


def test_v1_alone() -> None:
    text = _V1.format("/m", "memory") + _V1.format("/p", "pids") + _V1.format("/again", "pids")
    assert server_cgroup.trees(text) == [
        Tree(Path("/m"), False, frozenset({"memory"})),
        Tree(Path("/p"), False, frozenset({"pids"})),
    ]


def test_nothing_limits_processes() -> None:
    with pytest.raises(FailedError, match="with the pids controller"):
        server_cgroup.trees(_V1.format("/m", "memory"))


@pytest.mark.parametrize("v2", [True, False])
def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, v2: bool) -> None:
    """In plain directories, since no machine has both kinds."""
    tree = Tree(tmp_path, v2, frozenset({"memory", "pids"}))
    monkeypatch.setattr(server_cgroup, "trees", lambda: [tree])
    parent = tmp_path / server_cgroup.PARENT
    parent.mkdir()
    for group in (tmp_path, parent):
        (group / "cgroup.subtree_control").write_text("memory")
    server_cgroup.enter()
    server_cgroup.limit(5 << 20, 7)
    group = tree.group(os.getpid()).path
    assert group == parent / str(os.getpid())
    written = {path.name: path.read_text() for path in group.iterdir()}
    assert written["cgroup.procs"] == str(os.getpid())
    assert written["pids.max"] == "7"
    assert written["memory.max" if v2 else "memory.limit_in_bytes"] == str(5 << 20)
    assert written["memory.swap.max"] == ("0" if v2 else str(5 << 20))
    assert [(one / "cgroup.subtree_control").read_text() for one in (tmp_path, parent)] == [
        "+pids" if v2 else "memory"
    ] * 2
