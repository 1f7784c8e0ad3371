"""Simulated devices have nodes like real ones, and the kernel restricts a workload to those of its grant."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run.built import SUPPORT
from run.running import copied_driver
from run.waiting import until

from gpushare import paths
from gpushare.enforce import device_program
from gpushare.enforce.cgroup import Hierarchies
from gpushare.node import standins

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make device nodes")

ATTACK = SUPPORT / "hostile" / "attack.py"
LIBRARY = paths.SIM_LIB_DIR / "libcuda.so.1"
BARE = {"LD_PRELOAD": "", "CUDA_VISIBLE_DEVICES": ""}


def node_names(daemon) -> list[str]:
    major, first = standins.chosen(daemon.layout.sim)
    return [node.path.removeprefix("/dev/") for node in standins.of((major, first), 2)]


def attack(daemon, *words, grant: dict[str, str] | None = None) -> dict:
    """Runs attack.py with a cleared environment, in a grant if `grant` has its options; returns what it printed."""
    bare = [sys.executable, str(ATTACK), *map(str, words)]
    command = ["env", "-i", f"GPUSHARE_SIM_DIR={daemon.sim_dir}", *bare]
    if grant is not None:
        command = daemon.run("1GiB", "10%", *command, **grant)
    done = subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_grant_opens_its_own_node_alone(daemon):
    own, other = node_names(daemon)
    found = attack(daemon, "nodes", grant={"gpu": "0"})
    # There is no driver behind the nodes: ENXIO means that the kernel permitted the open.
    assert (found[own], found[other]) == ("ENXIO", "EPERM")
    walls = attack(daemon, "nodes")
    assert (walls[own], walls[other]) == ("ENXIO", "ENXIO"), "without a grant nothing is denied"


def test_the_driver_serves_only_the_granted_device(make_daemon, tmp_path):
    config = tmp_path / "gpushare.toml"
    config.write_text('[audit]\nevader = "tell"\n')  # else it is frozen, as it has not joined
    daemon = make_daemon("--simulate", "2x16GiB", "--config", str(config)).start()
    assert attack(daemon, "driver", copied_driver(daemon.state_dir), 16, grant={"gpu": "1"})["devices"] == 1
    assert attack(daemon, "driver", LIBRARY, 16)["devices"] == 2


@pytest.mark.promise("own-nodes-only")
def test_no_way_round_opens_another_node(daemon):
    major, first = standins.chosen(daemon.layout.sim)
    other = f"/dev/{node_names(daemon)[1]}"
    made = attack(daemon, "made", major, first + 1, grant={"gpu": "0"})
    assert made["mknod"] == "EPERM" or made["open"] == "EPERM"
    assert attack(daemon, "reference", other, grant={"gpu": "0"}) == "EPERM"


@pytest.mark.promise("own-nodes-only")
def test_whoever_rewrites_its_own_rules_leaves_ours(daemon, tmp_path):
    """systemd at a daemon-reload and an engine at an update attach another program to the same cgroup."""
    own, other = node_names(daemon)
    script = "import os, sys, json, subprocess\nprint(os.getpid(), flush=True)\nsys.stdin.readline()\n"
    script += f"sys.stdout.write(subprocess.run([{sys.executable!r}, {str(ATTACK)!r}, 'nodes'], "
    script += "capture_output=True, text=True).stdout)"
    process = subprocess.Popen(
        daemon.run("1GiB", "10%", sys.executable, "-c", script, gpu="0"),
        env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        process.stdout.readline()
        [grant] = daemon.client.grants()
        assert {wall["name"]: wall["why"] for wall in grant["walls"]}["devices"] == ""
        device_program.attach(daemon.cgroup(grant["id"]).path, {250}, set())  # theirs, which permits all nodes
        answer, _ = process.communicate("\n")
    found = json.loads(answer)
    assert (found[own], found[other]) == ("ENXIO", "EPERM")


def test_a_list_of_the_v1_controller_that_others_write_is_put_right(make_daemon):
    """v1 has a single list, which the engine and systemd also write. A daemon started after a kill corrects it too."""
    if (rules := Hierarchies.of().devices) is None:
        pytest.skip("needs the v1 devices controller")
    daemon = make_daemon()
    daemon.forked = False
    script = 'umount "$0"; exec "$@"'
    daemon.command = ["unshare", "--mount", "sh", "-c", script, str(Hierarchies.of().unified), *daemon.command]
    daemon.start()
    _, other = node_names(daemon)
    script = "import os, sys\nfor line in sys.stdin:\n    try:\n        os.open(sys.argv[1], os.O_RDWR)\n"
    script += "    except OSError as error:\n        print(error.errno, flush=True)\n"
    process = subprocess.Popen(
        daemon.run("1GiB", "10%", sys.executable, "-c", script, f"/dev/{other}", gpu="0"),
        env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip

    def denied() -> bool:
        process.stdin.write("\n")
        return int(process.stdout.readline()) == errno.EPERM

    with process:
        assert denied()
        [grant] = daemon.client.grants()
        [group] = rules.rglob(f"gpushare-{grant['id']}")
        (group / "devices.allow").write_text("a")
        assert not denied()
        until(denied, "it is put right")
        daemon.kill()
        (group / "devices.allow").write_text("a")
        assert not denied()
        daemon.start()
        until(denied, "it is put right by the next daemon")
        assert next(wall["why"] for wall in daemon.client.grants()[0]["walls"] if wall["name"] == "devices") == ""
        process.communicate("")


def test_they_go_with_the_simulator(make_daemon):
    daemon = make_daemon().start()
    names = node_names(daemon)
    assert set(names) <= set(os.listdir("/dev"))
    daemon.terminate()
    assert not set(names) & set(os.listdir("/dev"))


def test_one_that_is_lost_is_made_again(make_daemon):
    daemon = make_daemon().start()
    names = node_names(daemon)
    daemon.kill()
    os.unlink(f"/dev/{names[0]}")
    daemon.start()
    assert set(names) <= set(os.listdir("/dev"))


def test_without_the_right_to_make_nodes_devices_have_none(make_daemon):
    daemon = make_daemon()
    daemon.forked = False
    daemon.command = ["setpriv", "--bounding-set=-mknod", "--inh-caps=-mknod", *daemon.command]
    daemon.start()
    assert standins.chosen(daemon.layout.sim) is None
    assert attack(daemon, "driver", LIBRARY, 16)["devices"] == 2
    walls = daemon.client.node()["walls"]
    assert next(wall["why"] for wall in walls if wall["name"] == "devices") == ""


def test_no_two_have_the_same(make_daemon):
    """Two daemons get different nodes even if the names of their directories hash alike; a restarted daemon keeps its
    nodes."""
    same = (
        "import hashlib, types, gpushare.node.standins as standins",
        "standins.hashlib = types.SimpleNamespace(sha256=lambda _: hashlib.sha256(b'same'))",
    )
    one, two = (make_daemon().patch(*same).start() for _ in range(2))
    names = [node_names(daemon) for daemon in (one, two)]
    assert not set(names[0]) & set(names[1])
    two.kill()
    one.terminate()
    two.start()
    assert node_names(two) == names[1]
    assert not set(names[0]) & set(os.listdir("/dev"))
    assert attack(two, "driver", LIBRARY, 16)["devices"] == 2


def test_nodes_that_were_taken_away_are_made_again(daemon):
    nodes = [Path("/dev") / name for name in node_names(daemon)]
    before = [node.stat().st_rdev for node in nodes]
    for node in nodes:
        node.unlink()
    until(lambda: all(node.exists() for node in nodes), "the nodes are there again", 20)
    assert [node.stat().st_rdev for node in nodes] == before
    assert attack(daemon, "driver", LIBRARY, 16)["devices"] == 2
    assert [device["health"] for device in daemon.client.devices()] == ["healthy", "healthy"]
