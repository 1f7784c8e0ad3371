"""A stand-in for an engine's side of NRI, checked against containerd by tests/engines/test_nri.py; and the plugin as a
process."""

import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Self

from engines.cri import message
from engines.protobuf import every, mapping, number, parse, raw, text, texts
from run.waiting import until

QUICK = """
import gpushare.adapters.nri.plugin as plugin
plugin._RETRY_SECONDS = (0.01,)
plugin._UNFIT_SECONDS = 0.01
from gpushare.cli.main import entry
entry()
"""
TO_PLUGIN, TO_ENGINE = 1, 2
CREATE, REMOVE = 4, 11
CHUNK = 4096  # what containerd reads at once; it rejects a longer frame


class Plugin:
    """A `gpushare adapter nri` process."""

    def __init__(self, engine: Path, daemon: Path, log: Path) -> None:
        self.command = [sys.executable, "-c", QUICK, "adapter", "nri"]
        self.command += ["--nri-socket", str(engine), "--socket", str(daemon)]
        self.log = log
        self.log.touch()
        self.process: subprocess.Popen | None = None

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        return self

    def logs(self, words: str, times: int = 1) -> None:
        until(lambda: self.log.read_text().count(words) >= times, f"the plugin says {words!r} {times} times", 30)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Refused(Exception):
    """The plugin answered with an error."""


class Adjustment:
    """What a plugin answered to CreateContainer."""

    def __init__(self, answer: bytes) -> None:
        adjust = parse(raw(parse(answer), 1))
        self.empty = not answer
        self.annotations = mapping(adjust, 2)
        self.mounts = [
            {"destination": text(one, 1), "type": text(one, 2), "source": text(one, 3), "options": texts(one, 4)}
            for one in map(parse, every(adjust, 3))
        ]
        self.env = [f"{text(one, 1)}={text(one, 2)}" for one in map(parse, every(adjust, 4))]
        self.hooks = {
            stage: [
                {"path": text(one, 1), "args": texts(one, 2), "timeout": number(parse(raw(one, 4)), 1)}
                for one in map(parse, every(parse(raw(adjust, 5)), field))
            ]
            for stage, field in (("createRuntime", 2),)
        }
        linux = parse(raw(adjust, 6))
        self.devices = [
            (text(one, 1), text(one, 2), number(one, 3), number(one, 4)) for one in map(parse, every(linux, 1))
        ]
        rules = [parse(one) for one in every(parse(raw(linux, 2)), 7)]
        self.rules = [
            (number(one, 1), text(one, 2), *(number(parse(raw(one, field)), 1) for field in (3, 4)), text(one, 5))
            for one in rules
        ]


class Engine:
    """`timeout_ms`: the time for an answer that the plugin is given; the engine itself waits longer."""

    def __init__(self, path: Path, timeout_ms: int = 2000) -> None:
        self.path, self.timeout_ms = path, timeout_ms
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(30)
        self.connected: socket.socket | None = None
        self.stream = 1

    def stop(self) -> None:
        self.listener.close()
        self.path.unlink(missing_ok=True)
        self.drop()

    def drop(self) -> None:
        if self.connected is not None:
            self.connected.close()
        self.connected = None

    def accept(self) -> None:
        self.drop()
        self.connected, _ = self.listener.accept()
        self.connected.settimeout(30)

    def accept_after(self, sent: bytes) -> None:
        """Waits until the plugin connects, and sends it these bytes."""
        self.accept()
        self.connected.sendall(sent)

    def register(self, *containers: str) -> None:
        """Registers the plugin, and announces these containers to it, one in each message."""
        self.accept()
        stream, request = self.receive(TO_ENGINE, 1)
        asked = parse(request)
        assert (text(asked, 1), text(asked, 2)) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        reply = parse(raw(asked, 3))
        assert (text(reply, 1), text(reply, 2)) == ("gpushare", "10")
        self.send(TO_ENGINE, stream, 2, b"")
        configured = message(_2="stand-in", _3="1.0", _4=5000, _5=self.timeout_ms, _6="0.12")
        events = number(parse(self.call("Configure", configured)), 2)
        assert events == 1 << (CREATE - 1) | 1 << (REMOVE - 1)
        for count, name in enumerate(containers, 1):
            more = int(count < len(containers))
            answer = self.call("Synchronize", message(_2=[message(_1=name)], _3=more))
            assert number(parse(answer), 2) == more
        if not containers:
            self.call("Synchronize", b"")

    def create(
        self,
        pod: dict[str, str],
        container: dict[str, str] | None = None,
        name: str = "c1",
        mounts: list[bytes] | None = None,
        env: list[str] | None = None,
    ) -> Adjustment:
        """The plugin's adjustment of a new container with these annotations, of its pod and its own."""
        reply = message(_1=name, _3="main", _6=container or {}, _8=env or ["PATH=/bin"], _9=mounts or [])
        return Adjustment(self.call("CreateContainer", message(_1=message(_1="p1", _6=pod), _2=reply)))

    def remove(self, name: str, *, by_state_change: bool = False) -> None:
        if by_state_change:
            self.call("StateChange", message(_1=REMOVE, _3=message(_1=name)))
        else:
            self.call("RemoveContainer", message(_2=message(_1=name)))

    def call(self, method: str, payload: bytes) -> bytes:
        """The plugin's answer. Raises Refused."""
        self.ask(method, payload)
        _, response = self.receive(TO_PLUGIN, 2)
        answer = parse(response)
        if status := parse(raw(answer, 1)):
            raise Refused(text(status, 2))
        return raw(answer, 2)

    def ask(self, method: str, payload: bytes) -> None:
        self.stream += 2
        self.send(TO_PLUGIN, self.stream, 1, message(_1="nri.pkg.api.v1alpha1.Plugin", _2=method, _3=payload))

    def send(self, connection: int, stream: int, kind: int, payload: bytes) -> None:
        whole = struct.pack(">IIBB", len(payload), stream, kind, 0) + payload
        for part in (whole[at : at + CHUNK] for at in range(0, len(whole), CHUNK)):
            self.connected.sendall(struct.pack(">II", connection, len(part)) + part)

    def receive(self, connection: int, kind: int) -> tuple[int, bytes]:
        """Stream and payload of the next message, which must have this connection and kind."""
        data = b""
        while True:
            found, size = struct.unpack(">II", self._exactly(8))
            assert found == connection
            assert size <= CHUNK
            data += self._exactly(size)
            if len(data) >= 10:
                length, stream, of, _ = struct.unpack_from(">IIBB", data)
                assert of == kind
                if len(data) == 10 + length:
                    return stream, data[10:]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.connected.recv(size - len(data))
            if not part:
                raise EOFError("the plugin ended the connection")
            data += part
        return data
