"""The plugin's process, started by Nomad: makes the handshake, answers calls, and ends grants.

Its only state is when each task was last seen. Grants are found by their keys, so that Nomad may kill and restart it.
"""

import logging
import os
import pwd
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpushare import __version__
from gpushare.adapters import common
from gpushare.adapters.deviceplugin import slots
from gpushare.adapters.deviceplugin.slots import Sizes
from gpushare.adapters.messages import EMPTY
from gpushare.adapters.nomad import messages, tasks
from gpushare.adapters.nomad.tasks import KEYS, Config, Json
from gpushare.adapters.nomad.usage import Usage
from gpushare.adapters.rpc import Method, Server
from gpushare.client import AWAY_SECONDS, Client
from gpushare.errors import FailedError, GpushareError, UsageError
from gpushare.paths import GRANT_DIR_ENV

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Interval between scans for the tasks' processes."""
WAIT_SECONDS = 20.0
"""Maximum wait while room is made for a task. Nomad sets no limit, and does not ask again: it fails the task's
allocation, which the job's `reschedule` may place again."""
STATS_SECONDS = 5.0
WATCH_SECONDS = 60.0
"""Timeout of a watch, after which the daemon of the configuration is watched, which may be another one by then."""
THREADS = 64
"""Each stream occupies one throughout, and each reservation while it waits."""

Waits = Callable[[], bool]


class Plugin:
    """Answers Nomad, from several threads. `socket`: the daemon's; None: the one in the plugin's configuration."""

    def __init__(self, socket: str | None) -> None:
        self._socket = socket
        self.config = Config()
        self._daemon = Client(socket)
        self._one = threading.Lock()
        self._watch, self._usage, self._asked = tasks.Watch(), Usage(), slots.Asked()
        self.ended = threading.Event()
        self._changed = threading.Condition()

    @property
    def _sizes(self) -> Sizes:
        return Sizes(self.config.slots)

    def set_config(self, request: Json, _waits: Waits) -> Json:
        """SetConfig. Raises UsageError."""
        config = tasks.config(request["msgpack"])
        _user(config.user)
        with self._one:
            self.config, self._daemon = config, Client(self._socket or config.socket or None)
        return {}

    def fingerprint(self, _request: Json, waits: Waits) -> Iterator[Json]:
        """Fingerprint: yields all devices at first and whenever one changes."""
        shown = None
        while waits() and not self.ended.is_set():
            try:
                now = tasks.fingerprint(self._daemon.devices(), self._daemon.grants(), self._sizes)
            except GpushareError as error:
                log.warning("devices stay as they were: %s", error)
                now = shown
            if now != shown:
                shown = now
                yield now
            self._wait_for_change()

    def _wait_for_change(self) -> None:
        """Waits until something on the node may have changed, at most 1 s: Nomad may have gone meanwhile."""
        with self._changed:
            self._changed.wait(1.0)

    def reserve(self, request: Json, waits: Waits) -> Json:
        """Reserve: makes a grant for the slots, and ends grants that have any of them: their tasks have ended."""
        ids = request["ids"]
        with self._one:
            config, daemon = self.config, self._daemon.patient(AWAY_SECONDS)
        sizes = Sizes(config.slots)
        device, those = slots.chosen(ids, daemon.devices(), sizes)
        uid, gid = _user(config.user)
        memory, share = sizes.of(device, len(those))
        with self._one:
            there = daemon.grants(key_prefix=slots.key_prefix(device["id"], KEYS))
            for stale in slots.overlapping(there, ids, KEYS):
                log.info("grant %s: its slots are given to another task", stale)
                common.release(daemon, stale)
            mine = self._asked.begin(ids)
        try:
            # Without the lock: other calls continue while this one waits for room that is made.
            grant = daemon.create(
                wait_seconds=WAIT_SECONDS,
                memory=memory,
                time=share,
                device=device["id"],
                tenant=config.tenant,
                key=slots.key(device["id"], those, secrets.token_hex(4), KEYS),
                keep=True,
            )
            try:
                with self._one:
                    self._asked.check(mine, waits=waits())
                env = daemon.bind(grant["id"], "process", uid=uid, gid=gid)["env"]
            except GpushareError:
                common.release(daemon, grant["id"])
                raise
        finally:
            with self._one:
                self._asked.end(mine)
        log.info("grant %s: %d slots of %s", grant["id"], len(those), device["id"])
        return {"container": {"env": env, "mounts": _mounts(env), "devices": _nodes(device)}}

    def stats(self, request: Json, waits: Waits) -> Iterator[Json]:
        """Stats: yields the slots' usage at the requested interval."""
        asked = request["interval"] or {"seconds": 0, "nanos": 0}
        seconds = asked["seconds"] + asked["nanos"] / 1e9 or STATS_SECONDS
        while waits() and not self.ended.is_set():
            try:
                now = tasks.stats(self._daemon.devices(), self._daemon.grants(), time.time_ns())
            except GpushareError as error:
                log.warning("statistics: %s", error)
            else:
                yield now
            until = time.monotonic() + seconds
            while waits() and not self.ended.is_set() and (left := until - time.monotonic()) > 0:
                self.ended.wait(min(left, 1.0))

    def release_over(self) -> None:
        """Ends the grants whose tasks have ended."""
        with self._one:
            ours = [grant for grant in self._daemon.grants() if slots.is_slots(grant, KEYS)]
            used = self._usage.used({grant["id"]: grant["dir"] for grant in ours})
            for one in self._watch.look(ours, used, self.config, time.monotonic_ns()):
                log.info("grant %s: its task is over", one)
                common.release(self._daemon, one)

    def watch(self) -> None:
        """Wakes `fingerprint` at changes, until the end."""
        common.watch(lambda: self._daemon, self.ended, self._wake, timeout=WATCH_SECONDS)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _user(name: str) -> tuple[int, int]:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise UsageError(f"user {name!r} in the configuration of plugin gpushare is unknown on this node") from None
    return found.pw_uid, found.pw_gid


def _mounts(env: dict[str, str]) -> list[Json]:
    """Returns mounts for tasks with a file system of their own, at the same paths as on the host. The grant's directory
    is mounted writable: as for a plain process, its file modes decide what the task can write."""
    libraries = {str(Path(file).parent) for file in env.get("LD_PRELOAD", "").split(":") if file}
    libraries |= set(filter(None, env.get("LD_LIBRARY_PATH", "").split(":")))
    own = env[GRANT_DIR_ENV]
    return [
        {"task": own, "host": own},
        *({"task": path, "host": path, "read_only": True} for path in sorted(libraries)),
    ]


def _nodes(device: Json) -> list[Json]:
    if device["backend"] != "native":
        return []
    names = (f"/dev/nvidia{device['minor']}", "/dev/nvidiactl", "/dev/nvidia-uvm")
    return [{"task": name, "host": name, "permissions": "rw"} for name in names]


def services(plugin: Plugin) -> dict[str, dict[str, Method]]:
    """Returns all services that Nomad and go-plugin call."""

    def info(_request: Json, _waits: Waits) -> Json:
        return {
            "type": messages.IS_DEVICE_PLUGIN,
            "api_versions": messages.API_VERSIONS,
            "version": __version__,
            "name": "gpushare",
        }

    def schema(_request: Json, _waits: Waits) -> Json:
        fields = {name: {"attribute": {"name": name, "type": kind}} for name, kind in tasks.SCHEMA.items()}
        return {"spec": {"object": {"attributes": fields}}}

    def health(_request: Json, _waits: Waits) -> Json:
        return {"status": messages.SERVING}

    def shutdown(_request: Json, _waits: Waits) -> Json:
        plugin.ended.set()
        return {}

    def silent(_request: Json, waits: Waits) -> Iterator[Json]:
        """A stream without messages: there is no output besides the log, and no connection to broker."""
        while waits() and not plugin.ended.is_set():
            plugin.ended.wait(1.0)
        yield from ()

    return {
        messages.HEALTH: {"Check": Method(messages.HEALTH_CHECK, messages.HEALTH_STATUS, health)},
        messages.CONTROLLER: {"Shutdown": Method(EMPTY, EMPTY, shutdown)},
        messages.STDIO: {"StreamStdio": Method(EMPTY, messages.OUTPUT, silent, stream=True)},
        messages.BROKER: {
            "StartStream": Method(messages.CONNECTION, messages.CONNECTION, silent, stream=True, listens=True)
        },
        messages.BASE: {
            "PluginInfo": Method(EMPTY, messages.INFO, info),
            "ConfigSchema": Method(EMPTY, messages.SCHEMA, schema),
            "SetConfig": Method(messages.CONFIG, EMPTY, plugin.set_config),
        },
        messages.DEVICE: {
            "Fingerprint": Method(EMPTY, messages.FINGERPRINT, plugin.fingerprint, stream=True),
            "Reserve": Method(messages.RESERVE, messages.RESERVED, plugin.reserve),
            "Stats": Method(messages.INTERVAL, messages.STATS, plugin.stats, stream=True),
        },
    }


def handshake(environment: dict[str, str]) -> int:
    """Returns the protocol version to use. Raises UsageError if Nomad did not start this process."""
    name, value = messages.COOKIE
    if environment.get(name) != value:
        raise UsageError("this is for Nomad to start: put a script that runs it into the agent's plugin_dir")
    asked = environment.get("PLUGIN_PROTOCOL_VERSIONS", "")
    offered = [int(one) for one in asked.split(",") if one.strip().isdecimal()]
    return next((one for one in messages.VERSIONS if one in offered), messages.VERSIONS[0])


def serve(plugin: Plugin, write: Callable[[str], Any]) -> None:
    """Serves until Nomad calls Shutdown. `write`: passes Nomad the handshake line that it waits for. Raises UsageError,
    and FailedError when Nomad's process has ended."""
    version = handshake(dict(os.environ))
    parent = os.getppid()
    with tempfile.TemporaryDirectory(prefix="gpushare-nomad-") as directory:
        server = Server(Path(directory) / "plugin.sock", services(plugin), threads=THREADS)
        write(f"{messages.CORE_VERSION}|{version}|unix|{server.path}|grpc|\n")
        threading.Thread(target=plugin.watch, name="watch", daemon=True).start()
        while not plugin.ended.wait(LOOK_SECONDS):
            if os.getppid() != parent:
                raise FailedError("Nomad's agent is gone")
            try:
                plugin.release_over()
            except GpushareError as error:
                log.warning("tasks: %s", error)
        server.stop(2.0)
