"""The kernel restricts a workload to its granted devices; harmless device nodes stand in for GPUs."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpushare.daemon.guard.tracepoint import Tracepoint
from gpushare.daemon.guard.walls import Walls
from gpushare.daemon.state.hardware import Hardware
from gpushare.daemon.state.records import GrantRecord, WorkloadRecord
from gpushare.daemon.workloads.workloads import Held
from gpushare.enforce import cgroup
from gpushare.enforce.walls import Table
from gpushare.inject.node import DeviceNode, Node
from gpushare.node.devices import Device
from gpushare.paths import Layout
from gpushare.policy.grants.admission import Place
from gpushare.policy.grants.lifecycle import begin

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may attach device programs")

NAME = f"g-guard-test-{os.getpid()}"
NULL, ZERO = DeviceNode("/dev/null", 1, 3), DeviceNode("/dev/zero", 1, 5)
NOT_ASKED = SimpleNamespace(asked=False, admit=lambda record, group: None)
OPENS = "for one in null zero; do (: < /dev/$one) && echo $one; done"


@pytest.fixture
def walls(tmp_path) -> Walls:
    devices = [Device(f"GPU-{i}", i, i, "n", "", 1 << 30, nodes=(node,)) for i, node in enumerate((NULL, ZERO))]
    layout = Layout.of(tmp_path)
    state = SimpleNamespace(layout=layout, walls=Table(), devices=[], faults={})
    made = Walls(state, Hardware(Node(), devices), None, Node(), "best", Tracepoint(state, None, "kill"), NOT_ASKED)
    made.start()
    assert not os.listdir(layout.cgroups), "the throw-away cgroups are gone"
    return made


def a_grant() -> GrantRecord:
    life, _ = begin(0, NAME, 1)
    places = [Place("GPU-0", 0, 1 << 30, 100, 100, 1000)]
    return GrantRecord(life=life, key=None, request=None, uid=0, places=places, created_ns=0, run_uid=0, run_gid=0)


def put_up(walls, group, pid, link="") -> WorkloadRecord:
    workload = WorkloadRecord(pid=pid, started=0, cgroup=None)
    walls.put_up(a_grant(), Held(group, "", link), workload)
    return workload


@pytest.mark.promise("own-nodes-only")
def test_only_granted_nodes_open(walls):
    if (unified := cgroup.Hierarchies.of().unified) is None:
        pytest.skip("no cgroup v2 on this machine")
    group = cgroup.Cgroup(unified / NAME, v2=True)
    group.make()
    try:
        assert put_up(walls, group, os.getpid()).unguarded == ""
        script = f"echo $$ > {group.path}/cgroup.procs; {OPENS}"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout == "null\n"
        assert "Operation not permitted" in done.stderr
    finally:
        group.remove()


@pytest.fixture
def v1(monkeypatch) -> cgroup.Hierarchies:
    """This machine without its v2 hierarchy."""
    here = cgroup.Hierarchies.of()
    if here.freezer is None or here.devices is None:
        pytest.skip("needs v1 hierarchies")
    alone = cgroup.Hierarchies(None, here.freezer, here.devices)
    monkeypatch.setattr(cgroup, "_here", lambda: alone)
    return alone


def test_the_v1_controller_for_a_plain_command(v1, walls):
    assert {one.name for one in walls.facts() if one.holds} >= {"cgroup", "devices", "freezer"}
    process = subprocess.Popen(
        ["sh", "-c", f"read line; {OPENS}; mkdir $0/inner; echo $$ > $0/inner/cgroup.procs; {OPENS}", str(v1.devices)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        group = cgroup.below(process.pid, NAME)
        group.make()
        group.add(process.pid)
        assert put_up(walls, group, process.pid, link=NAME).unguarded == ""
        answer, _ = process.communicate("\n")
    links = walls._state.layout.cgroups
    [link] = links.iterdir()
    assert "gpushare-" in os.fspath(link.readlink()) and link.readlink().is_relative_to(v1.devices)
    os.rmdir(v1.devices / "inner")
    assert cgroup.Cgroup(link.readlink(), v2=False).remove() and group.remove()
    assert answer == "null\nnull\nzero\n", "a process that root lets leave its cgroup is free"


def test_the_v1_controller_beside_an_engines_own_rules(v1, walls):
    """Rules as runc leaves them: only listed devices are permitted, and the list permits too much."""
    made = [cgroup.Cgroup(v1.freezer / NAME, v2=False), cgroup.Cgroup(v1.devices / NAME, v2=False)]
    for one in made:
        one.make()
    rules = made[1].path
    (rules / "devices.deny").write_text("a")
    for rule in ("c 1:3 rwm", "c 1:5 rwm", "c *:* m"):
        (rules / "devices.allow").write_text(rule)
    process = subprocess.Popen(
        ["sh", "-c", f"read line; {OPENS}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, preexec_fn=lambda: [one.add(os.getpid()) for one in made],
    )  # fmt: skip
    with process:
        assert put_up(walls, made[0], process.pid).unguarded == ""
        answer, _ = process.communicate("\n")
    assert answer == "null\n"
    for one in made:
        assert one.remove()


def test_a_cgroup_that_is_not_the_containers_alone_is_left(v1, walls):
    here = Path("/proc/self/cgroup").read_text()
    child = subprocess.Popen(["sleep", "100"])
    try:
        with pytest.raises(Exception, match=r"for process .* alone"):
            put_up(walls, cgroup.Cgroup(v1.freezer, v2=False), child.pid)
    finally:
        child.kill()
        child.wait()
    assert Path("/proc/self/cgroup").read_text() == here
