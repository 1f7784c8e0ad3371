"""The interface to kubelet: the plugin's socket and its registration, and which pods have which slots.

Messages are those of kubelet's public APIs deviceplugin/v1beta1 and podresources/v1.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.adapters.common import Changes, Latest
from gpushare.adapters.deviceplugin.slots import Slot
from gpushare.adapters.messages import EMPTY, Table, flag, keyed, message, text, whole
from gpushare.adapters.rpc import Caller, Method, Server
from gpushare.errors import GpushareError, UnreachableError

log = logging.getLogger(__name__)

VERSION = "v1beta1"
_ENDPOINT = "gpushare.sock"

_OPTIONS = Table(pre_start=flag(1), preferred=flag(2))
_REGISTER = Table(version=text(1), endpoint=text(2), resource=text(3), options=message(4, _OPTIONS))
_NUMA = Table(id=whole(1))
_TOPOLOGY = Table(nodes=message(1, _NUMA, many=True))
_DEVICE = Table(name=text(1), health=text(2), topology=message(3, _TOPOLOGY))
_DEVICES = Table(devices=message(1, _DEVICE, many=True))
_PREFER = Table(available=text(1, many=True), must=text(2, many=True), size=whole(3))
_PREFERS = Table(containers=message(1, _PREFER, many=True))
_IDS = Table(ids=text(1, many=True))
_ASKED = Table(containers=message(1, _IDS, many=True))
_CDI = Table(name=text(1))
_ALLOCATED = Table(containers=message(1, Table(annotations=keyed(4), cdi=message(5, _CDI, many=True)), many=True))

_HAS = Table(resource=text(1), ids=text(2, many=True))
_POD = Table(
    name=text(1),
    namespace=text(2),
    containers=message(3, Table(name=text(1), devices=message(2, _HAS, many=True)), many=True),
)
_PODS = Table(pods=message(1, _POD, many=True))

Waits = Callable[[], bool]
Identity = tuple[int, int]
"""Inode and ctime in ns of a socket's file."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one container gets: CDI names, or annotations for the runtime or plugin that edits the container."""

    cdi: Sequence[str] = ()
    annotations: tuple[tuple[str, str], ...] = ()


Allocate = Callable[[list[list[str]], Waits], list[Answer]]
"""Takes the slots of each container, and a function that returns whether kubelet still waits. Raises GpushareError if
none of the containers may start."""
Prefer = Callable[[Sequence[str], Sequence[str], int], list[str]]
"""As slots.preferred."""


def _slot(one: Slot) -> dict[str, Any]:
    out: dict[str, Any] = {"name": one.name, "health": "Healthy" if one.healthy else "Unhealthy"}
    if one.numa is not None:
        out["topology"] = {"nodes": [{"id": one.numa}]}
    return out


class Plugin:
    """The plugin's socket in kubelet's directory. kubelet empties the directory when it starts; `keep` recreates the
    socket."""

    def __init__(self, directory: Path, resource: str, allocate: Allocate, prefer: Prefer) -> None:
        """`directory`: /var/lib/kubelet/device-plugins by default."""
        self.shown: Latest[Slot] = Latest()
        self._directory, self._resource = directory, resource
        self._allocate, self._prefer = allocate, prefer
        self._server: Server | None = None
        self._registered: Identity | None = None
        self._changes = Changes(log)

    def keep(self) -> None:
        """Makes the socket and registers it if either is missing. To be called periodically."""
        try:
            found = (self._directory / "kubelet.sock").stat()
        except OSError:
            self._changes.log(f"no kubelet at {self._directory}: waiting for one")
            self._registered = None
            return
        kubelet = found.st_ino, found.st_ctime_ns
        if self._server is not None and self._server.there and self._registered == kubelet:
            return
        try:
            if self._server is None or not self._server.there:
                self.stop()
                self._server = Server(self._directory / _ENDPOINT, {f"{VERSION}.DevicePlugin": self._methods()})
            with Caller(self._directory / "kubelet.sock", timeout=5.0) as caller:
                offer = {"version": VERSION, "endpoint": _ENDPOINT, "resource": self._resource}
                caller.call(f"/{VERSION}.Registration/Register", _REGISTER, EMPTY, **offer, options={"preferred": True})
        except GpushareError as error:
            self._changes.log(f"kubelet does not take {self._resource}: {error}")
            return
        self._registered = kubelet
        self._changes.log(f"kubelet has registered {self._resource}")

    def stop(self) -> None:
        """Closes the socket and its streams. kubelet then drops the slots; its pods stay."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _methods(self) -> dict[str, Method]:
        return {
            "GetDevicePluginOptions": Method(EMPTY, _OPTIONS, lambda _request, _waits: {"preferred": True}),
            "ListAndWatch": Method(EMPTY, _DEVICES, self._on_watch, stream=True),
            "GetPreferredAllocation": Method(_PREFERS, _ASKED, self._on_prefer),
            "Allocate": Method(_ASKED, _ALLOCATED, self._on_allocate),
            "PreStartContainer": Method(EMPTY, EMPTY, lambda _request, _waits: {}),
        }

    def _on_watch(self, _request: dict[str, Any], waits: Waits) -> Iterator[dict[str, Any]]:
        return ({"devices": [_slot(one) for one in now]} for now in self.shown.watch(waits))

    def _on_prefer(self, request: dict[str, Any], _waits: Waits) -> dict[str, Any]:
        answers = [self._prefer(one["available"], one["must"], one["size"]) for one in request["containers"]]
        return {"containers": [{"ids": ids} for ids in answers]}

    def _on_allocate(self, request: dict[str, Any], waits: Waits) -> dict[str, Any]:
        answers = self._allocate([one["ids"] for one in request["containers"]], waits)
        return {
            "containers": [
                {"annotations": dict(one.annotations), "cdi": [{"name": name} for name in one.cdi]} for one in answers
            ]
        }


class Pods:
    """The pods and their slots, as kubelet lists them."""

    def __init__(self, socket: Path) -> None:
        """`socket`: /var/lib/kubelet/pod-resources/kubelet.sock by default."""
        self._socket = socket

    def kubelet(self) -> Identity | None:
        """Returns the identity of the running kubelet; None if there is none. Its socket appears before it knows its
        pods."""
        try:
            found = self._socket.stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns

    def list(self, of: Identity | None) -> list[dict[str, Any]]:
        """Returns the pods that the kubelet `of` lists. Raises UnreachableError if it is away or has been replaced, or
        FailedError."""
        if of is not None and self.kubelet() == of:
            with Caller(self._socket, timeout=5.0) as caller:
                pods: list[dict[str, Any]] = caller.call("/v1.PodResourcesLister/List", EMPTY, _PODS)["pods"]
            if self.kubelet() == of:
                return pods
        raise UnreachableError(f"no kubelet lists its pods at {self._socket}, or another one by now: try again")
