"""`exclusive = true`: a user without a grant cannot open the devices' nodes, whatever happens to the daemon."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from run.built import SUPPORT
from run.running import Daemon
from run.waiting import until

from gpushare.enforce import device_program
from gpushare.enforce.cgroup import Hierarchies
from gpushare.errors import RefusedError
from gpushare.node import standins

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or Hierarchies.of().unified is None, reason="needs root and cgroup v2"
)

ATTACK = (SUPPORT / "hostile" / "attack.py").read_text()
USER, OTHER, NAMED = 64123, 64124, "games"
# An open that is not permitted fails with EPERM; one that is permitted fails with ENXIO, as there is no driver.
OPENS, DENIED = "ENXIO", "EPERM"


@pytest.fixture
def start(make_daemon, tmp_path):
    def make(*lines: str) -> Daemon:
        config = tmp_path / "gpushare.toml"
        config.write_text("\n".join(lines))
        return make_daemon("--simulate", "2x16GiB", "--config", str(config))

    return make


def as_user(user: int | str, *command: str) -> list[str]:
    return ["setpriv", "--reuid", str(user), "--clear-groups", *command]


def opens(daemon: Daemon, user: int | str, *before: str) -> list[str]:
    """The result of opening each of the daemon's device nodes as this user."""
    command = [*before, *as_user(user, "/usr/bin/python3", "-c", ATTACK, "nodes")]
    done = subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    return [found[node.path.removeprefix("/dev/")] for node in standins.of(standins.chosen(daemon.layout.sim), 2)]


def programs(daemon: Daemon) -> int:
    """Number of this daemon's programs attached to the root cgroup."""
    digest = hashlib.sha256(os.fsencode(daemon.layout.run)).hexdigest()
    found = device_program.attached(Hierarchies.of().unified, f"gpushare_{digest[:6]}")
    for one in found:
        os.close(one)
    return len(found)


@pytest.mark.promise("exclusive")
def test_who_has_no_grant_is_kept_out(start):
    daemon = start("exclusive = true", f'exclusive_users = ["{OTHER}", "{NAMED}", "nobody-of-this-name"]').start()
    assert {wall["name"]: wall["why"] for wall in daemon.client.node()["walls"]}["exclusive"] == ""
    assert opens(daemon, USER) == [DENIED, DENIED]
    assert opens(daemon, 0) == opens(daemon, OTHER) == opens(daemon, NAMED) == [OPENS, OPENS]
    assert opens(daemon, USER, *daemon.run("1GiB", "10%", gpu="1")) == [DENIED, OPENS], "its own one alone"
    assert opens(daemon, USER) == [DENIED, DENIED], "the grant has ended"


def test_a_user_to_whom_a_grant_is_open(start):
    daemon = start("exclusive = true").start()
    first, second = (daemon.client.create(memory="1GiB", time="10%", keep=True)["id"] for _ in range(2))
    for grant in (first, second):
        daemon.client.bind(grant, "process", uid=USER, gid=USER)
    assert opens(daemon, USER) == [OPENS, OPENS]
    daemon.client.release(first)
    assert opens(daemon, USER) == [OPENS, OPENS], "one is enough"
    daemon.kill()
    daemon.start()
    assert (opens(daemon, USER), opens(daemon, OTHER)) == ([OPENS, OPENS], [DENIED, DENIED])
    daemon.client.release(second)
    assert opens(daemon, USER) == [DENIED, DENIED]


@pytest.mark.promise("exclusive")
def test_it_outlives_the_daemon_and_ends_with_the_last_grant(start):
    """A process with a grant can open its device throughout; no other process can, not even for a moment."""
    daemon = start("exclusive = true").start()
    script = "import os, sys\nfor line in sys.stdin:\n    try:\n        os.open(line.strip(), os.O_RDWR)\n"
    script += "    except OSError as error:\n        print(error.errno, flush=True)\n"
    held = subprocess.Popen(
        daemon.run("1GiB", "10%", *as_user(USER, "/usr/bin/python3", "-c", script), gpu="0"),
        env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    node = standins.of(standins.chosen(daemon.layout.sim), 1)[0].path

    def held_opens() -> str:
        held.stdin.write(f"{node}\n")
        held.stdin.flush()
        return os.strerror(int(held.stdout.readline()))

    with held:
        assert (held_opens(), opens(daemon, USER)) == ("No such device or address", [DENIED, DENIED])
        daemon.kill()
        assert (held_opens(), opens(daemon, USER)) == ("No such device or address", [DENIED, DENIED])
        daemon.start()
        assert (held_opens(), opens(daemon, USER)) == ("No such device or address", [DENIED, DENIED])
        assert programs(daemon) == 1, "the one of the daemon before is gone"
        daemon.terminate()
        assert (held_opens(), opens(daemon, USER)) == ("No such device or address", [DENIED, DENIED])
        daemon.start()
        held.communicate("")
    until(lambda: not daemon.client.grants(), "the grant ends")
    daemon.terminate()
    assert programs(daemon) == 0


def test_asked_for_no_more(start):
    daemon = start("exclusive = true").start()
    daemon.kill()
    assert programs(daemon) == 1
    start("exclusive = false")  # the same configuration file
    daemon.start()
    assert programs(daemon) == 0
    assert opens(daemon, USER) == [OPENS, OPENS]


def test_where_it_cannot_be(start):
    daemon = start('enforce = "required"', "exclusive = true")
    daemon.forked = False
    script = 'umount "$0"; exec "$@"'
    daemon.command = ["unshare", "--mount", "sh", "-c", script, str(Hierarchies.of().unified), *daemon.command]
    daemon.start()
    walls = {wall["name"]: wall["why"] for wall in daemon.client.node()["walls"]}
    assert walls["exclusive"] == "it needs cgroup v2, which is not mounted"
    grant = daemon.client.create(memory="1GiB", time="10%")["id"]
    with pytest.raises(RefusedError, match="nothing keeps others from its devices, since it needs cgroup v2"):
        daemon.client.bind(grant, "process")


def test_a_workload_that_the_kernel_cannot_tell_from_others_is_refused(start):
    """A threaded cgroup allows no child cgroup for the workload, which could not open its device: `gpushare run` says
    so."""
    daemon = start("exclusive = true").start()
    top = Hierarchies.of().unified / f"gst-threaded-{os.getpid()}"
    top.mkdir()
    try:
        (top / "cgroup.type").write_text("threaded")
        script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        command = ["sh", "-c", script, str(top), *daemon.run("1GiB", "10%", sys.executable, "-c", "")]
        done = subprocess.run(command, env=daemon.env, capture_output=True, text=True, timeout=60)
    finally:
        until(lambda: not top.exists() or top.rmdir() is None, "the cgroup goes")
    assert done.returncode == 125
    assert "(exclusive = true)" in done.stderr
