"""Programs of a hostile tenant in real containers, with a daemon of default configuration and a driver that does not
limit memory: the audit finds them by what the driver lists, and stops them. Crowds that do nothing forbidden cause no
findings. The simulator's books are the judge."""

import errno
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hostile.intruders import (
    DRIVER,
    MIB,
    SHARED,
    Intruder,
    intruder,
    program,
    running_grant,
    with_programs,
    with_shared,
    words,
)
from machine import freezer
from run.running import Daemon, alive, daemon_apart
from run.waiting import until

from gpushare.demo.bundle import TENANT_PROGRAM
from gpushare.enforce import cgroup

SHARE = {"memory": "512MiB", "time": "20%"}
OUT_OF_MEMORY, NOT_INITIALIZED, SYSTEM_NOT_READY = "2", "3", "802"
SLOTS = 1024


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Daemon]:
    """A separate daemon: what these programs take would be in the books of other tests."""
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    with daemon_apart() as node:
        yield node


@pytest.fixture
def killing(runc) -> Iterator[tuple]:
    """A daemon that kills evaders, in addition to the shared one, and its containers."""
    with daemon_apart(config='[audit]\nevader = "kill"\ngrace_seconds = 0.1\n') as node:
        its = type(runc)(node.state_dir / "bundles", node.layout.socket)
        yield node, its
        its.delete_all()


def stopped(node: Daemon, grant: dict, kind: str) -> dict:
    """The finding of that kind in a grant, once the grant's cgroup is frozen."""
    [found] = until(lambda: node.findings(grant=grant["id"], kind=kind, act="frozen"), f"the {kind} is found")
    group = cgroup.of_process(grant["pid"])
    until(lambda: freezer.frozen(group), "its grant is frozen")
    return found


NEVER_JOINING = {
    "a static program": program("spin-static", "--alloc", "64MiB", "--kernel-ns", "100000", "--seconds", "600"),
    "dlmopen": program("newlinkmap", DRIVER),
}


@pytest.mark.promise("evader-is-found")
@pytest.mark.parametrize("way", NEVER_JOINING)
def test_one_that_never_joins_is_found_and_frozen(runc, node, way):
    with intruder(runc, *NEVER_JOINING[way], share=SHARE, change=with_programs) as tenant:
        tenant.hear()
        tenant.say("run")
        grant = running_grant(node)
        found = stopped(node, grant, "evader")
        assert (found["pid"], found["outcome"]) == (grant["pid"], "")
        until(lambda: node.findings(grant=grant["id"])[0]["stop_ns"], "it is told when it stood still")
        until(lambda: len({node.busy(grant["pid"])[0] for _ in range(5)}) == 1, "its work stands still")
        until(lambda: node.findings(grant=grant["id"])[0]["command"], "its command line is told")
        # The process's own standard error, in another pid namespace: its pid there is another one.
        answer = tenant.process.stderr.readline()
        assert answer.startswith(f"gpushare: process {grant['pid']} uses a device past its share {grant['id']}")
        name = NEVER_JOINING[way][0]
        assert f"process {grant['pid']} [{name}" in node.cli_here("events", "--findings").stdout
        tenant.remove()
        over = ("ended", "released", "left")  # it leaves the device a little before it has ended
        until(lambda: node.findings(grant=grant["id"])[0]["outcome"] in over, "its end is seen")


@pytest.mark.promise("hidden-memory-is-found")
def test_one_that_joins_and_takes_memory_by_dlmopen_is_found_and_frozen(runc, node):
    """The process's interposer, and so its slot, does not report that memory; the driver does."""
    with intruder(runc, *program("newlinkmap", DRIVER, "joined"), share=SHARE, change=with_programs) as tenant:
        assert tenant.hear() == {"joined": 0, "init": 0}
        grant = running_grant(node)
        assert node.client.grant(grant["id"])["processes"] == [grant["pid"]]
        assert tenant.tell("take 2048")["mib"] == 2048, "no wall is here"
        assert stopped(node, grant, "excess")["memory_bytes"] > 2048 * MIB
        assert node.findings(grant=grant["id"], kind="evader") == []
        tenant.remove()


@pytest.mark.promise("overuse-is-stopped")
@pytest.mark.slow
def test_one_that_joins_and_works_by_dlmopen_is_kept_to_its_share(runc, node):
    """Next to a neighbour that wants the rest, it is found after two seconds of device time for which it was not
    charged."""
    with intruder(runc, TENANT_PROGRAM, share={"memory": "1GiB", "time": "75%"}) as neighbour:
        neighbour.hear()
        neighbour.tell("run 500000")
        beside = running_grant(node)
        with intruder(runc, *program("newlinkmap", DRIVER, "joined"), share=SHARE, change=with_programs) as tenant:
            assert tenant.hear() == {"joined": 0, "init": 0}
            assert tenant.tell("run") == {"run": 0}
            grant = running_grant(node, but=beside["id"])
            [found] = until(lambda: node.findings(grant=grant["id"], kind="overuse"), "it is found", 60)
            assert (found["pid"], found["act"]) == (grant["pid"], "held")
            group = cgroup.of_process(grant["pid"])
            until(lambda: freezer.frozen(group), "it is stopped")
            until(lambda: not freezer.frozen(group), "it goes on", 60)
            assert node.shares(3, beside["pid"], grant["pid"])[0] > 600  # without the hold it would be 500 or less
            tenant.remove()


@contextmanager
def handed_on(runc, directory: Path) -> Iterator[tuple[Intruder, Intruder]]:
    """A container that has opened the device, and one without a share that received the open device from it."""
    directory.chmod(0o755)
    shared = with_shared(directory)
    with intruder(runc, *words("lend", f"{SHARED}/door"), share=SHARE, change=shared) as opener:
        assert opener.hear() == {"open": 0}
        with intruder(runc, *words("borrow", f"{SHARED}/door"), share=None, change=shared) as other:
            assert other.tell("take 64") == {"mib": 64, "last": 0}
            yield opener, other


@pytest.mark.promise("evader-is-found")
def test_an_open_device_that_is_handed_on_is_found_at_its_opener(runc, node, short_path):
    """The driver knows only the process that opened the device, and that one is frozen. The other process, which is in
    no grant, can use the open device until the opener ends: docs/security/attacks.md lists it."""
    with handed_on(runc, short_path) as (opener, other):
        grant = running_grant(node)
        assert stopped(node, grant, "evader")["pid"] == grant["pid"]
        assert other.tell("take 16") == {"mib": 16, "last": 0}
        assert other.tell("work 10000000")["last"] == 0
        until(lambda: node.busy(grant["pid"]) == [10_000_000], "it has worked in the opener's name")
        opener.remove()
        until(lambda: node.books()["bytes"] == 0, "the memory comes back")
        assert other.tell("take 16") == {"mib": 0, "last": -errno.EPERM}


def test_where_evaders_are_killed_an_open_device_ends_with_its_opener(killing, short_path):
    node, runc = killing
    with handed_on(runc, short_path) as (opener, other):
        until(lambda: node.findings(kind="evader", act="killed"), "its opener is found, and killed")
        opener.process.wait(20)
        until(lambda: node.books()["bytes"] == 0, "the memory comes back")
        assert other.tell("take 16") == {"mib": 0, "last": -errno.EPERM}


def some_answers(bomb: Intruder, node: Daemon) -> list[float]:
    """Asks the daemon until the bomb has printed its result, and once more; returns the seconds that each answer
    took."""
    took = []
    while True:
        over = select.select([bomb.process.stdout], [], [], 0)[0]
        began = time.monotonic()
        node.client.grants()
        took.append(time.monotonic() - began)
        if over:
            return took


def holders(node: Daemon) -> set[int]:
    return {row["pid"] for row in node.books()["processes"] if row["bytes"]}


@pytest.mark.promise("honest-are-not-found")
@pytest.mark.parametrize(
    ("processes", "what"), [(SLOTS + 100, []), (120, ["all"])], ids=["more than there are slots", "and their children"]
)
def test_a_fork_bomb_of_joiners(runc, node, processes, what):
    """Each process gets a slot, or CUDA's error for a system that is not ready. The daemon answers, the neighbour
    works, nothing is found, and when the container ends nothing of it is left."""
    with intruder(runc, TENANT_PROGRAM, share={"memory": "1GiB", "time": "30%"}) as neighbour:
        assert neighbour.hear()["event"] == "ready"
        neighbour.tell("run 500000")
        beside = running_grant(node)
        before = node.client.grant(beside["id"])["processes"]
        share = {"memory": "1GiB", "time": "30%"}
        with intruder(runc, *program("joinbomb", processes, *what), share=share, change=with_programs) as bomb:
            worked = node.busy(beside["pid"])[0]
            took = some_answers(bomb, node)
            found = bomb.hear()
            assert max(took) < 10
            assert sum(found["init"].values()) == processes
            until(lambda: node.busy(beside["pid"])[0] > worked, "the neighbour works")
            grant = running_grant(node, but=beside["id"])["id"]
            pids = until(
                lambda: len(now := node.client.grant(grant)["processes"]) == min(processes, SLOTS) and now,
                "those that ended have no slots",
                60,  # time to process a thousand ends on a busy machine
            )
            assert found["init"]["0"] == len(pids)
            if what:
                # Memory suffices for some of them. Forked children of a joined process cannot use CUDA, as with the
                # driver alone, until they exec a program.
                assert found["context"].keys() == {"0", OUT_OF_MEMORY}
                assert found["forked"] == {NOT_INITIALIZED: processes}
                assert found["executed"] == {"0": processes}
            else:
                assert found["init"] == {"0": SLOTS, SYSTEM_NOT_READY: processes - SLOTS}
            worked = node.busy(beside["pid"])[0]
            until(lambda: node.busy(beside["pid"])[0] > worked, "the neighbour works beside all of them")
        until(lambda: [one["id"] for one in node.client.grants()] == [beside["id"]], "its grant ends")
        until(lambda: not any(alive(pid) for pid in pids), "its processes are gone")
        until(lambda: holders(node) == set(before), "its memory comes back")
        assert node.client.grant(beside["id"])["processes"] == before
