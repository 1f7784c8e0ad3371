"""kill -9 of the daemon at any moment: every live grant is taken over, nothing leaks, no row is lost."""

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time

import pytest
from run.built import SUPPORT
from run.waiting import until

from gpushare.binding.pages import LimitsPage
from gpushare.daemon.host import directories
from gpushare.daemon.host.peer import start_time
from gpushare.errors import FailedError, GpushareError
from gpushare.inject import cdi


def tell(child, word):
    child.stdin.write(word + "\n")
    return child.stdout.readline().split()


def epoch_of(daemon, grant_id):
    with LimitsPage.open(daemon.layout.grants / grant_id / "self" / "limits", writable=False) as page:
        return page.daemon_epoch


def test_living_grants_are_taken_over(daemon):
    client = daemon.client
    first, first_id = daemon.join()
    second, second_id = daemon.join()
    tell(first, "hold 123456")
    reserved = client.create(memory="1GiB", time="10%", key="later")
    before = epoch_of(daemon, first_id)
    run = client.node()["epoch"]
    daemon.kill()
    assert first.poll() is None
    daemon.start()

    assert client.node()["epoch"] == run + 1
    grants = {grant["id"]: grant for grant in client.grants()}
    assert set(grants) == {first_id, second_id, reserved["id"]}
    assert grants[first_id]["phase"] == "active"
    assert grants[first_id]["processes"] == [first.pid]
    assert grants[first_id]["devices"][0]["memory_bytes"] == 123456
    assert grants[reserved["id"]]["phase"] == "reserved"
    assert epoch_of(daemon, first_id) == before + 1
    word, _, slot, generation, *_ = tell(first, "rejoin")
    assert (word, slot, generation) == ("joined", "0", "1")
    assert client.create(memory="1GiB", time="10%", key="later")["id"] == reserved["id"]
    second.stdin.write("end\n")
    second.wait(20)


def test_who_died_meanwhile_is_released(daemon):
    alive, alive_id = daemon.join()
    dead, dead_id = daemon.join()
    daemon.kill()
    dead.kill()
    dead.wait()
    daemon.start()
    grant = daemon.client.grant(dead_id)
    assert (grant["phase"], grant["reason"]) == ("released", "its processes have ended")
    assert daemon.grant_dirs() == {alive_id}
    alive.kill()
    alive.wait()
    until(lambda: daemon.client.grant(alive_id)["phase"] == "released", "watched again after the restart")


def test_dead_member_of_a_living_grant_is_cleared(daemon):
    child = daemon.tenant("sh", "-c", f"{os.sys.executable} {SUPPORT}/run/joiner.py; read line")
    _, grant_id, _, _, pid, _ = child.stdout.readline().split()
    tell(child, "hold 5000")
    daemon.kill()
    os.kill(int(pid), signal.SIGKILL)
    daemon.start()
    grant = daemon.client.grant(grant_id)
    assert (grant["phase"], grant["processes"]) == ("active", [])
    assert grant["devices"][0]["memory_bytes"] == 0


def test_reservations_expire_over_a_restart(daemon):
    grant = daemon.client.create(memory="1GiB", time="10%", ttl_seconds=1)
    daemon.kill()
    daemon.start()
    until(lambda: daemon.client.grant(grant["id"])["phase"] == "expired", "expired")
    assert daemon.grant_dirs() == set()


def test_missing_or_foreign_page_fails_the_grant_only(daemon):
    one, one_id = daemon.join()
    two, two_id = daemon.join()
    three, three_id = daemon.join()
    daemon.kill()
    directories = {name: daemon.layout.grants / name / "self" for name in (one_id, two_id)}
    (directories[one_id] / "limits").unlink()
    (directories[two_id] / "usage").write_bytes(b"not a page")
    daemon.start()
    assert daemon.client.grant(one_id)["phase"] == "failed"
    assert "limits" in daemon.client.grant(one_id)["reason"]
    assert daemon.client.grant(two_id)["phase"] == "failed"
    assert daemon.client.grant(three_id)["phase"] == "active"
    assert one.wait(20) == two.wait(20) == -9
    assert three.poll() is None
    assert daemon.grant_dirs() == {three_id}


def test_after_a_reboot_no_process_is_touched(daemon):
    child, grant_id = daemon.join()
    daemon.kill()
    with contextlib.closing(sqlite3.connect(daemon.layout.ledger)) as ledger:
        ledger.execute("UPDATE runs SET boot_id = 'another'")
        ledger.commit()
    daemon.start()
    grant = daemon.client.grant(grant_id)
    assert (grant["phase"], grant["reason"]) == ("failed", "the machine was restarted")
    assert child.poll() is None
    assert daemon.grant_dirs() == set()


def test_a_cgroup_left_behind_is_removed(daemon):
    child, grant_id = daemon.join()
    path = daemon.cgroup(grant_id).path
    child.stdin.write("end\n")
    child.wait(20)
    until(lambda: not path.exists(), "the cgroup is gone")
    until(lambda: not os.listdir(daemon.layout.cgroups), "its link too")
    daemon.kill()
    (daemon.layout.cgroups / grant_id).symlink_to(path)
    path.mkdir()
    daemon.start()
    assert not path.exists() and not os.listdir(daemon.layout.cgroups)


def test_stray_files_are_removed(daemon):
    daemon.kill()
    (daemon.layout.grants / "g-stray").mkdir()
    spec = daemon.layout.cdi / "gpushare.dev-gpu_g-stray.json"
    unfinished = daemon.layout.cdi / ".gpushare.dev-gpu_g-stray.json.tmp"
    foreign = daemon.layout.cdi / "nvidia.json"
    spec.write_text("{}")
    unfinished.write_text("{")
    foreign.write_text("{}")
    daemon.start()
    assert daemon.grant_dirs() == set()
    assert not spec.exists()
    assert not unfinished.exists()
    assert foreign.exists()
    foreign.unlink()


@pytest.mark.parametrize("obstacle", ["full", "read-only", "directories"])
def test_specs_that_cannot_be_written_end_nothing(make_daemon, obstacle):
    """Containers that run need no CDI spec. What is missing is written as soon as it can be."""
    daemon = make_daemon().quicken(health=0.05).start()
    client, place = daemon.client, daemon.layout.cdi
    made = [client.create(memory="1GiB", time="10%")["id"] for _ in range(2)]
    running, unused = made
    child = subprocess.Popen(["sleep", "1000"])
    try:
        client.call("POST", f"/v1/hooks/create-runtime?grant={running}", {"pid": child.pid, "annotations": {}})
        daemon.kill()
        (place / "gpushare.dev-gpu_g-stray.json").touch()
        in_the_way = [place / cdi.name(name) for name in (*made, "any", "g-other")] if obstacle == "directories" else []
        for path in in_the_way:
            path.unlink(missing_ok=True)
            path.mkdir()
        if obstacle == "full":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "none", place], check=True)
            (place / "ballast").write_bytes(bytes(4096))
        elif obstacle == "read-only":
            subprocess.run(["mount", "--bind", place, place], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True)
        try:
            daemon.start()
            assert {grant["id"]: grant["phase"] for grant in client.grants()} == {running: "active", unused: "reserved"}
            if obstacle != "read-only":  # there the specs have not changed
                assert f"grant {running} goes on" in daemon.log.read_text()
        finally:
            if obstacle != "directories":
                subprocess.run(["umount", "-l", place], check=True)
            for path in in_the_way:
                path.rmdir()
        if obstacle == "read-only":
            for path in place.iterdir():
                path.unlink()
        wanted = {cdi.name(name) for name in (*made, "any")}
        until(lambda: wanted <= set(os.listdir(place)), "specs are written again")
        assert child.poll() is None
        client.release(running)
        client.release(unused)
        child.wait(20)
    finally:
        child.kill()
        child.wait()


def test_a_link_that_leads_nowhere_is_no_directory_of_specs(tmp_path):
    (tmp_path / "cdi").symlink_to("nowhere")
    with pytest.raises(FailedError, match="is not a directory: remove it"):
        directories.own(tmp_path / "cdi")


def test_clean_stop_keeps_what_runs_and_removes_the_rest(daemon):
    child, grant_id = daemon.join()
    reserved = daemon.client.create(memory="1GiB", time="10%")
    daemon.client.prepare("remembered", [{"memory": "1GiB", "time": "10%"}])
    daemon.client.abort("remembered")
    assert daemon.terminate() == 0
    assert child.poll() is None
    assert daemon.grant_dirs() == {grant_id}
    assert not daemon.layout.socket.exists()
    daemon.start()
    assert daemon.client.grant(grant_id)["phase"] == "active"
    assert daemon.client.grant(reserved["id"])["phase"] == "released"
    child.stdin.write("end\n")
    child.wait(20)
    until(lambda: daemon.client.grants() == [], "released")
    simulator = daemon.client.node()["sim_pid"]
    assert daemon.terminate() == 0
    assert start_time(simulator) is None
    assert not daemon.layout.grants.exists(), list(daemon.layout.grants.rglob("*"))
    assert daemon.specs() == []
    daemon.start()
    assert "remembered" in [part["gang"] for part in daemon.client.gangs()]


def test_a_tenant_taken_out_of_the_file_does_not_stop_the_daemon(daemon):
    daemon.client.set_tenant("gone", {"time": 500})
    child = daemon.tenant("cat", tenant="gone")
    [grant] = until(daemon.client.grants, "the grant")
    assert tell(child, "runs") == ["runs"]
    daemon.kill()
    (daemon.state_dir / "tenants.toml").unlink()
    daemon.start()
    assert daemon.client.grant(grant["id"])["phase"] == "active"
    assert daemon.client.create(memory="1GiB", time="10%")["tenant"] == "default"
    assert child.poll() is None


def test_simulator_outlives_a_killed_daemon(daemon):
    before = daemon.client.node()["sim_pid"]
    daemon.kill()
    daemon.start()
    assert daemon.client.node()["sim_pid"] == before


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_killed_at_random_points(daemon, seed):
    """Clients create, use and release grants while the daemon is killed and restarted: at the end everything is
    accounted for."""
    rng = random.Random(seed)
    keeper, keeper_id = daemon.join()
    tell(keeper, "hold 77777")
    stop = threading.Event()
    made = set()

    def churn():
        # Does not wait for the daemon: clients see errors while it is down.
        while not stop.is_set():
            with contextlib.suppress(GpushareError, OSError):
                grant = daemon.client.create(memory="1GiB", time="5%", ttl_seconds=1)
                made.add(grant["id"])
                if rng.random() < 0.5:
                    daemon.client.release(grant["id"])

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        for _ in range(3):
            time.sleep(rng.uniform(0.0, 0.25))
            daemon.kill()
            daemon.start()
    finally:
        stop.set()
        worker.join()
    client = daemon.client
    assert client.grant(keeper_id)["phase"] == "active"
    assert client.grant(keeper_id)["devices"][0]["memory_bytes"] == 77777
    until(lambda: [grant["id"] for grant in client.grants()] == [keeper_id], "reservations expire")
    assert daemon.grant_dirs() == {keeper_id}
    assert daemon.specs() == []
    keeper.kill()
    keeper.wait()
    until(lambda: client.grants() == [], "the keeper is released")
    assert daemon.grant_dirs() == set()
    assert client.devices()[0]["guaranteed"] == {"time": 0, "memory": 0}
    rows = dict(daemon.rows("SELECT id, ended_ns FROM grants"))
    assert made <= set(rows)
    assert None not in rows.values()


@pytest.mark.parametrize("moment", ["configuration.load", "app.open_records", "app.Arbiter.close"])
def test_a_reload_while_the_daemon_starts_or_stops_ends_nothing(make_daemon, moment):
    daemon = make_daemon().start()
    _, grant_id = daemon.join()
    daemon.terminate()
    daemon.patch(
        "import os, signal",
        "from gpushare.daemon import app, config as configuration",
        f"real = {moment}",
        f"{moment} = lambda *given: os.kill(os.getpid(), signal.SIGHUP) or real(*given)",
    )
    daemon.start()
    assert daemon.client.grant(grant_id)["phase"] == "active"
    assert daemon.terminate() == 0
    assert "Traceback" not in daemon.log.read_text()
