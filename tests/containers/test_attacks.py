"""Programs of a hostile tenant in real containers: each tries to bypass the interposer, and reports what it could do.

The driver limits memory (r615), and the simulator's books are the judge: however a program reaches the driver, the
processes of its grant together never hold more than the grant's memory."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from hostile import intruders
from hostile.intruders import (
    ATTACK,
    DRIVER,
    MIB,
    PYTHON,
    SHARED,
    capable,
    intruder,
    most,
    program,
    running_grant,
    with_programs,
    with_shared,
    words,
)
from pages import joinmessages
from run.running import Daemon, daemon_apart
from run.waiting import until

from gpushare._native import ffi, lib
from gpushare.binding.pages import LimitsPage
from gpushare.demo.bundle import TENANT_PROGRAM
from gpushare.node import standins

SHARE = {"memory": "512MiB", "time": "20%", "device": "0"}
OUT_OF_MEMORY = 2

tried = partial(intruders.tried, share=SHARE)


class Attacked(Daemon):
    def false_alarms(self) -> list[dict]:
        """None: all of the audit's findings here are true."""
        return []


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Daemon]:
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    tell = '[audit]\nevader = "tell"\n'  # only the walls may stop evaders
    with daemon_apart(Attacked, "2x4GiB", {"GPUSHARE_SIM_DRIVER": "615"}, tell) as node:
        yield node


# Ways to the driver that bypass the interposer, or try to.
WAYS = {
    "unset LD_PRELOAD": ["env", "-u", "LD_PRELOAD"],
    "env -i": ["env", "-i", "PATH=/usr/bin"],
    "absolute path": [],
    "its own loader": ["/lib64/ld-linux-x86-64.so.2", "--library-path", "/run/gpushare/self/driver"],
}


@pytest.mark.promise("memory-wall")
@pytest.mark.parametrize("way", WAYS)
def test_a_driver_by_its_path_gives_no_more_than_the_grant(runc, node, way):
    found = tried(runc, *WAYS[way], *words("driver", DRIVER, 2048))
    assert found["init"] == 0 and found["last"] != 0, "it stopped because it was refused"
    assert found["mib"] <= 512
    assert most(node) <= 512 * MIB


@pytest.mark.promise("memory-wall")
def test_a_copied_driver_gives_no_more_than_the_grant(runc, node):
    """As an image can bring a copy. /tmp is the container's own."""

    def roomy(config) -> None:
        for one in config["mounts"]:
            if one["destination"] == "/tmp":
                one["options"] = [*one["options"][:-1], "size=16m"]

    script = f'cp {DRIVER} /tmp/mine.so && exec {PYTHON} -c "$0" "$@"'
    command = ["/bin/sh", "-c", script, ATTACK.read_text(), "driver", "/tmp/mine.so", "2048"]
    found = tried(runc, *command, change=roomy)
    assert found["last"] != 0 and found["mib"] <= 512
    assert most(node) <= 512 * MIB


@pytest.mark.promise("memory-wall")
def test_a_static_program_gets_no_more_than_the_grant(runc, node):
    """No loader preloads anything into it: the driver is linked in."""
    with intruder(runc, *program("spin-static"), share=SHARE, change=with_programs) as tenant:
        assert tenant.hear()["event"] == "ready"
        found = tenant.tell("fill 2GiB 16MiB")
        assert (found["ok"], found["error"]) == (False, OUT_OF_MEMORY)
        assert 448 * MIB <= found["held_bytes"] <= 512 * MIB
        tenant.tell("run 500000")
        grant = running_grant(node)
        until(lambda: node.busy(grant["pid"])[0] > 0, "it works")
        assert node.client.grant(grant["id"])["processes"] == [], "nothing of it has joined"
    assert most(node) <= 512 * MIB


@pytest.mark.promise("memory-wall")
@pytest.mark.parametrize("joined", [False, True], ids=["alone", "after a join"])
def test_a_driver_in_a_namespace_of_its_own_gives_no_more_than_the_grant(runc, node, joined):
    """dlmopen loads it where there is no preloaded library. A joined process also has the interposer, in its main
    namespace."""
    command = program("newlinkmap", DRIVER, *["joined"] * joined)
    with intruder(runc, *command, share=SHARE, change=with_programs) as tenant:
        assert tenant.hear() == {"joined": 0, "init": 0}
        found = tenant.tell("take 2048")
        assert found["last"] == OUT_OF_MEMORY and 448 <= found["mib"] <= 512
        grant = running_grant(node)
        assert node.client.grant(grant["id"])["processes"] == [grant["pid"]] * joined
        assert node.client.grant(grant["id"])["devices"][0]["memory_bytes"] == 0, "its slot says nothing of it"
        assert tenant.tell("run")["run"] == 0
        until(lambda: node.busy(grant["pid"])[0] > 0, "it works")
    assert most(node) <= 512 * MIB


@pytest.mark.promise("memory-wall")
def test_a_crowd_has_no_more_than_the_grant_together(runc, node):
    with runc.start(*words("crowd", DRIVER, 8, 512), annotations=SHARE) as process:
        found = json.loads(process.stdout.readline())
        assert node.books()["bytes"] <= 512 * MIB
        process.communicate("\n", timeout=60)
    assert 0 < found["mib"] <= 512


@pytest.mark.promise("own-nodes-only")
def test_device_nodes(runc, node):
    """Raw opens: the granted node exists and can be opened. No other node exists, and one that the container makes
    itself or finds in devtmpfs cannot be opened, even with CAP_MKNOD and CAP_SYS_ADMIN and all devices allowed."""
    (major, first), other = standins.chosen(node.layout.sim), "gpushare-sim-"
    assert tried(runc, *words("nodes")) == {f"{other}{first}": "ENXIO"}

    def mighty(config) -> None:
        capable("CAP_MKNOD", "CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE")(config)
        # As an engine's --privileged or a careless rule allows.
        config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
        for one in config["mounts"]:
            if one["destination"] == "/tmp":
                one["options"].remove("nodev")

    assert tried(runc, *words("made", major, first), change=mighty) == {"mknod": "OK", "open": "ENXIO"}
    refused = tried(runc, *words("made", major, first + 1), change=mighty)
    assert "EPERM" in (refused["mknod"], refused["open"])
    found = tried(runc, *words("all-nodes"), change=mighty)  # devtmpfs, the kernel's own directory of all devices
    assert (found["mount"], found[f"{other}{first}"], found[f"{other}{first + 1}"]) == ("OK", "ENXIO", "EPERM")


@pytest.mark.promise("own-limits")
def test_remounting_buys_no_memory(runc, node):
    """The limits are mounted read-only. A process that may mount can write them all the same, but the driver's limit is
    elsewhere."""
    found = tried(runc, *words("remounted", 2048))
    assert (found["mount"], found["limits"]) == ("EPERM", "EROFS")
    assert found["mib"] <= 512
    found = tried(runc, *words("remounted", 2048), change=capable("CAP_SYS_ADMIN"))
    assert (found["mount"], found["limits"], found["init"]) == ("OK", "OK", 0)
    assert found["last"] == OUT_OF_MEMORY and found["mib"] <= 512
    assert most(node) <= 512 * MIB


@pytest.mark.promise("own-files-only")
def test_another_tenants_socket_page_and_processes(runc, node):
    """A neighbour's socket cannot be reached by its path, and its processes, which are not visible, cannot be
    traced."""
    with runc.start("/bin/cat", annotations=SHARE) as neighbour:
        grant = running_grant(node)
        assert tried(runc, *words("connected", f"{grant['dir']}/grant.sock")) == "ENOENT"
        assert tried(runc, *words("traced", grant["pid"])) in ("ESRCH", "EPERM")
        assert node.client.grant(grant["id"])["processes"] == []
        neighbour.communicate("")


FORGED = """
import json, mmap, os, sys
page = os.open("/run/gpushare/self/usage", os.O_RDWR)
size = os.fstat(page).st_size
with mmap.mmap(page, size) as held:
    held[4096:size] = bytes(size - 4096)
try:
    os.open("/run/gpushare/self/limits", os.O_RDWR)
    limits = "OK"
except OSError as error:
    limits = error.strerror
attack = {"__name__": "attack"}
exec(sys.argv[1], attack)
print(json.dumps([limits, attack["driver_bytes"](sys.argv[2], 2048)]))
"""


@pytest.mark.promise("lie-does-not-pay", "memory-wall")
def test_a_forged_page_buys_no_memory(runc, node):
    """The program wipes the usage page and tries to open the limits for writing; the driver's limit is elsewhere."""
    limits, found = tried(runc, PYTHON, "-c", FORGED, ATTACK.read_text(), DRIVER)
    assert limits == "Read-only file system"
    assert found["last"] != 0 and found["mib"] <= 512
    assert most(node) <= 512 * MIB


@pytest.mark.promise("memory-wall")
def test_a_traced_sibling_gets_no_more_than_the_grant(runc, node):
    """A process of the container overwrites the usage page mapped in a sibling. The sibling's limits are mapped
    read-only, so it maps forged ones in their place. The neighbour's pages are other files, and stay as they are."""
    with intruder(runc, TENANT_PROGRAM, share={**SHARE, "memory": "384MiB"}) as neighbour:
        assert neighbour.hear()["event"] == "ready"
        held = neighbour.tell("alloc 64MiB")["held_bytes"]
        beside = running_grant(node)

        def states() -> tuple[list[int], int, int, int]:
            grant = node.client.grant(beside["id"])
            with LimitsPage.open(Path(beside["dir"]) / "limits", writable=False) as page:
                limit = page.pointer.device[0].memory_bytes
            return grant["processes"], grant["devices"][0]["memory_bytes"], grant["devices"][0]["time_milli"], limit

        before = until(lambda: (now := states())[1] > held and now, "it is known what the neighbour has")
        with intruder(runc, *program("siblingtracer", 2048), share=SHARE, change=with_programs) as tracer:
            found = tracer.hear()
            assert (found["joined"], found["usage"], found["limits"], found["replaced"]) == (0, 0, errno.EIO, 0)
            assert found["last"] == OUT_OF_MEMORY and 448 <= found["mib"] <= 512
            assert states() == before
            assert most(node) <= 512 * MIB
            neighbour.tell("run 500000")
            until(lambda: node.busy(beside["pid"])[0] > 0, "the neighbour works")
            more = neighbour.tell("fill 1GiB 16MiB")
            assert held < more["held_bytes"] <= 384 * MIB, "the neighbour has what is its own, and no more"


def test_an_open_device_that_is_handed_on_gives_no_more_than_the_grant(runc, node, short_path):
    """It is passed to a container without a share. The driver knows who opened it: what the receiver takes counts as
    the opener's, and must fit into its grant with what the opener has. When the opener ends, all of it is freed."""
    short_path.chmod(0o755)
    shared = with_shared(short_path)
    with intruder(runc, *words("lend", f"{SHARED}/door"), share=SHARE, change=shared) as opener:
        assert opener.hear() == {"open": 0}
        grant = running_grant(node)
        with intruder(runc, *words("borrow", f"{SHARED}/door"), share=None, change=shared) as other:
            assert other.tell("take 256") == {"mib": 256, "last": 0}
            assert opener.tell("take 2048") == {"mib": 256, "last": -errno.ENOMEM}
            assert other.tell("take 16") == {"mib": 0, "last": -errno.ENOMEM}
            assert other.tell("work 10000000")["last"] == 0
            until(lambda: node.busy(grant["pid"]) == [10_000_000], "it has worked in the opener's name")
            assert [row["pid"] for row in node.books()["processes"] if row["bytes"]] == [grant["pid"]]
            assert node.books()["bytes"] == 512 * MIB
            opener.remove()
            until(lambda: node.books()["bytes"] == 0, "the memory comes back")
            assert other.tell("take 16")["last"] == -errno.EPERM


@pytest.mark.promise("forged-join-refused")
def test_a_forged_join_is_refused(runc, node):
    """A process of the host, outside the grant's cgroup, asks for a slot as the interposer does."""
    with runc.start("/bin/cat", annotations=SHARE) as held:
        grant = running_grant(node)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.settimeout(10)
            client.connect(f"{grant['dir']}/grant.sock")
            client.send(joinmessages.request())
            answer = joinmessages.answered(client.recv(4096))
        assert answer.error != lib.GS_JOIN_OK
        assert b"is not in the cgroup of grant" in ffi.string(answer.message)
        assert node.client.grant(grant["id"])["processes"] == []
        held.communicate("")
