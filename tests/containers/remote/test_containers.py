"""Containers under runc that use an attachment by its CDI device; the test is the client relay."""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from run.waiting import until

from gpushare.carriers.contract import Client
from gpushare.errors import GpushareError, RefusedError
from gpushare.paths import SIM_LIB_DIR
from gpushare.remote.containers import netns, offering, spec

pytestmark = [
    pytest.mark.xdist_group("machine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

PORT = 47433
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
CLIENT = Client(dir=str(SIM_LIB_DIR), libraries=NAMES, env={"EXAMPLE_SERVER": "{host}:{port}"})
TALK = 'exec 3<>/dev/tcp/${EXAMPLE_SERVER/:/\\/}; echo $0 >&3; read -u 3 line; echo "$line"'


@pytest.fixture
def offered(runc, short_path) -> Iterator[offering.Offered]:
    with offering.offer("example", CLIENT, "mine", PORT, cdi=runc.cdi, run=short_path) as found:
        yield found
    assert not list(runc.cdi.iterdir())
    assert not list(short_path.iterdir())


def talk(offered: offering.Offered, text: str) -> None:
    """Takes a connection of a container's program, which says `text`, and answers."""
    offered.channel.settimeout(30)
    connection = offering.connection(offered.channel)
    assert connection is not None
    with connection, connection.makefile("rw") as file:
        assert file.readline() == f"{text}\n"
        file.write(f"answer to {text}\n")
        file.flush()


def test_a_container_has_the_libraries_and_a_way_to_the_client_relay(runc, offered):
    with (SIM_LIB_DIR / "libcuda.so.1").open("rb") as file:
        wanted = hashlib.file_digest(file, "sha256").hexdigest()
    script = f"sha256sum /lib/*/libcuda.so.1 /lib/*/libcuda.so; echo /run/* /etc/*; echo $EXAMPLE_SERVER; {TALK}"
    with runc.start(offered.device, "/bin/bash", "-c", script, "one") as process:
        talk(offered, "one")
        out, _ = process.communicate(timeout=30)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[:2]] == [wanted, wanted]
    assert lines[2:] == ["/run/* /etc/*", f"127.0.0.1:{PORT}", "answer to one"]
    assert process.returncode == 0


def test_two_containers_of_a_network_share_a_listener_which_ends_with_them(runc, offered):
    before = len(os.listdir(f"/proc/{offered.helper}/fd"))
    wait = f"{TALK}; read; exec bash -c '{TALK}' $0"

    def joins(config: dict, _: Path) -> None:
        (network,) = (one for one in config["linux"]["namespaces"] if one["type"] == "network")
        network["path"] = f"/proc/{runc.pid(first)}/ns/net"

    with runc.start(offered.device, "/bin/bash", "-c", wait, "first") as first:
        talk(offered, "first")
        with runc.start(offered.device, "/bin/bash", "-c", wait, "second", change=joins) as second:
            talk(offered, "second")
            first.stdin.write("\n")
            first.stdin.flush()
            talk(offered, "first")
            assert first.wait(30) == 0
            second.stdin.write("\n")
            second.stdin.flush()
            talk(offered, "second")
            assert second.wait(30) == 0
    until(lambda: len(os.listdir(f"/proc/{offered.helper}/fd")) == before, "nothing of the containers is open")


def test_an_image_that_cannot_use_the_libraries_does_not_start(runc, offered):
    def without_libc(_: dict, root: Path) -> None:
        for path in root.rglob("libc.so.6"):
            path.unlink()
        (root / "lib/ld-musl-x86_64.so.1").touch()

    result = runc.run(offered.device, "/bin/true", change=without_libc)
    assert result.returncode != 0
    assert (
        "gpushare: the client libraries of carrier example need glibc, and the container's image has musl"
        in result.stderr
    )


@contextlib.contextmanager
def elsewhere() -> Iterator[int]:
    """A process in a network namespace of its own, whose loopback is down."""
    with subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) as process:
        try:
            until(lambda: os.stat(f"/proc/{process.pid}/ns/net").st_ino != netns.own()[1], "it has its namespace")
            yield process.pid
        finally:
            process.kill()


def test_the_port_of_a_network_is_listened_on_though_its_loopback_is_down():
    with elsewhere() as pid:
        container = netns.Container(pid)
        assert container.namespace != netns.own()
        with container.listen(PORT):
            with pytest.raises(RefusedError, match=f"port {PORT} is in use in the container's network"):
                container.listen(PORT)
            subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "link", "set", "lo", "up"], check=True)
            connect = f"import socket; socket.create_connection(('127.0.0.1', {PORT}))"
            reached = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", connect]
            assert subprocess.run(reached).returncode == 0
        container.close()
    with pytest.raises(GpushareError, match="has ended"):
        netns.Container(pid)


OFFER = """
import sys, time
from pathlib import Path
from gpushare.carriers.contract import Client
from gpushare.remote.containers import offering
client = Client(dir=sys.argv[1], libraries=("libcuda.so.1",))
with offering.offer("example", client, "mine", 47433, cdi=Path(sys.argv[2]), run=Path(sys.argv[3])) as offered:
    print(offered.helper, flush=True)
    time.sleep(1000)
"""


@contextlib.contextmanager
def offering_process(cdi: Path, run: Path) -> Iterator[tuple[subprocess.Popen, int]]:
    command = [sys.executable, "-c", OFFER, str(SIM_LIB_DIR), str(cdi), str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_nothing_stays_when_the_client_relay_is_killed(tmp_path, short_path):
    cdi = tmp_path / "cdi"
    with offering_process(cdi, short_path) as (process, helper):
        assert spec.path(cdi, "mine").exists()
        assert (short_path / "mine/hook.sock").stat().st_mode & 0o777 == 0o600
        process.kill()
        until(lambda: not Path(f"/proc/{helper}").exists(), "the helper ends")
    assert not list(cdi.iterdir())
    assert not list(short_path.iterdir())


def test_what_a_killed_helper_left_is_removed_by_the_next(tmp_path, short_path):
    cdi = tmp_path / "cdi"
    with offering_process(cdi, short_path) as (_, helper):
        with (
            pytest.raises(RefusedError, match=r"gpushare\.dev/remote=mine already"),
            offering.offer("example", CLIENT, "mine", PORT, cdi=cdi, run=short_path),
        ):
            pass
        os.kill(helper, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{helper}/fd/0").exists(), "it is gone")
        assert spec.path(cdi, "mine").exists()
        with offering.offer("example", CLIENT, "other", PORT, cdi=cdi, run=short_path):
            assert [path.name for path in cdi.iterdir()] == [spec.path(cdi, "other").name]
            assert [path.name for path in short_path.iterdir()] == ["other"]


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "x" * 64, "a="])
def test_names_that_cdi_does_not_take(name, tmp_path):
    with (
        pytest.raises(GpushareError, match="no name of a CDI device"),
        offering.offer("x", CLIENT, name, PORT, cdi=tmp_path),
    ):
        pass


def test_a_request_that_is_not_the_hooks_is_refused(offered, short_path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(short_path / "mine/hook.sock"))
        one.sendall(b"POST /v1/oci/place?grant=mine HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        answer = b"".join(iter(lambda: one.recv(65536), b""))
    assert b" 400 " in answer.splitlines()[0]
    assert b"cannot be read" in answer
