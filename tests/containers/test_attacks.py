"""Programs of a hostile tenant in real containers: each tries to get round the interposer, and says what it could do.

The driver is one that limits memory (r615), and the judge is the simulator's books: however a program comes to the
driver, the processes of its grant have no more than the grant's memory at once."""

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import joinmessages
import pytest
from running import Daemon
from waiting import until

from gpushare._native import ffi, lib
from gpushare.node import standins

ATTACK = Path(__file__).parents[1] / "support/attack.py"
MIB = 1 << 20
SHARE = {"memory": "512MiB", "time": "20%", "device": "0"}
DRIVER = "/run/gpushare/self/driver/libcuda.so.1"
PYTHON = "/usr/bin/python3"


class Attacked(Daemon):
    def false_alarms(self) -> list[dict]:
        """None: what the audit finds here is true."""
        return []


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Daemon]:
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    directory = Path(tempfile.mkdtemp(prefix="gst-"))
    config = directory / "gpushare.toml"
    config.write_text('[audit]\nevader = "tell"\n')  # the walls alone have to stop them
    options = ["--config", str(config)]
    node = Attacked(directory, "2x4GiB", env={"GPUSHARE_SIM_DRIVER": "615"}, options=options)
    node.forked = False
    try:
        yield node.start()
    finally:
        node.stop()
        shutil.rmtree(directory, ignore_errors=True)


def words(*attack: object) -> list[str]:
    return [PYTHON, "-c", ATTACK.read_text(), *map(str, attack)]


def tried(runc, *command: str, change=lambda config: None):
    """What a program printed that had a container of its own."""
    done = runc.run(*command, annotations=SHARE, change=change)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def running_grant(node) -> dict:
    return until(lambda: next((one for one in node.client.grants() if one["pid"]), None), "the container runs", 20)


def most(node) -> int:
    """Most bytes that a process ever had of device 0, the daemon's own attempts included."""
    return max(row["peak_bytes"] for row in node.books()["processes"])


# Each is a way to the driver that does not pass the interposer, or that tries to.
WAYS = {
    "unset LD_PRELOAD": ["env", "-u", "LD_PRELOAD"],
    "env -i": ["env", "-i", "PATH=/usr/bin"],
    "absolute path": [],
    "its own loader": ["/lib64/ld-linux-x86-64.so.2", "--library-path", "/run/gpushare/self/driver"],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_driver_by_its_path_gives_no_more_than_the_grant(runc, node, way):
    found = tried(runc, *WAYS[way], *words("driver", DRIVER, 2048))
    assert found["init"] == 0 and found["last"] != 0, "it stopped because it was refused"
    assert found["mib"] <= 512
    assert most(node) <= 512 * MIB


def test_a_copied_driver_gives_no_more_than_the_grant(runc, node):
    """As an image can bring one along. /tmp is the container's own."""

    def roomy(config) -> None:
        for one in config["mounts"]:
            if one["destination"] == "/tmp":
                one["options"] = [*one["options"][:-1], "size=16m"]

    script = f'cp {DRIVER} /tmp/mine.so && exec {PYTHON} -c "$0" "$@"'
    command = ["/bin/sh", "-c", script, ATTACK.read_text(), "driver", "/tmp/mine.so", "2048"]
    found = tried(runc, *command, change=roomy)
    assert found["last"] != 0 and found["mib"] <= 512
    assert most(node) <= 512 * MIB


def test_a_crowd_has_no_more_than_the_grant_together(runc, node):
    with runc.start(*words("crowd", DRIVER, 8, 512), annotations=SHARE) as process:
        found = json.loads(process.stdout.readline())
        assert node.books()["bytes"] <= 512 * MIB
        process.communicate("\n", timeout=60)
    assert 0 < found["mib"] <= 512


def test_device_nodes(runc, node):
    """Raw opens: the granted node is there and allowed. No other is there; one that the container makes itself, or is
    handed a name of, is refused. With all of a container's usual rights too, mknod among them."""
    (major, first), other = standins.choose(node.layout.sim), "gpushare-sim-"
    assert tried(runc, *words("nodes")) == {f"{other}{first}": "ENXIO"}

    def capable(config) -> None:
        usual = ["CAP_MKNOD", "CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_SYS_PTRACE"]
        config["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), usual)
        # As an engine's --privileged, or a careless rule, lets it.
        config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
        for one in config["mounts"]:
            if one["destination"] == "/tmp":
                one["options"].remove("nodev")

    assert tried(runc, *words("made", major, first), change=capable) == {"mknod": "OK", "open": "ENXIO"}
    refused = tried(runc, *words("made", major, first + 1), change=capable)
    assert "EPERM" in (refused["mknod"], refused["open"])
    script = (
        "mount -o remount,rw,bind /run/gpushare/self 2>/dev/null && : >> /run/gpushare/self/limits;"
        "mount -t proc proc /tmp 2>/dev/null; "
        f'exec {PYTHON} -c "$0" nodes'
    )
    found = tried(runc, "/bin/sh", "-c", script, ATTACK.read_text(), change=capable)
    assert found[f"{other}{first}"] == "ENXIO"


def test_another_tenants_socket_page_and_processes(runc, node):
    """Nothing of a neighbour's is there by name, and nothing of it can be traced: its processes are not seen."""
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


def test_a_forged_page_buys_no_memory(runc, node):
    """All that the grant has in its books is wiped out, and its limits are tried: the driver's limit is not there."""
    limits, found = tried(runc, PYTHON, "-c", FORGED, ATTACK.read_text(), DRIVER)
    assert limits == "Read-only file system"
    assert found["last"] != 0 and found["mib"] <= 512
    assert most(node) <= 512 * MIB


def test_a_forged_join_is_refused(runc, node):
    """A process of the host, which is in no cgroup of the grant's, asks for a slot as the interposer does."""
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
