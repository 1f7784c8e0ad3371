"""The part of Nomad's agent that a device plugin deals with: it starts the plugin, shakes hands, and makes calls.

Messages are encoded here from the public protocols' field numbers, not by the product's code.
"""

import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
from schedulers.kubelet import fields, first, part

COOKIE = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255"
BASE = "/hashicorp.nomad.plugins.base.proto.BasePlugin/"
DEVICE = "/hashicorp.nomad.plugins.device.DevicePlugin/"
QUICK = """
import gpushare.adapters.nomad.plugin as plugin
plugin.LOOK_SECONDS, plugin.WAIT_SECONDS = 0.05, 30.0
from gpushare.cli.main import entry
entry()
"""


def mapping(entries: list[bytes]) -> dict[str, Any]:
    """Decodes a protobuf map; values stay raw."""
    found = [fields(entry) for entry in entries]
    return {first(one, 1): one.get(2, [b""])[0] for one in found}


class Refused(Exception):
    """The plugin answered with an error status."""


class Agent:
    """An agent with one plugin, which it starts."""

    def __init__(self, socket: Path, log: Path, **environment: str) -> None:
        env = {**os.environ, "NOMAD_PLUGIN_MAGIC_COOKIE": COOKIE, "PLUGIN_PROTOCOL_VERSIONS": "2", **environment}
        command = [sys.executable, "-c", QUICK, "adapter", "nomad", "--socket", str(socket)]
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip().split("|")
        self.process.stdout.close()
        if self.line == [""]:
            return
        self._channel = grpc.insecure_channel(
            f"unix:{self.line[3]}", options=[("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0)]
        )
        # As in go-plugin, both streams stay open as long as the plugin runs.
        self._asked: queue.Queue[bytes | None] = queue.Queue()
        self._streams = [
            self._channel.stream_stream("/plugin.GRPCBroker/StartStream")(iter(self._asked.get, None)),
            self._channel.unary_stream("/plugin.GRPCStdio/StreamStdio")(b""),
        ]

    def call(self, method: str, request: bytes = b"", seconds: float = 20) -> dict[int, list[Any]]:
        try:
            return fields(self._channel.unary_unary(method)(request, timeout=seconds))
        except grpc.RpcError as error:
            raise Refused(error.details()) from None

    def healthy(self) -> bool:
        return self.call("/grpc.health.v1.Health/Check", part(1, "plugin"))[1] == [1]

    def info(self) -> dict[str, Any]:
        found = self.call(BASE + "PluginInfo")
        versions = [one.decode() for one in found[2]]
        return {"type": found[1][0], "api": versions, "version": first(found, 3), "name": first(found, 4)}

    def schema(self) -> dict[str, str]:
        """The types of the configuration's attributes."""
        spec = fields(self.call(BASE + "ConfigSchema")[1][0])
        attributes = {name: fields(fields(one)[3][0]) for name, one in mapping(fields(spec[1][0])[1]).items()}
        assert all(name == first(one, 1) for name, one in attributes.items())
        return {name: first(one, 2) for name, one in attributes.items()}

    def configure(self, **config: Any) -> None:
        self.call(BASE + "SetConfig", part(1, msgspec.msgpack.encode(config)) + part(3, "v0.1.0"))

    def fingerprints(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Answers of the Fingerprint stream: device groups, by name."""
        for data in self._channel.unary_stream(DEVICE + "Fingerprint")(b""):
            groups = [fields(group) for group in fields(data).get(1, ())]
            yield {first(group, 3): self._group(group) for group in groups}

    @staticmethod
    def _group(group: dict[int, list[Any]]) -> dict[str, Any]:
        devices = [fields(one) for one in group[4]]
        attributes = {name: fields(value) for name, value in mapping(group[5]).items()}
        return {
            "job": f"{first(group, 1)}/{first(group, 2)}",
            "healthy": [first(one, 1) for one in devices if one.get(2) == [1]],
            "sick": [first(one, 1) for one in devices if one.get(2) != [1]],
            "attributes": {name: one.get(2, one.get(3))[0] for name, one in attributes.items()},
        }

    def reserve(self, slots: list[str], seconds: float = 20) -> dict[str, Any]:
        """Reserves slots. `seconds`: the call's timeout."""
        answer = self.call(DEVICE + "Reserve", b"".join(part(1, one) for one in slots), seconds)
        found = fields(answer[1][0])
        mounts = [fields(one) for one in found.get(2, ())]
        return {
            "env": {name: value.decode() for name, value in mapping(found[1]).items()},
            "mounts": {first(one, 1): (first(one, 2), one.get(3) == [1]) for one in mounts},
            "devices": [first(fields(one), 1) for one in found.get(3, ())],
        }

    def stats(self) -> Iterator[dict[str, tuple[int, int]]]:
        """Answers of the Stats stream, every 100 ms: each slot's summary."""
        interval = part(1, part(2, 100_000_000))
        for data in self._channel.unary_stream(DEVICE + "Stats")(interval):
            found: dict[str, tuple[int, int]] = {}
            for group in fields(data).get(1, ()):
                for slot, one in mapping(fields(group).get(4, [])).items():
                    summary = fields(fields(one)[1][0])
                    found[slot] = (summary.get(3, [0])[0], summary[4][0])
            yield found

    def stop(self) -> int:
        self.call("/plugin.GRPCController/Shutdown")
        return self.gone()

    def gone(self) -> int:
        self._asked.put(None)
        self._channel.close()
        return self.process.wait(20)

    def kill(self) -> None:
        self.process.kill()
        self.gone()
