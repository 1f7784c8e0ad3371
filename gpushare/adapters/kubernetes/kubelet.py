"""The two sockets that kubelet calls: one to register the driver, one to prepare claims.

Messages are those of kubelet's public APIs pluginregistration/v1, dra/v1, dra/v1beta1 and dra-health/v1alpha1. Both
versions of DRA have the same messages.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.adapters.common import Latest
from gpushare.adapters.kubernetes import DRIVER
from gpushare.adapters.messages import EMPTY, Table, flag, keyed, message, text, whole
from gpushare.adapters.rpc import Method, Server

log = logging.getLogger(__name__)

_INFO = Table(type=text(1), name=text(2), endpoint=text(3), versions=text(4, many=True))
_STATUS = Table(registered=flag(1), error=text(2))

_CLAIM = Table(namespace=text(1), uid=text(2), name=text(3))
_CLAIMS = Table(claims=message(1, _CLAIM, many=True))
_DEVICE = Table(requests=text(1, many=True), pool=text(2), name=text(3), cdi=text(4, many=True), share=text(5))
_PREPARED = Table(claims=keyed(1, Table(devices=message(1, _DEVICE, many=True), error=text(2))))
_UNPREPARED = Table(claims=keyed(1, Table(error=text(1))))

_WHERE = Table(pool=text(1), device=text(2))
_HEALTH = Table(where=message(1, _WHERE), health=whole(2), since=whole(3), reason=text(5))
_HEALTHS = Table(devices=message(1, _HEALTH, many=True))
_UNKNOWN, _HEALTHY, _UNHEALTHY = 0, 1, 2

VERSIONS = {f"{version}.DRAPlugin": f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin" for version in ("v1", "v1beta1")}
"""Service names, by the version name offered at registration."""

_GRACE_SECONDS = 2.0
_HEALTH_SECONDS = 10.0  # kubelet discards a report after 30 s


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim as identified by kubelet."""

    namespace: str
    uid: str
    name: str


@dataclass(frozen=True, slots=True)
class Device:
    """A prepared device. `request`: name of the claim's request. `cdi`: names for the container engine. `share`: as in
    claims.Part."""

    request: str
    pool: str
    name: str
    cdi: tuple[str, ...]
    share: str | None


@dataclass(frozen=True, slots=True)
class Health:
    """A device's health. `healthy`: None: unknown. `since`: seconds since 1970."""

    pool: str
    device: str
    healthy: bool | None
    since: int
    reason: str


Waits = Callable[[], bool]
"""Whether the caller is still there."""
Prepare = Callable[[Sequence[Claim], Waits], dict[str, list[Device] | str]]
"""Returns by claim uid: its devices, or why they cannot be prepared."""
Unprepare = Callable[[Sequence[Claim], Waits], dict[str, str]]
"""Returns by claim uid: why it could not be unprepared, empty on success."""


def _claims(request: dict[str, Any]) -> list[Claim]:
    return [Claim(**claim) for claim in request["claims"]]


def _prepared(answer: list[Device] | str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {"error": answer}
    devices = [
        {"requests": [one.request], "pool": one.pool, "name": one.name, "cdi": one.cdi, "share": one.share}
        for one in answer
    ]
    return {"devices": devices}


def reports(healths: Latest[Health], waits: Waits) -> Iterator[dict[str, Any]]:
    """NodeWatchResources: all devices' health at first, at each change, and every _HEALTH_SECONDS."""
    return ({"devices": [_health(one) for one in now]} for now in healths.watch(waits, _HEALTH_SECONDS))


def _health(one: Health) -> dict[str, Any]:
    where = {"pool": one.pool, "device": one.device}
    word = _UNKNOWN if one.healthy is None else _HEALTHY if one.healthy else _UNHEALTHY
    return {"where": where, "health": word, "since": one.since, "reason": one.reason}


class Kubelet:
    """Both sockets, served until `stop`. kubelet watches the directory of the registration socket, so that the driver
    is registered again when it or kubelet restarts."""

    def __init__(self, directory: Path, prepare: Prepare, unprepare: Unprepare) -> None:
        """`directory`: kubelet's, /var/lib/kubelet by default. Raises FailedError."""
        self._prepare, self._unprepare = prepare, unprepare
        self.healths: Latest[Health] = Latest()
        self._endpoint = directory / "plugins" / DRIVER / "dra.sock"
        self._register = directory / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._servers: list[Server] = []
        self._lock = threading.Lock()
        self._ended = False
        self.serve()

    def serve(self) -> None:
        """Makes the sockets, and recreates both if one was removed. Sockets of a driver that has replaced this one are
        left alone. Raises FailedError."""
        with self._lock:
            if self._ended or (self._servers and all(server.path.exists() for server in self._servers)):
                return
            self._stop()
            self._endpoint.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._register.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            dra = {
                "NodePrepareResources": Method(_CLAIMS, _PREPARED, self._on_prepare),
                "NodeUnprepareResources": Method(_CLAIMS, _UNPREPARED, self._on_unprepare),
            }
            watch = Method(EMPTY, _HEALTHS, lambda _request, waits: reports(self.healths, waits), stream=True)
            health = {"NodeWatchResources": watch}
            services = {**dict.fromkeys(VERSIONS.values(), dra), "v1alpha1.DRAResourceHealth": health}
            registration = {
                "GetInfo": Method(EMPTY, _INFO, self._on_info),
                "NotifyRegistrationStatus": Method(_STATUS, EMPTY, self._on_status),
            }
            # In this order: kubelet calls the first as soon as it sees the second.
            self._servers.append(Server(self._endpoint, services))
            self._servers.append(Server(self._register, {"pluginregistration.Registration": registration}))

    def stop(self) -> None:
        """Ends serving for good: the registration socket first, so that kubelet forgets the driver; running calls may
        finish."""
        with self._lock:
            self._ended = True
            self._stop()

    def _stop(self) -> None:
        while self._servers:
            self._servers.pop().stop(_GRACE_SECONDS)

    def _on_info(self, _request: dict[str, Any], _waits: Waits) -> dict[str, Any]:
        return {"type": "DRAPlugin", "name": DRIVER, "endpoint": str(self._endpoint), "versions": VERSIONS}

    def _on_status(self, request: dict[str, Any], _waits: Waits) -> dict[str, Any]:
        if request["registered"]:
            log.info("kubelet has registered %s", DRIVER)
        else:
            log.error("kubelet does not take %s: %s", DRIVER, request["error"])
        return {}

    def _on_prepare(self, request: dict[str, Any], waits: Waits) -> dict[str, Any]:
        answers = self._prepare(_claims(request), waits)
        return {"claims": {uid: _prepared(answer) for uid, answer in answers.items()}}

    def _on_unprepare(self, request: dict[str, Any], waits: Waits) -> dict[str, Any]:
        return {"claims": {uid: {"error": error} for uid, error in self._unprepare(_claims(request), waits).items()}}
