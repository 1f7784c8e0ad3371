"""The NRI plugin as a process between a daemon and a stand-in for the engine."""

import contextlib
import os
import shutil
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engines.cri import message
from engines.nri import Engine, Plugin, Refused
from run.makingroom import Room
from run.running import Daemon
from run.waiting import until

from gpushare.paths import CONTAINER_SELF

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may edit containers")

SHARE = {"gpushare.dev/memory": "1GiB", "gpushare.dev/time": "30%"}


class Place:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.room = Room(directory)
        self.node = Daemon(directory / "node").patch(self.room.patch).start()
        self.plugin = Plugin(directory / "nri.sock", self.node.layout.socket, directory / "plugin.log")
        self.engine: Engine | None = None

    def fresh(self, timeout_ms: int = 20_000) -> Engine:
        """Replaces the engine by a new one, with which the plugin has registered."""
        if self.engine is not None:
            self.engine.stop()
        self.engine = Engine(self.directory / "nri.sock", timeout_ms)
        if self.plugin.process is None:
            self.plugin.start()
        self.engine.register()
        return self.engine

    def grants(self) -> list[dict]:
        return self.node.client.grants()

    def end(self) -> None:
        self.plugin.kill()
        if self.engine is not None:
            self.engine.stop()
        self.node.stop()


@pytest.fixture(scope="module")
def the_place() -> Iterator[Place]:
    directory = Path(tempfile.mkdtemp(prefix="gst-"))
    directory.chmod(0o755)
    place = Place(directory)
    try:
        yield place
    finally:
        place.end()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def place(the_place) -> Iterator[Place]:
    yield the_place
    the_place.room.is_there()
    for grant in the_place.grants():
        the_place.node.client.release(grant["id"])


@pytest.fixture
def engine(place) -> Engine:
    return place.fresh()


def test_a_container_gets_what_the_wrapper_would_give_it(place, engine):
    """The container's annotations take precedence over its pod's."""
    given = engine.create(SHARE, {"gpushare.dev/memory": "2GiB"}, env=["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"])
    (grant,) = place.grants()
    assert (grant["phase"], grant["devices"][0]["memory_limit_bytes"]) == ("bound", 2 << 30)
    assert given.annotations == {"gpushare.dev/grant": grant["id"]}
    assert "NVIDIA_VISIBLE_DEVICES=void" in given.env
    config = {"annotations": given.annotations, "root": {"path": "/nonexistent"}, "process": {"env": []}}
    wanted = place.node.client.call("POST", "/v1/oci/edit", {"bundle": "/nonexistent", "config": config})["config"]
    assert given.mounts == wanted["mounts"]
    assert given.hooks == wanted["hooks"]
    assert sorted(given.env) == sorted(wanted["process"]["env"])
    linux = wanted["linux"]
    nodes = [(one["path"], one["type"], one["major"], one["minor"]) for one in linux["devices"]]
    assert given.devices == nodes
    rules = [one for one in linux["resources"]["devices"] if one["allow"]]
    assert [rule[1:] for rule in given.rules] == [
        (one["type"], one["major"], one["minor"], one["access"]) for one in rules
    ]


def test_a_container_asks_in_nvidias_words(place, engine):
    words = {
        f"nvidia.com/container.main.gpu-memory.{word}": size for word, size in (("request", "1Gi"), ("limit", "2Gi"))
    }
    assert not engine.create(words).empty
    (grant,) = place.grants()
    assert (grant["devices"][0]["memory_limit_bytes"], grant["devices"][0]["time_milli"]) == (2 << 30, 10)


def test_who_does_not_ask_gets_nothing_even_without_a_daemon(place, engine):
    place.node.process.send_signal(signal.SIGSTOP)
    try:
        others = {"nvidia.com/container.other.gpu-memory.limit": "1Gi", "nvidia.com/container.main.gpus.devices": "0"}
        for annotations in ({}, {"nvidia.com/gpu": "all", "example.com/gpushare.dev/": "x"}, others):
            assert engine.create(annotations).empty
    finally:
        place.node.process.send_signal(signal.SIGCONT)
    assert place.grants() == []


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({**SHARE, "gpushare.dev/memory": "1TiB"}, "does not fit"),
        ({**SHARE, "GPUshare.dev/memory": "1GiB"}, "GPUshare.dev/memory is unknown"),
        ({"gpushare.dev/memory": "1GiB"}, "gpushare.dev/time is missing"),
        ({"gpushare.dev/grant": "g-none"}, "g-none"),
        ({"nvidia.com/container.main.gpu-memory.limit": "2GB"}, "main.gpu-memory.limit is '2GB', not a quantity"),
    ],
)
def test_a_refusal_is_the_engines_error_with_the_daemons_words(place, engine, annotations, reason):
    with pytest.raises(Refused, match=f"gpushare: .*{reason}"):
        engine.create(annotations)
    assert place.grants() == []


def test_a_mount_that_hides_what_is_given_is_seen(place, engine):
    """Nothing is known of the image yet, but the mounts are: nothing can be made in this one."""
    host = message(_1="/run", _2="bind", _3="/usr", _4=["rbind", "ro"])
    with pytest.raises(Refused, match="mount a tmpfs, or in Kubernetes an emptyDir, on /run"):
        engine.create(SHARE, mounts=[host])


def test_docker_is_not_served(engine):
    """Docker would refuse the adjustment with its own message, and the grant would stay until it expires."""
    with pytest.raises(Refused, match="gpushare: Docker's NRI takes neither hooks nor devices"):
        engine.call("Configure", message(_2="docker", _3="29.7.2", _4=5000, _5=2000, _6="0.12"))
    engine.register()  # the plugin still registers with another engine


@pytest.mark.parametrize("by_state_change", [False, True])
def test_a_container_that_is_given_up_gives_its_share_back(place, engine, by_state_change):
    engine.create(SHARE, name="given-up")
    engine.remove("another", by_state_change=by_state_change)
    assert len(place.grants()) == 1
    engine.remove("given-up", by_state_change=by_state_change)
    assert place.grants() == []


def test_a_grant_that_was_there_before_stays(place, engine):
    mine = place.node.client.create(memory="1GiB", time="30%")["id"]
    assert engine.create({"gpushare.dev/grant": mine}).annotations == {}
    engine.remove("c1")
    assert [grant["id"] for grant in place.grants()] == [mine]


def test_another_engine_and_another_plugin_know_what_was_made(place, engine):
    engine.create(SHARE, name="one")
    engine.create(SHARE, name="two")
    engine.stop()
    engine = place.engine = Engine(place.directory / "nri.sock")
    engine.register("one", "two")  # in two messages
    engine.remove("one")
    assert len(place.grants()) == 1
    place.plugin.kill()
    place.plugin.start()
    engine.register("two")
    assert len(place.grants()) == 1
    assert not engine.create(SHARE, name="three").empty
    assert len(place.grants()) == 2


def test_a_container_for_which_room_is_made_waits(place, engine):
    place.room.is_made_after(3, 0.15)
    assert not engine.create(SHARE).empty
    assert len(place.room.pauses) == 3 and min(place.room.pauses) >= 0.15


def test_room_that_comes_too_late_for_the_engine_is_its_error(place):
    """Not a plugin that answers too late, which the engine would drop."""
    engine = place.fresh(timeout_ms=8000)
    place.room.is_made_after(1, 4.0)
    with pytest.raises(Refused, match=r"the container is not started: start it again in about 4\.0 s"):
        engine.create(SHARE)
    assert not engine.create(SHARE).empty


def test_a_daemon_that_is_away_refuses_those_who_ask(place):
    engine = place.fresh(timeout_ms=500)
    place.node.terminate()
    with pytest.raises(Refused, match=r"no daemon at .*\(waited \d+\.\d s for it to be back\)|did not answer"):
        engine.create(SHARE)
    assert engine.create({}).empty
    place.node.start()
    assert not place.fresh().create(SHARE).empty


def test_a_daemon_that_is_restarted_is_waited_for(place, engine):
    place.node.kill()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(engine.create, SHARE)
        place.node.start()
        assert not waiting.result().empty


def test_a_daemon_that_hangs_refuses_in_the_engines_time(place):
    engine = place.fresh(timeout_ms=300)
    place.node.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(Refused, match=r"no daemon answers|did not answer"):
            engine.create(SHARE)
    finally:
        place.node.process.send_signal(signal.SIGCONT)
    # The request that the daemon finds when it continues takes no share either.
    ended = "did not wait for the answer"
    until(lambda: any(ended in grant["reason"] for grant in place.node.client.grants(ended=True)), "it ends", 20)
    assert place.grants() == []


def test_a_daemon_that_answers_by_the_byte_refuses_in_the_engines_time():
    path = Path(tempfile.mkdtemp(prefix="gst-"))
    engine, plugin = Engine(path / "nri.sock", 400), Plugin(path / "nri.sock", path / "daemon", path / "log")
    ended = threading.Event()

    def daemon() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path / "daemon"))
            listener.listen()
            plugin.start()
            connected, _ = listener.accept()
            with connected, contextlib.suppress(OSError):
                connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while not ended.wait(0.05):
                    connected.sendall(b"{")

    thread = threading.Thread(target=daemon)
    thread.start()
    try:
        engine.register()
        with pytest.raises(Refused, match=r"did not answer within 0\.3 s"):
            engine.create(SHARE)
    finally:
        ended.set()
        plugin.kill()
        thread.join()
        engine.stop()
        shutil.rmtree(path)


def test_what_the_engine_did_not_wait_for_takes_no_share(place, engine):
    """The engine has dropped the plugin, and made the container without it."""
    place.plugin.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{place.plugin.process.pid}/stat")
    until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the plugin is stopped", 10)
    answer = message(_1=message(_1="p1", _6=SHARE), _2=message(_1="late"))
    engine.ask("CreateContainer", answer)
    engine.drop()
    place.plugin.process.send_signal(signal.SIGCONT)
    engine.register()
    assert place.grants() == []
    assert "did not wait" in place.plugin.log.read_text()


HOSTILE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    struct.pack(">II", 1, 0xFFFFFFFF),  # a frame that is too large
    struct.pack(">II", 7, 4),  # for a connection that does not exist
    struct.pack(">IIIIBB", 1, 10, 0xFFFFFFFF, 1, 1, 0),  # a message that is too large
    struct.pack(">IIIIBB", 1, 14, 4, 1, 1, 0) + b"\xff\xff\xff\xff",  # not a valid request
    struct.pack(">II", 1, 4 << 20) + b"x",  # the rest never comes
]


def test_what_is_no_engine_is_left(place, engine):
    before = _memory(place.plugin.process.pid)
    for sent in HOSTILE:
        engine.accept_after(sent)
        engine.register()
        assert not engine.create(SHARE).empty
        engine.remove("c1")
    assert _memory(place.plugin.process.pid) < before + (16 << 10)


def _memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_a_socket_of_another_user_is_not_trusted(place):
    if place.engine is not None:
        place.engine.stop()
    if place.plugin.process is None:
        place.plugin.start()
    ready, release = os.pipe()
    path = place.directory / "nri.sock"
    place.directory.chmod(0o777)
    child = os.fork()
    if not child:
        os.setresuid(12345, 12345, 12345)
        stranger = Engine(path)
        os.close(release)
        os.read(ready, 1)
        del stranger
        os._exit(0)
    try:
        os.close(ready)
        until(lambda: "belongs to uid 12345" in place.plugin.log.read_text(), "the plugin sees whose it is", 20)
    finally:
        os.close(release)
        os.waitpid(child, 0)
        place.directory.chmod(0o755)
        path.unlink(missing_ok=True)
    place.engine = None
    place.fresh()


def test_a_hook_starts_the_grant(place, engine):
    """The adjustment names the same hook as the wrapper does, so that the daemon sees the container's start."""
    given = engine.create(SHARE)
    (hook,) = given.hooks["createRuntime"]
    assert hook["args"][1:4] == ["place", "--grant", given.annotations["gpushare.dev/grant"]]
    assert CONTAINER_SELF in {mount["destination"] for mount in given.mounts}
