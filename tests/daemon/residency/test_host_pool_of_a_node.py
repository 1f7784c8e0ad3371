"""The host pool as people see it: the node API, metrics, the doctor, tenants.toml."""

import json
import os
import re
import resource

import pytest
from run.running import Daemon

from gpushare.daemon.residency.opening import open_pool
from gpushare.daemon.timing import Timing
from gpushare.doctor import host_pool
from gpushare.enforce import memory_cgroup
from gpushare.enforce.cgroup import Cgroup
from gpushare.errors import FailedError, UsageError
from gpushare.hostpool import memory_file
from gpushare.paths import Layout

GIB = 1 << 30


@pytest.fixture
def configured(tmp_path):
    """Starts a daemon with this text as gpushare.toml."""
    started = []

    def start(text):
        state = tmp_path / "state"
        state.mkdir()
        (tmp_path / "gpushare.toml").write_text(text)
        started.append(Daemon(state, options=("--config", str(tmp_path / "gpushare.toml"))))
        started[0].start()
        return started[0]

    yield start
    for daemon in started:
        daemon.stop()


def about_pool(daemon):
    findings = json.loads(daemon.cli("doctor", "--json").stdout)["findings"]
    return [(one["level"], one["found"]) for one in findings if one["what"] == "host pool"]


def test_half_of_what_is_free_by_default_and_nothing_of_it_taken(configured):
    before = memory_file.available()
    daemon = configured("")
    pool = daemon.client.node()["host_pool"]
    assert pool["size"] % GIB == 0
    assert before // 4 - GIB <= pool["size"] <= max(before, memory_file.available())
    assert (pool["free"], pool["reserved"], pool["used"], pool["segments"]) == (pool["size"], 0, 0, 0)
    assert pool["segments_most"] == resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2
    assert bool(pool["cgroup"]) != bool(pool["uncharged"])
    assert not pool["cgroup"] or not os.path.exists(pool["cgroup"]), "made when there is something to charge"
    metrics = dict(re.findall(r'gpushare_host_pool_bytes\{state="(\w+)"\} (\d+)', daemon.client.text("/metrics")))
    assert metrics == {"free": str(pool["size"]), "reserved": "0", "used": "0"}
    [(level, found), *_] = about_pool(daemon)
    assert level == "ok"
    assert "0 of at most" in found


def test_a_pool_that_the_node_cannot_hold_is_found(configured):
    daemon = configured('[memory]\nhost_pool = "15TiB"\n')
    levels = dict(about_pool(daemon))
    assert levels["wrong"].startswith("15TiB, and the node has ")
    assert "15TiB" in levels["ok"]


def test_none(configured):
    daemon = configured('[memory]\nhost_pool = "0"\n')
    assert daemon.client.node()["host_pool"]["size"] == 0
    assert about_pool(daemon) == [("ok", "none, host_pool is 0: no memory of grants leaves their devices")]


def test_without_a_cgroup_it_stays_within_what_the_daemon_may_have(tmp_path, monkeypatch):
    def refused(_):
        raise FailedError("no cgroup can be made in /sys/fs/cgroup: Read-only file system")

    monkeypatch.setattr(memory_cgroup, "at_root", refused)
    for room, size in ((None, 8 * GIB), (64 * GIB, 8 * GIB), (5 * GIB, 5 * GIB // 2)):
        monkeypatch.setattr(memory_cgroup, "room", lambda room=room: room)
        facts = open_pool(8 * GIB, Layout.of(tmp_path), Timing()).facts()
        assert (facts.size, facts.cgroup) == (size, "")
        assert "Read-only file system" in facts.uncharged


def test_what_else_the_doctor_finds():
    well = {"size": 4 * GIB, "free": 4 * GIB, "reserved": 0, "used": 0, "kept": 0}
    well |= {"cgroup": "/sys/fs/cgroup/gpushare-pool-1", "uncharged": "", "segments": 0, "segments_most": 5000}

    def found(**changes):
        return [(one.level, one.found) for one in host_pool.look(well | changes) if one.level != "ok"]

    size = memory_file.total() // GIB * GIB
    assert found(size=4096) == []
    [(level, text)] = found(size=size)
    assert (level, text.split(" are not taken")[0]) == ("note", f"{size // GIB}GiB of its {size // GIB}GiB")
    assert found(size=GIB, cgroup="", uncharged="no root") == [
        ("note", "its memory counts as the daemon's own: no root")
    ]
    assert found(size=GIB, segments_most=200) == [
        ("note", "at most 200 segments for 1GiB: the daemon may open too few files")
    ]
    [(level, text)] = found(size=GIB, kept=GIB)
    assert (level, text.split(",")[0]) == ("note", "1GiB were given back")


def test_a_tenant_has_a_limit_of_its_own(daemon):
    daemon.cli("tenants", "set", "lab", "--host-memory", "8GiB")
    tenants = {tenant["name"]: tenant for tenant in daemon.client.tenants()}
    assert tenants["lab"]["host_memory"] == 8 * GIB
    assert tenants["default"]["host_memory"] is None
    assert "host_memory = " in (daemon.state_dir / "tenants.toml").read_text()
    with pytest.raises(UsageError, match="tenant lab: host_memory 'much' is not a size"):
        daemon.client.set_tenant("lab", {"host_memory": "much"})


def test_a_restart_does_not_shrink_it(tmp_path, monkeypatch):
    group = Cgroup(tmp_path / "group", v2=True)
    group.make()
    monkeypatch.setattr(memory_cgroup, "at_root", lambda _: group)
    monkeypatch.setattr(memory_file, "available", lambda: 10 * GIB)
    (group.path / "memory.current").write_text(f"{30 * GIB}\n")
    assert open_pool(None, Layout.of(tmp_path), Timing()).size_bytes == 20 * GIB
    (group.path / "memory.current").write_text("4096\n")
    assert open_pool(None, Layout.of(tmp_path), Timing()).size_bytes == 5 * GIB
