"""Pods through containerd's CRI, without a kubelet: containerd's configuration, an image, and the calls."""

import contextlib
import hashlib
import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import grpc
from engines.protobuf import parse, text
from machine import cgroups
from run.waiting import until

_NUMBERS = itertools.count()
IMAGE = "docker.io/library/gpushare-engines:1"

# An administrator's own settings, for a machine without systemd, network and CAP_SYS_RESOURCE.
COMMON = """\
root = "{work}/root"
state = "{work}/state"
disabled_plugins = [{off}"io.containerd.internal.v1.opt"] # not here
[grpc]
  address = "{work}/sock"
[ttrpc]
  address = "{work}/ttrpc"
"""
BEFORE_2 = """\
version = 2
{common}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  restrict_oom_score_adj = true
  {cdi}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
SINCE_2 = """\
version = 3
{common}
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "native"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{image}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  {cdi}
"""
NRI = """\
[plugins."io.containerd.nri.v1.nri"]
  socket_path = "{work}/nri.sock"
  plugin_path = "{work}/plugins"
  plugin_request_timeout = "1s"
  plugin_config_path = "{work}/plugins"
"""


def message(**fields: object) -> bytes:
    """A protobuf message; `_3=value` is its field 3: text, a message, a number, a map, or a list of these."""
    out = b""
    for name, value in fields.items():
        number = int(name[1:])
        if isinstance(value, dict):
            value = [message(_1=key, _2=text) for key, text in value.items()]
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, int):
                out += varint(number << 3) + varint(one)
            else:
                raw = one.encode() if isinstance(one, str) else one
                out += varint(number << 3 | 2) + varint(len(raw)) + raw
    return out


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def image_archive(rootfs: Path, out: Path, env: list[str] | None = None) -> None:
    """An image of one layer, as `ctr images import` takes it."""
    layer, blobs = rootfs.read_bytes(), {}

    def blob(kind: str, raw: bytes) -> dict:
        digest = hashlib.sha256(raw).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = raw
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(raw)}

    layers = [blob("layer.v1.tar", layer)]
    config = {
        "architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sleep", "1000"], "Env": env or []},
        "rootfs": {"type": "layers", "diff_ids": [layers[0]["digest"]]},
    }  # fmt: skip
    manifest = {"schemaVersion": 2, "config": blob("config.v1+json", json.dumps(config).encode()), "layers": layers}
    entry = blob("manifest.v1+json", json.dumps(manifest).encode())
    entry["annotations"] = {"io.containerd.image.name": IMAGE}
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    with tarfile.open(out, "w") as tar:
        for name, raw in blobs.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))


def configuration(work: Path, since_2: bool, cdi: str = "", nri: bool = False) -> str:
    """containerd's configuration. `work`: a directory for its files, its socket at `work/sock`; `cdi`: a setting of the
    CRI plugin; `nri`: leaves NRI available, at `work/nri.sock`."""
    common = COMMON.format(work=work, off="" if nri else '"io.containerd.nri.v1.nri", ')
    text = (SINCE_2 if since_2 else BEFORE_2).format(common=common, image=IMAGE, cdi=cdi)
    return text + NRI.format(work=work) if nri else text


def empty_dir(where: str, directory: Path) -> dict[str, object]:
    """Fields of the ContainerConfig of a container with a new emptyDir volume at a path. `directory`: gets it."""
    volume = directory / f"volume-{next(_NUMBERS)}"
    volume.mkdir()
    volume.chmod(0o777)
    return {"_7": [message(_1=where, _2=str(volume))]}


class Cri:
    """A client of containerd's CRI, like the kubelet."""

    def __init__(self, channel: grpc.Channel, logs: Path) -> None:
        self.channel, self.logs = channel, logs
        until(self._is_up, "CRI is served, some time after the engine's own calls", 60)

    def _is_up(self) -> bool:
        try:
            self.call("ListPodSandbox")
        except grpc.RpcError as error:
            return "not initialized" not in str(error)
        return True

    def call(self, name: str, **fields: object) -> bytes:
        same = dict.fromkeys(("request_serializer", "response_deserializer"))
        return self.channel.unary_unary(f"/runtime.v1.RuntimeService/{name}", **same)(message(**fields), timeout=60)

    def identity(self, answer: bytes) -> str:
        return answer[2 : 2 + answer[1]].decode()

    def start_pod(self, handler: str, annotations: dict[str, str], privileged: bool = False) -> tuple[str, bytes]:
        node = message(_1=2, _2=1)  # the node's network, its own PID namespace
        config = message(
            _1=message(_1=f"pod-{next(_NUMBERS)}", _2="uid", _3="default"),
            _3=str(self.logs),
            _7=annotations,
            _8=message(_1=f"/{cgroups.NAME}", _2=message(_1=node, _6=int(privileged))),
        )
        return self.identity(self.call("RunPodSandbox", _1=config, _2=handler)), config

    def end_pod(self, pod: tuple[str, bytes]) -> None:
        self.call("StopPodSandbox", _1=pod[0])
        self.call("RemovePodSandbox", _1=pod[0])

    @contextlib.contextmanager
    def pod(self, handler: str, annotations: dict[str, str], privileged: bool = False) -> Iterator[tuple[str, bytes]]:
        pod = self.start_pod(handler, annotations, privileged)
        try:
            yield pod
        finally:
            self.end_pod(pod)

    def start(self, pod: tuple[str, bytes], *command: str, privileged: bool = False, **fields: object) -> str:
        """Starts a container; returns its id. `fields`: more of the ContainerConfig."""
        node = message(_1=2, _2=1)
        config = message(
            _1=message(_1="container"), _2=message(_1=IMAGE), _3=list(command), _11=f"{pod[0]}.log",
            _15=message(_2=message(_2=int(privileged), _3=node)), **fields,
        )  # fmt: skip
        container = self.identity(self.call("CreateContainer", _1=pod[0], _2=config, _3=pod[1]))
        self.call("StartContainer", _1=container)
        return container

    def execute(self, container: str, *command: str) -> str:
        """The output of a command in a running container."""
        answer = self.call("ExecSync", _1=container, _2=list(command), _3=30)
        return text(parse(answer), 1)

    def run(self, pod: tuple[str, bytes], *command: str, privileged: bool = False, **fields: object) -> str:
        """The output of the pod's only container, once it has ended. `fields`: as for `start`."""
        container = self.start(pod, *command, privileged=privileged, **fields)
        living = message(_2=message(_1=1), _3=pod[0])  # in the state "running"
        until(lambda: not self.call("ListContainers", _1=living), "the container ends", 60)
        self.call("RemoveContainer", _1=container)
        log = self.logs / f"{pod[0]}.log"
        lines = log.read_text().splitlines()
        log.unlink()
        return "\n".join(line.split(" ", 3)[3] for line in lines)
