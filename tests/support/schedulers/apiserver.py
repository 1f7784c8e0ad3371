"""The part of a Kubernetes API server that a DRA driver uses: nodes, claims, slices, versions of objects, conflicts.

Objects that clients write must match the official client's models, which `check` walks. As in the real server,
quantities are stored in canonical form, and taints get the time at which they were added.
"""

import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.utils.quantity import parse_quantity

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODES = "/api/v1/nodes"
_BASIC = {"str": str, "int": int, "bool": bool, "float": (int, float)}


def check(value: Any, kind: str, where: str = "") -> None:
    """Asserts that a JSON value is one of the API's type `kind`, with no field that the type does not have."""
    if kind in _BASIC:
        assert isinstance(value, _BASIC[kind]), f"{where} is {value!r}, not {kind}"
    elif kind == "datetime":
        assert isinstance(value, str)
    elif kind == "object":
        pass
    elif kind.startswith(("list[", "List[")):
        assert isinstance(value, list), where
        for index, part in enumerate(value):
            check(part, kind[5:-1], f"{where}[{index}]")
    elif kind.startswith(("dict(", "Dict[")):
        inner = kind[5:-1].partition(",")[2].strip()
        for name, part in value.items():
            check(part, inner, f"{where}.{name}")
    else:
        model = getattr(client, kind)
        names = {word: name for name, word in model.attribute_map.items()}
        for word, part in value.items():
            assert word in names, f"{where}.{word} is no field of {kind}: {sorted(names)}"
            check(part, model.openapi_types[names[word]], f"{where}.{word}")


def canonical(text: str) -> str:
    """A quantity as the API server stores it: the largest suffix without a fraction."""
    suffixes = ("Ki", "Mi", "Gi", "Ti") if text.endswith("i") else ("k", "M", "G", "T")
    base = 1024 if text.endswith("i") else 1000
    value, found = int(Decimal(parse_quantity(text))), ""
    for suffix in suffixes:
        if value == 0 or value % base:
            break
        value, found = value // base, suffix
    return f"{value}{found}"


def _store(value: Any, *, amounts: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _store(part, amounts=amounts or key == "capacity") for key, part in value.items()}
    if isinstance(value, list):
        return [_store(part, amounts=amounts) for part in value]
    return canonical(value) if amounts else value


class ApiServer:
    """A server on loopback that runs until `stop`. `objects`: by path. `drop`: fields of devices that this version does
    not have. `away`: it answers 503."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.status_writes: list[str] = []
        self.drop: tuple[str, ...] = ()
        self.away = False
        self._version = 0
        self._lock = threading.Condition()
        self._events: list[dict[str, Any]] = []
        self._ended = False
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # header and body are two writes

            def log_message(self, *_: object) -> None:
                pass

            def _do(self, method: str) -> None:
                if "watch=true" in self.path.lower():  # its case depends on the client's version
                    self._watch()
                    return
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                status, answer = server.answer(method, self.path.partition("?")[0], body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _watch(self) -> None:
                """Streams the events of all objects; the client filters them."""
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.close_connection = True
                for event in server.events():
                    data = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.write(b"0\r\n\r\n")

            def do_GET(self) -> None:
                self._do("GET")

            def do_POST(self) -> None:
                self._do("POST")

            def do_PUT(self) -> None:
                self._do("PUT")

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            self._lock.notify_all()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig for this server."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._http.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        return path

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            if self.away:
                return 503, {"message": "not now"}
            if method == "GET":
                return self._get(path)
            if path.endswith("/status"):
                return self._put_status(path.removesuffix("/status"), body)
            check(body, "V1ResourceSlice", "slice")
            assert path.startswith(SLICES), path
            name = f"{SLICES}/{body['metadata']['name']}"
            if method == "POST" and name in self.objects:
                return 409, {"message": "it exists"}
            if method == "PUT":
                known = self.objects.get(name)
                if known is None:
                    return 404, {"message": "not found"}
                if body["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
                    return 409, {"message": "the object has been modified"}
            self.writes.append(name)
            return (201 if method == "POST" else 200), self._keep(name, body)

    def _get(self, path: str) -> tuple[int, Any]:
        if path == SLICES:
            items = [one for name, one in self.objects.items() if name.startswith(SLICES)]
            return 200, {"kind": "ResourceSliceList", "items": items}
        if path == "/api/v1/pods":
            claims = [one["metadata"] for name, one in self.objects.items() if "/resourceclaims/" in name]
            return 200, {"kind": "PodList", "items": [pod_of(claim["namespace"], claim["name"]) for claim in claims]}
        found = self.objects.get(path)
        return (200, found) if found is not None else (404, {"message": f"{path} not found"})

    def _put_status(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Writes the status of a claim; refuses devices that are not allocated to it."""
        check(body, "ResourceV1ResourceClaim", "claim")
        known = self.objects.get(path)
        if known is None:
            return 404, {"message": f"{path} not found"}
        if body["metadata"].get("resourceVersion") != known["metadata"].get("resourceVersion"):
            return 409, {"message": "the object has been modified"}
        words = ("driver", "pool", "device", "shareID")
        allocated = [
            tuple(one.get(word) for word in words) for one in known["status"]["allocation"]["devices"]["results"]
        ]
        for one in body["status"].get("devices", ()):
            if tuple(one.get(word) for word in words) not in allocated:
                return 422, {"message": f"{one} is not allocated"}
        self.status_writes.append(path)
        self._version += 1
        metadata = {**known["metadata"], "resourceVersion": str(self._version)}
        self.objects[path] = {**known, "metadata": metadata, "status": body["status"]}
        return 200, self.objects[path]

    def _keep(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        kept = _store(body)
        for device in kept["spec"]["devices"]:
            for word in self.drop:
                device.pop(word, None)
            for taint in device.get("taints", ()):
                taint["timeAdded"] = "2026-01-01T00:00:00Z"
        self._version += 1
        kept["metadata"]["resourceVersion"] = str(self._version)
        self._tell("MODIFIED" if name in self.objects else "ADDED", kept)
        self.objects[name] = kept
        return kept

    def _tell(self, what: str, one: dict[str, Any]) -> None:
        self._events.append({"type": what, "object": one})
        self._lock.notify_all()

    def events(self) -> Iterator[dict[str, Any]]:
        """Events from now on, until `stop`."""
        seen = len(self._events)
        while True:
            with self._lock:
                self._lock.wait_for(lambda seen=seen: len(self._events) > seen or self._ended)
                if self._ended:
                    return
                new, seen = self._events[seen:], len(self._events)
            yield from new

    def remove_slice(self, node: str) -> None:
        """Removes the node's slice, as a kubelet does when it starts."""
        with self._lock:
            self._tell("DELETED", self.objects.pop(f"{SLICES}/{node}-gpu.gpushare.dev"))

    # Objects that a test puts there.

    def add_node(self, name: str) -> None:
        self.objects[f"{NODES}/{name}"] = {"kind": "Node", "metadata": {"name": name, "uid": f"uid-of-{name}"}}

    def slice(self, node: str) -> dict[str, Any]:
        return self.objects[f"{SLICES}/{node}-gpu.gpushare.dev"]

    def add_claim(self, claim: dict[str, Any]) -> None:
        check(claim, "ResourceV1ResourceClaim", "claim")
        with self._lock:
            self.objects[CLAIMS.format(claim["metadata"]["namespace"], claim["metadata"]["name"])] = claim

    def claim(self, claim: dict[str, Any]) -> dict[str, Any]:
        """The claim as it is stored now."""
        return self.objects[CLAIMS.format(claim["metadata"]["namespace"], claim["metadata"]["name"])]

    def remove_claim(self, claim: dict[str, Any]) -> None:
        with self._lock:
            del self.objects[CLAIMS.format(claim["metadata"]["namespace"], claim["metadata"]["name"])]


def claim(
    name: str,
    *results: tuple[str, str, dict[str, str]],
    node: str = "node1",
    uid: str | None = None,
    config: list[dict[str, Any]] | None = None,
    namespace: str = "ns",
) -> dict[str, Any]:
    """An allocated claim. `results`: request, device and consumed capacity of each."""
    uid = uid or f"uid-{name}"
    allocated = [
        {
            "request": request,
            "driver": "gpu.gpushare.dev",
            "pool": node,
            "device": device,
            "shareID": f"{uid}-{index}",
            "consumedCapacity": consumed,
        }
        for index, (request, device, consumed) in enumerate(results)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace, "uid": uid},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.gpushare.dev"}}]}},
        "status": {"allocation": {"devices": {"results": allocated, "config": config or []}}},
    }


def pod_of(namespace: str, claim: str) -> dict[str, Any]:
    """A pod with a claim."""
    spec = {"nodeName": "node1", "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
    return {"metadata": {"namespace": namespace, "name": f"pod-of-{claim}"}, "spec": spec, "status": {}}


def opaque(source: str, requests: list[str] | None = None, **parameters: Any) -> dict[str, Any]:
    """Opaque parameters for this driver, from a claim or from its class (`source`)."""
    ours = {"apiVersion": "gpushare.dev/v1", "kind": "Share", **parameters}
    return {"source": source, "requests": requests or [], "opaque": {"driver": "gpu.gpushare.dev", "parameters": ours}}
