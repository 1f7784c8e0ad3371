"""The Nomad plugin's decisions, without Nomad."""

import msgspec
import pytest

from gpushare.adapters.nomad import plugin, tasks
from gpushare.adapters.nomad.tasks import Config, Watch
from gpushare.adapters.nomad.usage import Usage
from gpushare.errors import UsageError

S = 1_000_000_000
GIVEN = Config(idle_seconds=10, start_seconds=100)


def grant(peak=0):
    return {"id": "g", "devices": [{"memory_peak_bytes": peak}]}


def test_a_grant_waits_for_its_task_and_for_its_next_start():
    watch = Watch()
    assert watch.look([grant()], (), GIVEN, 0) == []
    assert watch.look([grant()], (), GIVEN, 99 * S) == []
    assert watch.look([grant()], {"g"}, GIVEN, 200 * S) == []
    assert watch.look([grant()], (), GIVEN, 209 * S) == []
    assert watch.look([grant()], {"g"}, GIVEN, 215 * S) == [], "restarted"
    assert watch.look([grant()], (), GIVEN, 225 * S) == ["g"]


def test_a_task_that_never_starts():
    watch = Watch()
    watch.look([grant()], (), GIVEN, 0)
    assert watch.look([grant()], (), GIVEN, 100 * S) == ["g"]


def test_a_task_that_came_and_went_between_two_looks():
    watch = Watch()
    watch.look([grant()], (), GIVEN, 0)
    assert watch.look([grant(peak=1)], (), GIVEN, 5 * S) == []
    assert watch.look([grant(peak=1)], (), GIVEN, 15 * S) == ["g"]


def test_configuration():
    assert tasks.config(b"") == Config()
    assert tasks.config(msgspec.msgpack.encode({"slots": 4, "tenant": None})) == Config(slots=4)
    for wrong in (b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"slots": "4"})):
        with pytest.raises(UsageError, match="makes no sense"):
            tasks.config(wrong)


def test_versions_of_the_handshake():
    name, value = "NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"
    assert plugin.handshake({name: value}) == 2
    assert plugin.handshake({name: value, "PLUGIN_PROTOCOL_VERSIONS": "1"}) == 1
    assert plugin.handshake({name: value, "PLUGIN_PROTOCOL_VERSIONS": "1,2,3"}) == 2
    with pytest.raises(UsageError, match="for Nomad to start"):
        plugin.handshake({name: "x"})


def process(proc, pid, group, environ=b""):
    (proc / pid).mkdir(exist_ok=True)
    (proc / pid / "cgroup").write_text(f"0::{group}\n")
    (proc / pid / "environ").write_bytes(environ)


def test_a_task_is_found_by_its_environment_and_then_by_its_cgroup(tmp_path):
    process(tmp_path, "self", "/agent")
    usage = Usage(tmp_path)
    directories = {"g": "/run/g/self", "h": "/run/h/self"}
    process(tmp_path, "10", "/nomad/task", b"A=1\0GPUSHARE_GRANT_DIR=/run/g/self\0")
    process(tmp_path, "11", "/agent", b"GPUSHARE_GRANT_DIR=/run/h/self")
    assert set(usage.used(directories)) == {"g", "h"}
    process(tmp_path, "10", "/nomad/task")
    process(tmp_path, "11", "/agent")
    assert set(usage.used(directories)) == {"g"}, "a task in the agent's cgroup has its environment alone"
    process(tmp_path, "10", "/other")
    assert set(usage.used(directories)) == set()
