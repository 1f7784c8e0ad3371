"""Messages between the daemon and its sandbox helper, over a socket pair that preserves message boundaries.

A server starts in two steps, since the grant has to be bound to it before its namespaces are made: mounts of the grant
do not reach a namespace that is older than they are. `Start` makes its supervisor, which waits; the daemon binds the
grant to `Started.pid`; `Go` lets it make the namespaces and start the server; `Ready` or `Failed` follows. From then on
the supervisor belongs to its grant and to the relay's end of its connector, and outlives this helper and the daemon.
"""

import msgspec
from msgspec import Struct

MESSAGE_MAX = 64 << 10


class Start(Struct, array_like=True, tag=1):
    """daemon: make a supervisor. `number`: the daemon's, never used again. The descriptor: the supervisor's end of the
    connector (gpushare/sandbox/connector.py)."""

    number: int


class Go(Struct, array_like=True, tag=2):
    """daemon: the grant is bound to the supervisor. `grant_dir`: self/ of the grant, as its processes see it.
    `argv`, `env`: of the server, all of its environment, with what a plain process of the grant gets
    (gpushare/inject/process.py). `port`: where it has to listen, on 127.0.0.1 of its own network namespace, within
    `seconds`. `uid`: the server's own, also its gid, of no other process on the node. `host_memory`: bytes of its
    memory cgroup; `pids`: most processes and threads. `devices`: paths of the grant's device nodes. `node_socket`: the
    daemon's."""

    number: int
    grant_dir: str
    argv: list[str]
    env: dict[str, str]
    port: int
    seconds: float
    uid: int
    host_memory: int
    pids: int
    devices: list[str]
    node_socket: str


class Cancel(Struct, array_like=True, tag=3):
    """daemon: end a supervisor that is not ready yet, with what it started; `Failed` follows. One that is ready is left
    alone: closing the relay's end of its connector ends it."""

    number: int


class Started(Struct, array_like=True, tag=4):
    """sandbox: the supervisor waits for `Go`."""

    number: int
    pid: int


class Ready(Struct, array_like=True, tag=5):
    """sandbox: the server listens."""

    number: int


class Failed(Struct, array_like=True, tag=6):
    """sandbox: it did not start; nothing of it is left. `reason`: for people, after "the
    carrier's server does not start: "."""

    number: int
    reason: str


FromDaemon = Start | Go | Cancel
FromSandbox = Started | Ready | Failed

encode = msgspec.msgpack.encode
from_daemon = msgspec.msgpack.Decoder(FromDaemon).decode
from_sandbox = msgspec.msgpack.Decoder(FromSandbox).decode
