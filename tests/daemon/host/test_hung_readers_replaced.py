"""Bundles and images are read in separate processes: if one hangs, dies or grows too large, only that start fails."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hostile.silentfs import SilentFs
from run.waiting import until

from gpushare.errors import FailedError, RefusedError, UsageError

ASKS = {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "10%"}


def readers(daemon) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if b"gpushare.reader" in (entry / "cmdline").read_bytes():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == daemon.process.pid:
                    found.append(int(entry.name))
    return found


def edit(client, bundle: Path, **config):
    body = {"bundle": str(bundle), "config": {"annotations": ASKS, **config}}
    return client.call("POST", "/v1/oci/edit", body)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    return tmp_path


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def ended(pid: int) -> bool:
    """Whether its parent can reap it. An ending process has no command line any more, but cannot be reaped yet."""
    try:
        return status(pid)["State"].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_one_is_there_before_the_first_job(daemon, client, bundle):
    with daemon.started_with(reader_ahead=0.1):
        until(lambda: readers(daemon), "a reader")
        before = readers(daemon)
        assert edit(client, bundle)["grant"]
        assert readers(daemon) == before
        client.release(client.grants()[0]["id"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_it_may_read_and_nothing_else(daemon, client, bundle):
    edit(client, bundle)
    for pid in readers(daemon):
        found = status(pid)
        assert found["CapEff"] == found["CapPrm"] == f"{1 << 2:016x}"  # CAP_DAC_READ_SEARCH
        assert found["NoNewPrivs"] == "1"
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
        assert found["Uid"].split()[3] == "65534"  # the file system uid
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert "Max file size             0                    0" in limits
        files = set()
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # the descriptor has been closed
                files.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        assert files
        assert not any("ledger" in name or "usage" in name for name in files)


def test_a_hung_one_is_replaced(daemon, client, bundle):
    """As when it waits for a file system that does not answer. Meanwhile the daemon answers others."""
    client.release(edit(client, bundle)["grant"])  # the reader that is asked next has started
    stopped = readers(daemon)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    refused = []

    def start():
        with pytest.raises(FailedError, match="took longer than 2 s"):
            edit(client, bundle)
        refused.append(True)

    one = threading.Thread(target=start)
    one.start()
    answers = 0
    while one.is_alive():
        client.version()
        answers += 1
        one.join(0.02)
    one.join()
    assert refused and answers > 1
    assert client.grants() == []
    assert edit(client, bundle)["grant"]
    until(lambda: set(stopped) - set(readers(daemon)), "the hung one is gone")
    for pid in set(stopped) & set(readers(daemon)):  # those that were idle, as one of earlier tests may be
        os.kill(pid, signal.SIGCONT)


@pytest.mark.promise("image-delays-own-start")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_a_file_system_that_does_not_answer(make_daemon, bundle, tmp_path_factory):
    """A reader that waits for it cannot be ended. If too many are stuck, starts are refused with the reason."""
    few = ("from gpushare.daemon.host import readers", "readers._STUCK_MAX = 2")
    daemon = make_daemon().patch(*few).quicken(reader_job=1.0).start()
    client = daemon.client
    other = tmp_path_factory.mktemp("other")
    (other / "rootfs").mkdir()

    def stuck():
        return [pid for pid in readers(daemon) if status(pid)["State"].startswith("D")]

    with SilentFs(bundle / "rootfs") as silent:
        with pytest.raises(FailedError, match="took longer than 1 s"):
            edit(client, bundle)
        assert silent.asked.is_set()
        client.release(edit(client, other)["grant"])
        with pytest.raises(FailedError, match="took longer than 1 s"):
            edit(client, bundle)
        waiting = stuck()
        assert len(waiting) == 2
        with pytest.raises(RefusedError, match="do not answer: unmount those"):
            edit(client, other)
    until(lambda: all(map(ended, waiting)), "they end with the file system")
    client.release(edit(client, bundle)["grant"])
    assert client.grants() == []


@pytest.mark.promise("slow-user-database")
def test_a_user_database_that_hangs(daemon, client):
    """A member that uses a tenant with users by name waits for the database, then gets an error; root does not wait."""
    client.set_tenant("named", {"users": ["root"]})
    path = daemon.layout.socket
    os.chown(path, 0, 64123)
    path.chmod(0o660)
    code = (
        "import os, sys; from gpushare import client; import gpushare.client.transport\n"
        "os.setgroups([]); os.setgid(64123); os.setuid(64123)\n"
        "try: client.Client(sys.argv[1]).create(memory='1GiB', time='10%', tenant='named')\n"
        "except Exception as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(path)]
    assert "may not use tenant named" in subprocess.run(command, capture_output=True, text=True).stdout
    stopped = readers(daemon)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert client.change_tenant("named", {"groups": ["root"]})["unknown"] is None
    stopped += [pid for pid in readers(daemon) if pid not in stopped]
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asking:
        answers = 0
        while asking.poll() is None:
            client.release(client.create(memory="1GiB", time="10%")["id"])
            answers += 1
            time.sleep(0.02)
        assert "user database" in asking.stdout.read()
    assert answers > 1
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):  # the reader that was asked has been killed
            os.kill(pid, signal.SIGCONT)
    client.remove_tenant("named")


def test_a_killed_one_is_replaced(daemon, client, bundle):
    edit(client, bundle)
    killed = readers(daemon)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: all(ended(pid) for pid in killed), "it has ended")
    assert edit(client, bundle)["grant"]


def test_killed_amid_a_job(daemon, client, bundle):
    client.release(edit(client, bundle)["grant"])
    own = readers(daemon)
    for pid in own:
        os.kill(pid, signal.SIGSTOP)
    reply = []

    def start():
        with pytest.raises(FailedError, match="ended: try again") as found:
            edit(client, bundle)
        reply.append(str(found.value))

    one = threading.Thread(target=start)
    one.start()
    # Once the job is sent, it is unread in the reader's socket.
    until(lambda: any(_unread(daemon, pid) for pid in own), "a job is sent")
    for pid in own:
        os.kill(pid, signal.SIGKILL)
    one.join()
    assert len(reply) == 1 and "\n" not in reply[0]
    assert client.grants() == []


def _unread(daemon, pid: int) -> bool:
    import fcntl
    import struct
    import termios

    with open(os.pidfd_open(pid), "rb", closefd=True) as process:
        import ctypes

        copy = ctypes.CDLL(None).syscall(438, process.fileno(), 0, 0)  # pidfd_getfd
    if copy < 0:
        return False
    try:
        return struct.unpack("i", fcntl.ioctl(copy, termios.FIONREAD, b"\0" * 4))[0] > 0
    finally:
        os.close(copy)


def test_a_grant_that_ends_meanwhile(daemon, client, bundle):
    """While the edit of an existing grant's container waits, the grant is released: the start fails and says why."""
    client.release(edit(client, bundle)["grant"])
    grant = client.create(memory="1GiB", time="10%")["id"]
    own = readers(daemon)
    reply = []

    def start():
        body = {"bundle": str(bundle), "config": {"annotations": {"gpushare.dev/grant": grant}}}
        with pytest.raises(UsageError) as found:
            client.call("POST", "/v1/oci/edit", body)
        reply.append(str(found.value))

    for pid in own:
        os.kill(pid, signal.SIGSTOP)
    one = threading.Thread(target=start)
    one.start()
    until(lambda: any(_unread(daemon, pid) for pid in own), "the question is sent")
    client.release(grant)
    for pid in own:
        os.kill(pid, signal.SIGCONT)
    one.join()
    assert len(reply) == 1 and "has ended" in reply[0]
    assert not (daemon.layout.grants / grant).exists()


@pytest.mark.promise("image-delays-own-start")
def test_an_image_of_links(daemon, client, bundle):
    root = bundle / "rootfs"
    for number in range(40):
        (root / f"l{number}").symlink_to("/etc/.." * 570 + f"/l{number + 1}")
    paths = ":".join(f"/l0/{number}" for number in range(100))
    with pytest.raises((RefusedError, FailedError), match=r"steps to follow|took longer than 2 s"):
        edit(client, bundle, process={"env": [f"LD_LIBRARY_PATH={paths}"]})
    assert client.grants() == []


@pytest.mark.promise("image-delays-own-start")
@pytest.mark.parametrize("values", [1 << 20, pytest.param(5 << 20, marks=pytest.mark.slow)])
def test_configs_that_take_memory(daemon, client, bundle, values):
    """A config is MiB of small values; a reader that has read it is replaced, so that its memory is freed."""
    text = b'{"annotations":%s,"x":[%s{}]}' % (json.dumps(ASKS).encode(), b"{}," * values)
    client.release(edit(client, bundle)["grant"])
    before = set(readers(daemon))
    assert before
    response = client._open("GET", "/v1/version", None, 5)
    response.close()
    from gpushare.client import transport

    body = b'{"bundle":"%s","config":%s}' % (os.fsencode(bundle), text)
    with transport.request(client.path, "POST", "/v1/oci/edit", body, 20) as answer:
        assert answer.status in (200, 400, 409, 500)
        answer.read()
    assert edit(client, bundle)["grant"]
    until(lambda: len(before - set(readers(daemon))) >= 1, "it was replaced")


@pytest.mark.parametrize(
    "config",
    [
        {"Annotations": ASKS},
        {"annotations": ASKS, "Mounts": []},
        {"annotations": ASKS, "linux": {"RESOURCES": {}}},
    ],
)
def test_a_config_that_runtimes_read_differently(client, bundle, config):
    with pytest.raises(UsageError, match="only some runtimes"):
        client.call("POST", "/v1/oci/edit", {"bundle": str(bundle), "config": config})
    assert client.grants() == []
