"""Trials of the walls: those of this machine hold, and each one that is broken here is found."""

import os
import subprocess
from pathlib import Path

import pytest

from gpushare.enforce import device_program, freezer
from gpushare.enforce.cgroup import Cgroup, Hierarchies
from gpushare.enforce.exclusive import Exclusive
from gpushare.enforce.trial import Trial
from gpushare.enforce.walls import Table
from gpushare.errors import RefusedError

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

ALL = {"cgroup", "devices", "freezer"}
TRIED = ALL | {"exclusive"}


def tried(tmp_path) -> dict[str, str]:
    """Tries the walls. For each: why it does not hold, empty if it does."""
    table = Table()
    table.try_all(Trial(tmp_path / "links", exclusive=True).walls())
    assert not os.listdir(tmp_path / "links")
    # Walls that need a driver are not tried here: see tests/daemon/guard/test_driver_memory_limits.py.
    return {one.name: one.why for one in table.standing if one.name not in ("memory", "watch")}


@pytest.mark.promise("walls-are-tried")
def test_they_hold(tmp_path):
    assert tried(tmp_path) == dict.fromkeys(TRIED, "")


def nothing(*_: object) -> None:
    """Replaces a part of a wall, to break it."""


@pytest.mark.promise("walls-are-tried")
@pytest.mark.parametrize(
    ("where", "what", "wall", "why"),
    [
        (device_program, "attach", "devices", "a device that is not granted could be opened"),
        (freezer, "freeze", "freezer", "no process is frozen within"),
        (Exclusive, "attach", "exclusive", "a process without a grant that opens a device gets: Success"),
        (Cgroup, "kill", "cgroup", "what is killed by its cgroup goes on"),
    ],
)
def test_one_that_does_nothing_is_found(tmp_path, monkeypatch, where, what, wall, why):
    monkeypatch.setattr("gpushare.enforce.trial._ANSWER_SECONDS", 0.5)
    monkeypatch.setattr("gpushare.enforce.devices.Controller.hold", nothing)
    monkeypatch.setattr(where, what, nothing)
    found = tried(tmp_path)
    assert why in found[wall]
    assert {name for name, why in found.items() if why} == {wall}


def test_a_freezer_that_only_claims_to_freeze_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("gpushare.enforce.trial._QUIET_SECONDS", 2.0)
    monkeypatch.setattr(freezer, "freeze", nothing)
    monkeypatch.setattr(freezer, "frozen", lambda _: True)
    assert tried(tmp_path)["freezer"] == "a frozen process goes on"


def test_all_ways_that_keep_something_count():
    """What a wall keeps counts as kept if one of its walls holds."""
    table = Table()
    table.add("memory", "memory", "", "an old driver")
    table.add("cgroup", "processes", "", "")
    assert [one.name for one in table.unkept()] == ["memory"]
    table.add("watch", "memory", "", "")
    assert table.unkept() == []


def bounded(daemon, *words: str):
    """Starts the daemon under this command, which simulates a different machine."""
    daemon.forked = False
    daemon.command = [*words, *daemon.command]
    return daemon.start()


def walls(found) -> dict[str, str]:
    return {wall["name"]: wall["why"] for wall in found["walls"]}


def runs(daemon) -> dict[str, str]:
    """Runs a command in a share. For each wall of its grant: why it does not hold, empty if it does."""
    process = subprocess.Popen(
        daemon.run("1GiB", "10%", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=daemon.env
    )
    with process:
        process.stdin.write(b"here\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"here\n"
        [grant] = daemon.client.grants()
    return walls(grant)


def test_without_the_right_to_load_programs(make_daemon):
    """As root in a container: no BPF, no mounts, no v1 device rules."""
    drop = "-sys_admin,-bpf,-perfmon,-net_admin"
    daemon = bounded(make_daemon(), "setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}")
    found = walls(daemon.client.node())
    assert "needs CAP_BPF" in found["devices"]
    assert (found["cgroup"], found["freezer"]) == ("", "")
    assert "the wall 'devices' does not hold" in daemon.log.read_text()
    assert runs(daemon)["devices"] == found["devices"]
    [finding] = [one for one in daemon.cli("doctor").stdout.splitlines() if "wall devices" in one]
    assert "opens every device node" in finding


def test_without_any_cgroup(make_daemon):
    script = 'for at in /sys/fs/cgroup/*/; do umount $at; done; umount /sys/fs/cgroup; exec "$@"'
    daemon = bounded(make_daemon(), "unshare", "--mount", "sh", "-c", script, "sh")
    found = walls(daemon.client.node())
    assert all("cgroup" in found[name] for name in ALL)
    assert all(runs(daemon)[name] for name in ALL)


def test_with_v1_alone(make_daemon):
    if Hierarchies.of().devices is None:
        pytest.skip("needs v1 hierarchies")
    script = 'umount /sys/fs/cgroup/unified; exec "$@"'
    daemon = bounded(make_daemon(), "unshare", "--mount", "sh", "-c", script, "sh")
    found = walls(daemon.client.node())
    assert {name for name in ALL if not found[name]} == ALL
    runs(daemon)


@pytest.mark.promise("walls-are-tried")
def test_required_refuses_where_one_is_missing(make_daemon, tmp_path):
    """The daemon starts and says why it binds nothing; no grant is left over."""
    config = tmp_path / "gpushare.toml"
    config.write_text('enforce = "required"\n')
    drop = "-sys_admin,-bpf,-perfmon,-net_admin"
    daemon = make_daemon("--simulate", "1x16GiB", "--config", str(config))
    bounded(daemon, "setpriv", f"--bounding-set={drop}", f"--inh-caps={drop}")
    assert daemon.client.node()["enforce"] == "required"
    grant = daemon.client.create(memory="1GiB", time=100)["id"]
    for kind in ("process", "container"):
        with pytest.raises(RefusedError, match=r"nothing keeps its devices, since .*CAP_BPF.*enforce = \"best\""):
            daemon.client.bind(grant, kind)
    daemon.client.release(grant)
    done = daemon.cli("run", "--memory", "1GiB", "--time", "10%", "--", "true")
    assert done.returncode == 125
    assert "this node binds no grant (enforce is required)" in done.stderr
    assert "no grant is bound (enforce is required)" in daemon.cli("doctor").stdout
    daemon.nothing_left()


def test_what_a_killed_daemon_tried_with_is_removed(fresh):
    stray = Cgroup(Path(fresh.layout.cgroups / "trial-1.0"), v2=True)
    fresh.kill()
    place = Hierarchies.of().unified or Hierarchies.of().freezer
    group = Cgroup(place / f"gpushare-trial-{os.getpid()}", v2=True)
    group.make()
    fresh.layout.cgroups.mkdir(exist_ok=True)
    stray.path.symlink_to(group.path)
    fresh.start()
    assert not group.path.exists()
    fresh.nothing_left()


def test_the_watch_holds_where_the_driver_lists_who_uses_a_device(make_daemon, tmp_path):
    """The daemon's start tries it with a process that uses a device; it also holds with a driver before r615, which
    limits no memory."""
    assert walls(make_daemon().start().client.node())["watch"] == ""
    unobserved = make_daemon().patch(
        "from gpushare.enforce import trial; trial._ANSWER_SECONDS = 0.5",
        "from gpushare.node import simulated; simulated.SimulatedBackend.processes = lambda *_: []",
    )
    found = walls(unobserved.start().client.node())
    assert found["watch"] == "the driver does not list a process that uses a device, or under another pid"
    assert found["freezer"] == "", "they are tried one by one"
    config = tmp_path / "gpushare.toml"
    config.write_text('[audit]\nevader = "tell"\n')
    notified = make_daemon("--simulate", "1x16GiB", "--config", str(config)).start()
    [watch] = [wall for wall in notified.client.node()["walls"] if wall["name"] == "watch"]
    assert watch["why"].startswith("it only tells, as configured")
    assert watch["keeps"] == "evaders", "not memory: what one takes until it is found it has"
