"""The plugin itself: answers the engine and stays connected.

The engine sends one request at a time and waits for the answer, so one thread is enough. It drops a plugin that does
not answer in time and creates the container without it: a timely refusal is better than a late answer.
"""

import contextlib
import logging
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpushare.adapters.common import Changes
from gpushare.adapters.messages import EMPTY, Table
from gpushare.adapters.nri import adjustment, messages
from gpushare.adapters.nri.connection import REQUEST, RESPONSE, TO_ENGINE, TO_PLUGIN, Connection, Incoming
from gpushare.api.engines import WAIT_SECONDS
from gpushare.client import AWAY_SECONDS
from gpushare.errors import FailedError, GpushareError, UnreachableError
from gpushare.inject.oci import GRANT

if TYPE_CHECKING:
    from gpushare.client import Client

log = logging.getLogger(__name__)

Json = dict[str, Any]

NAME, INDEX = "gpushare", "10"  # plugins are asked in the order of their index
_EVENTS = 1 << messages.CREATE_EVENT - 1 | 1 << messages.REMOVE_EVENT - 1
_UNKNOWN, _UNIMPLEMENTED = 2, 12  # gRPC status codes

_REQUEST_SECONDS = 2.0  # time limit of engines that do not report theirs
_PART = 0.75  # part of the engine's time limit that the daemon may use
_AWAY = 0.8  # part of that for which a daemon that is away, such as one that is restarted, is waited for
_WAIT = 0.5  # part of that for which the daemon may wait for memory that is moved away for the container
_RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)  # between attempts to connect; the last one for all further ones
# Engines that reject our adjustments, and what to do instead.
_UNFIT = {
    "docker": "Docker's NRI takes neither hooks nor devices, so that no share can be given by it: name a grant's CDI "
    "device, or ask by annotations under the runtime that `gpushare runtime configure --engine docker` adds",
}
_UNFIT_SECONDS = 60.0  # until such an engine's socket is tried again


class Plugin:
    """One plugin for the engine at a socket."""

    def __init__(self, client: "Client", engine: Path) -> None:
        self._client, self._engine = client, engine
        # Time limit for the daemon's answer.
        self._edit_seconds = _REQUEST_SECONDS * _PART
        self._configured = self._unfit = False
        # Grants made for containers that are not removed yet, by container id.
        self._made: dict[str, str] = {}
        self._listed: set[str] = set()
        self._changes = Changes(log)

    def run(self) -> None:
        """Serves the engine at the socket, and reconnects when it restarts; never returns."""
        wait = iter(_RETRY_SECONDS)
        while True:
            try:
                connection = _connect(self._engine)
            except (OSError, GpushareError) as error:
                self._changes.log(f"no engine at {self._engine}: {_why(error)}")
            else:
                if self._serve(connection):
                    wait = iter(_RETRY_SECONDS)
            time.sleep(_UNFIT_SECONDS if self._unfit else next(wait, _RETRY_SECONDS[-1]))

    def _serve(self, connection: Connection) -> bool:
        """Serves until the connection ends; returns whether the engine had configured this plugin."""
        self._configured = self._unfit = False
        try:
            offer = messages.REGISTER.encode({"name": NAME, "index": INDEX})
            call = {"service": messages.RUNTIME, "method": "RegisterPlugin", "payload": offer}
            connection.send(TO_ENGINE, 1, REQUEST, messages.CALL.encode(call))
            while (message := connection.receive()) is not None:
                if message.connection == TO_PLUGIN and message.kind == REQUEST:
                    self._answer(connection, message)
                elif message.connection == TO_ENGINE and (reason := _refusal(message.payload)):
                    raise FailedError(f"it refused the plugin: {reason}")
            self._changes.log(f"the engine at {self._engine} ended the connection")
        except (OSError, ValueError, GpushareError) as error:
            self._changes.log(f"the engine at {self._engine}: {_why(error)}")
        finally:
            connection.close()
        return self._configured

    def _answer(self, connection: Connection, message: Incoming) -> None:
        try:
            call = messages.CALL.decode(message.payload)
            out = self._called(connection, call["method"], call["payload"])
        except (ValueError, KeyError, TypeError) as error:
            out = _refused(_UNKNOWN, f"gpushare: what the engine says of the container cannot be read: {error}")
        except GpushareError as error:
            log.info("refused: %s", error)
            out = _refused(_UNKNOWN, f"gpushare: {error}")
        connection.send(TO_PLUGIN, message.stream, RESPONSE, messages.ANSWER.encode(out))

    def _called(self, connection: Connection, method: str, payload: bytes) -> Json:
        if method not in _METHODS:
            return _refused(_UNIMPLEMENTED, f"the plugin {NAME} has no {method}")
        request, answer, handler = _METHODS[method]
        return {"payload": answer.encode(handler(self, connection, request.decode(payload)))}

    def _configure(self, _connection: Connection, given: Json) -> Json:
        engine = given["engine"]
        self._unfit = engine in _UNFIT
        if self._unfit:
            raise FailedError(_UNFIT[engine])
        self._edit_seconds = (given["timeout_ms"] / 1000 or _REQUEST_SECONDS) * _PART
        self._configured = True
        self._changes.log(f"registered with {engine} {given['version']} at {self._engine}")
        return {"events": _EVENTS}

    def _synchronize(self, _connection: Connection, given: Json) -> Json:
        """Takes the list of existing containers, in one or more messages, and forgets the grants of all others."""
        self._listed |= {container["id"] for container in given["containers"]}
        if not given["more"]:
            self._made = {name: grant for name, grant in self._made.items() if name in self._listed}
            self._listed = set()
        return {"more": given["more"]}

    def _create(self, connection: Connection, given: Json) -> Json:
        asked = adjustment.request(messages.POD.decode(given["pod"]), messages.NAMED.decode(given["container"]))
        if not asked:
            return {}
        container = messages.CONTAINER.decode(given["container"])
        _still_there(connection)
        before = adjustment.config(container, asked)
        client = self._client.patient(min(self._edit_seconds * _AWAY, AWAY_SECONDS))
        asked_for = {"config": before, "wait_seconds": min(self._edit_seconds * _WAIT, WAIT_SECONDS)}
        with _at_most(self._edit_seconds):
            answered = client.call("POST", "/v1/oci/edit", asked_for, timeout=self._edit_seconds)
        grant = answered["grant"]
        if grant is None:
            return {}
        name = container["id"]
        if GRANT not in asked:
            self._made[name] = grant
        try:
            _still_there(connection)
            edits = adjustment.adjustment(before, answered["config"])
        except BaseException:
            self._give_back(name)
            raise
        log.info("container %s has grant %s", name, grant)
        return {"adjust": edits}

    def _give_back(self, container: str) -> None:
        """Ends the grant that was made for a container, unless that has run: then it ends with its processes."""
        grant = self._made.pop(container, None)
        if grant is None:
            return
        try:
            if self._client.grant(grant)["phase"] in ("reserved", "bound"):
                self._client.release(grant)
        except GpushareError as error:
            log.info("grant %s runs out by itself: %s", grant, error)

    def _removed(self, _connection: Connection, given: Json) -> Json:
        self._give_back(messages.NAMED.decode(given["container"])["id"])
        return {}

    def _state_change(self, connection: Connection, given: Json) -> Json:
        """Handles events that have no call of their own in some engines."""
        return self._removed(connection, given) if given["event"] == messages.REMOVE_EVENT else {}

    def _nothing(self, _connection: Connection, _given: Json) -> Json:
        return {}


_METHODS: dict[str, tuple[Table, Table, Callable[[Plugin, Connection, Json], Json]]] = {
    "Configure": (messages.CONFIGURE, messages.CONFIGURED, Plugin._configure),
    "Synchronize": (messages.SYNCHRONIZE, messages.SYNCHRONIZED, Plugin._synchronize),
    "CreateContainer": (messages.CREATE, messages.CREATED, Plugin._create),
    "RemoveContainer": (messages.REMOVE, EMPTY, Plugin._removed),
    "StateChange": (messages.CHANGE, EMPTY, Plugin._state_change),
    "Shutdown": (EMPTY, EMPTY, Plugin._nothing),
}
"""Request, answer and handler of each call."""


def _refused(code: int, line: str) -> Json:
    return {"status": {"code": code, "message": line}}


def _refusal(answer: bytes) -> str | None:
    """Returns why a request failed, from its answer; None if it succeeded. Raises ValueError."""
    status = messages.ANSWER.decode(answer)["status"]
    return (status["message"] or "without a reason") if status and status["code"] else None


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises UnreachableError after that time in total: the client's own timeout applies to each I/O step."""

    def end(_signal: int, _frame: object) -> None:
        raise UnreachableError(f"the daemon did not answer within {seconds:.1f} s: try again")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _still_there(connection: Connection) -> None:
    """Raises ConnectionError if the engine has dropped this plugin."""
    if connection.ended:
        raise ConnectionResetError("it did not wait for the answer")


def _connect(path: Path) -> Connection:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(os.fspath(path))
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _pid, uid, _gid = struct.unpack("3i", credentials)
        if uid not in (0, os.geteuid()):
            raise UnreachableError(f"it belongs to uid {uid}, neither root nor you: not talking to it")  # noqa: TRY301
    except BaseException:
        connected.close()
        raise
    return Connection(connected)


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
