"""The kernel restricts a workload to its granted devices; harmless device nodes stand in for GPUs."""

import os
import subprocess

import pytest

from gpushare.daemon.resources import Resources
from gpushare.daemon.state import GrantRecord
from gpushare.enforce import cgroup
from gpushare.inject.node import DeviceNode, Node
from gpushare.node.devices import Device
from gpushare.paths import Layout
from gpushare.policy.admission import Place
from gpushare.policy.lifecycle import begin

NAME = f"g-guard-test-{os.getpid()}"
NULL, ZERO = DeviceNode("/dev/null", 1, 3), DeviceNode("/dev/zero", 1, 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may attach device programs")
def test_only_granted_nodes_open(tmp_path):
    if cgroup.Hierarchies.of().unified is None:
        pytest.skip("no cgroup v2 on this machine")
    devices = [Device(f"GPU-{i}", i, i, "n", "", 1 << 30, nodes=(node,)) for i, node in enumerate((NULL, ZERO))]
    resources = Resources(Layout.of(tmp_path), Node(), devices, None)
    life, _ = begin(0, NAME, 1)
    places = [Place("GPU-0", 0, 1 << 30, 100, 100, 1000)]
    record = GrantRecord(life=life, key=None, request=None, uid=0, places=places, created_ns=0, run_uid=0, run_gid=0)
    group = cgroup.Cgroup(cgroup.Hierarchies.of().unified / NAME, v2=True)
    group.make()
    try:
        resources.guard(record, group)
        script = f"echo $$ > {group.path}/cgroup.procs; : < /dev/null && echo null; : < /dev/zero && echo zero"
        done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
        assert done.stdout == "null\n"
        assert "Operation not permitted" in done.stderr
    finally:
        group.remove()
