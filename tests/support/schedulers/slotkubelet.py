"""The part of kubelet that a device plugin deals with: registration, its slots, allocation, and the list of pods.

Messages are encoded here from the public APIs' field numbers, not by the product's code.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from run.waiting import until
from schedulers.kubelet import fields, first, part


class Refused(Exception):
    """The plugin answered with an error status."""


class Reuse:
    """How kubelet's devicemanager gives slots to the containers of one pod, all of them at the pod's admission: first
    those that init containers of the pod had, in any order, then free ones. `free`: slots that no pod has."""

    def __init__(self, free: Sequence[str], seed: int) -> None:
        self.free = list(free)
        self._again: set[str] = set()
        self._random = random.Random(seed)

    def take(self, count: int, *, init: bool) -> list[str]:
        """The slots of the pod's next container. `init`: its slots are used again, as it ends before the next starts;
        those of a main or a restartable init container are not."""
        again = sorted(self._again)
        own = self._random.sample(again, min(count, len(again)))
        fresh, self.free = self.free[: count - len(own)], self.free[count - len(own) :]
        own += fresh
        self._again = self._again | set(own) if init else self._again - set(own)
        return own


class SlotKubelet:
    """`directory`: its root. `slots`: by name, (healthy, NUMA node)."""

    def __init__(self, directory: Path) -> None:
        self.plugins = directory / "device-plugins"
        self.slots: dict[str, tuple[bool, int | None]] = {}
        self.registered: list[dict[str, Any]] = []
        self.streams = 0
        # Slots, by pod; without those of init containers that end, which kubelet does not list.
        self.pods: dict[str, list[str]] = {}
        self.plugins.mkdir(parents=True, exist_ok=True)
        (directory / "pod-resources").mkdir(exist_ok=True)
        self.podresources = directory / "pod-resources" / "kubelet.sock"
        self._servers: list[Any] = []

    def start(self) -> None:
        """Starts; like a real kubelet, first removes all sockets of plugins."""
        for left in self.plugins.iterdir():
            left.unlink()
        for path, service, method, handler in (
            (self.plugins / "kubelet.sock", "v1beta1.Registration", "Register", self._register),
            (self.podresources, "v1.PodResourcesLister", "List", self._list),
        ):
            server = grpc.server(ThreadPoolExecutor(4))
            one = grpc.unary_unary_rpc_method_handler(handler)
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: one}),))
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{path}")
            server.start()
            self._servers.append(server)

    def stop(self) -> None:
        for server in self._servers:
            server.stop(None).wait()
        self._servers.clear()
        self.slots = {}

    def _register(self, request: bytes, _context: Any) -> bytes:
        found = fields(request)
        offer = {"version": first(found, 1), "endpoint": first(found, 2), "resource": first(found, 3)}
        self.registered.append({**offer, "preferred": fields(found[4][0]).get(2) == [1]})
        threading.Thread(target=self._watch, args=(self.plugins / offer["endpoint"],), daemon=True).start()
        return b""

    def _watch(self, endpoint: Path) -> None:
        self.streams += 1
        try:
            with grpc.insecure_channel(f"unix:{endpoint}") as channel:
                for data in channel.unary_stream("/v1beta1.DevicePlugin/ListAndWatch")(b""):
                    self.slots = dict(map(self._slot, fields(data).get(1, ())))
        except grpc.RpcError:
            self.slots = {}
        finally:
            self.streams -= 1

    @staticmethod
    def _slot(data: bytes) -> tuple[str, tuple[bool, int | None]]:
        one = fields(data)
        numa = fields(fields(one[3][0])[1][0]).get(1, [0])[0] if 3 in one else None
        return first(one, 1), (first(one, 2) == "Healthy", numa)

    def _list(self, _request: bytes, _context: Any) -> bytes:
        return b"".join(
            part(1, part(1, pod) + part(2, "default") + part(3, part(1, "main") + part(2, self._has(slots))))
            for pod, slots in self.pods.items()
        )

    @staticmethod
    def _has(slots: list[str]) -> bytes:
        return part(1, "gpushare.dev/slot") + b"".join(part(2, one) for one in slots)

    def _call(self, method: str, request: bytes) -> dict[int, list[Any]]:
        endpoint = self.plugins / self.registered[-1]["endpoint"]
        with grpc.insecure_channel(f"unix:{endpoint}") as channel:
            try:
                return fields(channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")(request, timeout=20))
            except grpc.RpcError as error:
                raise Refused(error.details()) from None

    def prefer(self, available: list[str], must: list[str], size: int) -> list[str]:
        """Calls GetPreferredAllocation."""
        asked = b"".join(part(1, one) for one in available) + b"".join(part(2, one) for one in must) + part(3, size)
        [answer] = self._call("GetPreferredAllocation", part(1, asked))[1]
        return [one.decode() for one in fields(answer)[1]]

    def allocate(self, slots: list[str], pod: str = "") -> dict[str, Any]:
        """Allocates slots; returns what the container gets. `pod`: listed with the slots from then on."""
        [answer] = self._call("Allocate", part(1, b"".join(part(1, one) for one in slots)))[1]
        if pod:
            self.pods[pod] = slots
        found = fields(answer)
        notes = [fields(entry) for entry in found.get(4, ())]
        return {
            "cdi": [first(fields(one), 1) for one in found.get(5, ())],
            "annotations": {first(one, 1): first(one, 2) for one in notes},
        }

    def admit(self, pod: str, free: Sequence[str], *containers: tuple[str, int], seed: int = 0) -> Iterator[str]:
        """Admits a pod, one container at a time; yields their CDI names. `containers`: kind (`init`, `sidecar`, `main`)
        and number of slots."""
        reuse = Reuse(free, seed)
        self.pods[pod] = []
        for kind, count in containers:
            own = reuse.take(count, init=kind == "init")
            [name] = self.allocate(own)["cdi"]
            if kind != "init":
                self.pods[pod] = [*self.pods[pod], *own]
            yield name

    def free(self, device: str) -> list[str]:
        """Healthy slots of a device that no pod has."""
        used = {slot for slots in self.pods.values() for slot in slots}
        return [name for name, (ok, _) in self.slots.items() if ok and name.startswith(device) and name not in used]

    def wait(self, healthy: int, what: str = "slots") -> None:
        """Waits until exactly `healthy` slots are healthy."""
        until(lambda: sum(ok for ok, _ in self.slots.values()) == healthy, f"{healthy} healthy {what}", 30)
