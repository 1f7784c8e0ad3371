"""The part of kubelet that its plugins deal with: it finds their sockets, registers them, and has them prepare claims.

Messages are encoded here from the public APIs' field numbers, not by the product's code.
"""

import time
from pathlib import Path
from typing import Any

import grpc
from run.waiting import until

V1 = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
V1BETA1 = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def part(number: int, value: bytes | str | int) -> bytes:
    """Encodes one field."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def parts(data: bytes) -> list[tuple[int, Any]]:
    """The fields of a message in order, as (number, value): an int or bytes."""
    found, at = [], 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 0:
            found.append((key >> 3, number()))
        else:
            assert key & 7 == 2, key
            size = number()
            found.append((key >> 3, data[at : at + size]))
            at += size
    assert at == len(data)
    return found


def fields(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for number, value in parts(data):
        found.setdefault(number, []).append(value)
    return found


def first(found: dict[int, list[Any]], number: int) -> str:
    return found.get(number, [b""])[0].decode()


class Kubelet:
    """`directory`: its root, which has the directories for plugins' sockets."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "plugins_registry").mkdir(parents=True, exist_ok=True)
        (directory / "plugins").mkdir(exist_ok=True)
        self.endpoint: Path | None = None

    def _call(self, path: Path, method: str, request: bytes) -> bytes:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
            return call(request, timeout=20, wait_for_ready=True)

    def register(self) -> dict[str, Any]:
        """Registers the plugin whose socket is in the registry directory; returns its type, name and versions."""
        sockets = until(lambda: list((self.directory / "plugins_registry").glob("[!.]*.sock")), "a plugin's socket", 30)
        info = fields(self._call(sockets[0], "/pluginregistration.Registration/GetInfo", b""))
        self.endpoint = Path(first(info, 3))
        self._call(sockets[0], "/pluginregistration.Registration/NotifyRegistrationStatus", part(1, 1))
        return {
            "type": first(info, 1), "name": first(info, 2), "versions": [one.decode() for one in info[4]]
        }  # fmt: skip

    def _claims(self, claims: list[dict[str, Any]]) -> bytes:
        return b"".join(
            part(
                1,
                part(1, one["metadata"]["namespace"])
                + part(2, one["metadata"]["uid"])
                + part(3, one["metadata"]["name"]),
            )
            for one in claims
        )

    def prepare(self, *claims: dict[str, Any], service: str = V1) -> dict[str, Any]:
        """Prepares claims. Returns for each uid the devices as dicts, or the error's text."""
        assert self.endpoint is not None
        data = self._call(self.endpoint, f"/{service}/NodePrepareResources", self._claims([*claims]))
        found: dict[str, Any] = {}
        for entry in fields(data).get(1, ()):
            one = fields(entry)
            answer = fields(one.get(2, [b""])[0])
            found[first(one, 1)] = first(answer, 2) or [self._device(device) for device in answer.get(1, ())]
        return found

    @staticmethod
    def _device(data: bytes) -> dict[str, Any]:
        one = fields(data)
        return {
            "requests": [text.decode() for text in one.get(1, ())],
            "pool": first(one, 2),
            "device": first(one, 3),
            "cdi": [text.decode() for text in one.get(4, ())],
            "share": first(one, 5),
        }

    def unprepare(self, *claims: dict[str, Any], service: str = V1) -> dict[str, str]:
        assert self.endpoint is not None
        data = self._call(self.endpoint, f"/{service}/NodeUnprepareResources", self._claims([*claims]))
        entries = [fields(entry) for entry in fields(data).get(1, ())]
        return {first(one, 1): first(fields(one.get(2, [b""])[0]), 1) for one in entries}

    def healths(self, count: int) -> list[dict[str, bool]]:
        """The first `count` answers of the health stream: for each device, whether it is healthy."""
        assert self.endpoint is not None
        out: list[dict[str, bool]] = []
        with grpc.insecure_channel(f"unix:{self.endpoint}") as channel:
            call = channel.unary_stream(
                "/v1alpha1.DRAResourceHealth/NodeWatchResources", request_serializer=bytes, response_deserializer=bytes
            )
            stream = call(b"", timeout=20)
            for data in stream:
                now = [fields(one) for one in fields(data).get(1, ())]
                out.append({first(fields(one[1][0]), 2): one[2][0] == 1 for one in now})
                if len(out) == count:
                    break
            stream.cancel()
        return out


def timed(work: Any) -> tuple[float, Any]:
    """Calls `work`; returns the milliseconds it took and its result."""
    began = time.perf_counter()
    result = work()
    return (time.perf_counter() - began) * 1e3, result
