"""The two sides that the DRA driver connects, in memory: a node's daemon, and the API server's claims and slices."""

from collections import Counter

from gpushare.adapters.kubernetes import slices
from gpushare.adapters.kubernetes.kubelet import Claim
from gpushare.errors import FailedError, NotFoundError, RefusedError

GIB = 1 << 30
DEVICE = {
    "id": "GPU-67707573-6841-7265-ad73-696d00000001",
    "index": 0,
    "name": "NVIDIA H200",
    "backend": "native",
    "pci_bus_id": "00000000:01:00.0",
    "capacity": {"time": 1000, "memory": 16 * GIB},
    "reserved": {"time": 0, "memory": 0},
    "context_bytes": 16 << 20,
    "attributes": {},
    "health": "healthy",
}
NAME = slices.device_name(DEVICE["id"])


class Api:
    """Slices and claims in memory. `late`: an event that reads of claims wait for, or None."""

    def __init__(self, *known):
        self.claims = {one["metadata"]["name"]: one for one in known}
        self.kept, self.version, self.late = None, 0, None

    def claim(self, _namespace, name):
        if self.late is not None:
            assert self.late.wait(20)
        if name not in self.claims:
            raise NotFoundError("no such claim")
        return self.claims[name]

    def pods(self, _node):
        return [pod(name) for name in (*self.claims, "gone")]

    def slice(self, _node):
        return self.kept

    def node_uid(self, _name):
        return "u"

    def put_slice(self, body):
        if self.kept is not None and body["metadata"].get("resourceVersion") != str(self.version):
            raise FailedError("changed meanwhile")
        self.version += 1
        self.kept = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.kept


def pod(claim, **status):
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]} if claim else {}
    return {"metadata": {"namespace": "ns", "name": "p"}, "spec": spec, "status": status}


def claim(name="a", *, time="300", memory="4Gi", config=(), **more):
    result = {
        "request": "gpu",
        "driver": "gpu.gpushare.dev",
        "pool": "n",
        "device": NAME,
        "shareID": f"share-{name}",
        "consumedCapacity": {"memory": memory, "time": time},
        **more,
    }
    devices = {"results": [result], "config": list(config)}
    metadata = {"namespace": "ns", "name": name, "uid": f"uid-{name}"}
    return {"metadata": metadata, "status": {"allocation": {"devices": devices}}}


class Daemon:
    """Grants in memory, which fit if the sum of their time does."""

    def __init__(self):
        self.live, self.count, self.asked = {}, 0, Counter()
        self.known = [{"name": "default"}]

    def grants(self, key_prefix=""):
        return [grant for grant in self.live.values() if grant["key"].startswith(key_prefix)]

    def devices(self):
        return [DEVICE]

    def tenants(self):
        return self.known

    def create(self, *, wait_seconds, **request):
        assert 0 <= wait_seconds <= 10
        self.asked[request["key"]] += 1
        assert self.asked[request["key"]] == 1, "asked twice at once"
        if sum(grant["time"] for grant in self.live.values()) + request["time"] > 1000:
            self.asked[request["key"]] = 0
            raise RefusedError("does not fit")
        self.count += 1
        share = {"memory_limit_bytes": request["memory"], "time_milli": request["time"], "time_limit_milli": 1000}
        parts = [{"id": name, **share} for name in request["device"].split(",")]
        grant = {"id": f"g-{self.count}", "cdi": [f"gpushare.dev/gpu=g-{self.count}"], **request}
        grant |= {"devices": parts, "created_ns": 86400_000_000_000, "phase": "reserved"}
        self.live[grant["id"]] = grant
        return grant

    def release(self, grant_id):
        if self.live.pop(grant_id, None) is None:
            raise NotFoundError("ended")


def there():
    return True


def named(one):
    return Claim("ns", one["metadata"]["uid"], one["metadata"]["name"])
