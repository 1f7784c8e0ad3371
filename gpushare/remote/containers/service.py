"""The helper of an attachment that containers use: it answers the hook of each container, listens in the container's
network namespace, and hands each connection of its programs to the client relay.

It ends when the client relay does, however that ended, and removes the CDI spec.
"""

import contextlib
import json
import os
import queue
import selectors
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec

from gpushare.errors import BY_CODE, FailedError, GpushareError, RefusedError, UsageError
from gpushare.processes import helper
from gpushare.remote.containers import messages, netns, spec

_CALLS_MAX = 8
"""Hooks that are served at once: each starts a process that looks at an image."""
_CALL_SECONDS = 10.0
_BODY_MAX = (8 << 20) + (1 << 17)  # hooks/edit.h: GS_CONFIG_MAX, hooks/hook.c: STATE_MAX, and some
_LOOK_SECONDS = 8.0
_CONNECTION = b"c"


class Service:
    """`run` serves until the client relay's end of `channel` is closed."""

    def __init__(self, offer: messages.Offer, channel: socket.socket) -> None:
        """Raises OSError where the hook's socket cannot be made."""
        self._offer, self._channel = offer, channel
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[netns.Identity, socket.socket] = {}
        self._containers: dict[netns.Identity, list[netns.Container]] = {}
        self._lock = threading.Lock()
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._free = threading.Semaphore(_CALLS_MAX)
        self.path = Path(offer.run) / "hook.sock"
        self._hooks = socket.socket(socket.AF_UNIX)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        old = os.umask(0o177)
        try:
            self._hooks.bind(str(self.path))
        finally:
            os.umask(old)
        self._hooks.listen(64)

    def run(self) -> None:
        """Serves."""
        select = self._selector
        select.register(self._channel, selectors.EVENT_READ, None)
        select.register(self._wake, selectors.EVENT_READ, self._woken)
        select.register(self._hooks, selectors.EVENT_READ, self._called)
        while True:
            for key, _ in select.select():
                if key.data is None:
                    return
                key.data()

    def close(self) -> None:
        """Containers that run lose their GPU as when the link is lost, and no further one starts."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.parent.rmdir()
        self._hooks.close()

    def _woken(self) -> None:
        os.eventfd_read(self._wake)
        while not self._done.empty():
            self._done.get()()

    def _later(self, what: Callable[[], None]) -> None:
        """Has it done by the thread of the selector."""
        self._done.put(what)
        os.eventfd_write(self._wake, 1)

    def _called(self) -> None:
        connection, _ = self._hooks.accept()
        connection.settimeout(_CALL_SECONDS)
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, self._free, contextlib.suppress(OSError):
            _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid == 0:
                _Handler(connection, "", _Answer(self.place))  # type: ignore[arg-type]

    def place(self, call: messages.Call) -> messages.Found:
        """Looks at a container and lets it reach the client relay. Raises GpushareError."""
        container = netns.Container(call.state.pid)
        try:
            found = _looked(
                messages.Look(
                    bundle=call.state.bundle,
                    config=bytes(call.config),
                    carrier=self._offer.carrier,
                    libraries=self._offer.libraries,
                )
            )
            self._enter(container)
        except BaseException:
            container.close()
            raise
        return found

    def _enter(self, container: netns.Container) -> None:
        """Takes the container over."""
        if container.namespace == netns.own():
            container.close()  # it uses the client relay's own listener
            return
        with self._lock:  # of two containers of a pod, one listens
            if container.namespace not in self._listeners:
                self._listeners[container.namespace] = container.listen(self._offer.port)
                self._containers[container.namespace] = []
            self._containers[container.namespace].append(container)
            self._later(lambda: self._watch(container))

    def _watch(self, container: netns.Container) -> None:
        listener = self._listeners[container.namespace]
        if listener not in self._selector.get_map():
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        self._selector.register(container.pidfd, selectors.EVENT_READ, lambda: self._ended(container))

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # it has gone meanwhile
        with connection, contextlib.suppress(OSError):  # the client relay has gone: its end is seen next
            socket.send_fds(self._channel, [_CONNECTION], [connection.fileno()])

    def _ended(self, container: netns.Container) -> None:
        """The listener would keep the namespace: it goes with the last container that is in it."""
        self._selector.unregister(container.pidfd)
        with self._lock:
            others = self._containers[container.namespace]
            others.remove(container)
            if not others:
                listener = self._listeners.pop(container.namespace)
                del self._containers[container.namespace]
                self._selector.unregister(listener)
                listener.close()
        container.close()


def _looked(job: messages.Look) -> messages.Found:
    """Lets another process look at the image: it may be slow, and may be killed. Raises GpushareError."""
    try:
        done = subprocess.run(
            helper.command("remote.containers", "look"),
            input=messages.encode(job),
            stdout=subprocess.PIPE,
            cwd="/",
            env=helper.ENVIRONMENT,
            timeout=_LOOK_SECONDS,
            check=False,
        )
        found: messages.Found = messages.decode(done.stdout, messages.Found)
    except subprocess.TimeoutExpired:
        raise FailedError(f"the bundle {job.bundle} took longer than {_LOOK_SECONDS:.0f} s to read") from None
    except (OSError, msgspec.DecodeError) as error:
        raise FailedError(f"the process that reads the bundle {job.bundle} failed: {error}") from None
    if found.error is not None:
        code, line = found.error
        raise BY_CODE[code](line)
    return found


class _Answer:
    """What the handler knows of the service."""

    def __init__(self, place: Callable[[messages.Call], messages.Found]) -> None:
        self.place = place


class _Handler(BaseHTTPRequestHandler):
    """One request of gpushare-hook, in HTTP/1.0."""

    def do_POST(self) -> None:
        """See BaseHTTPRequestHandler."""
        try:
            answer, status = self._placed(), 200
        except GpushareError as error:
            answer = {"error": {"code": error.code, "message": str(error)}}
            status = error.http_status
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _placed(self) -> dict[str, object]:
        size = self.headers.get("Content-Length", "")
        if not self.path.startswith("/v1/oci/place?") or not size.isdecimal() or int(size) > _BODY_MAX:
            raise UsageError("this socket serves the hook of containers alone")
        try:
            call = msgspec.json.decode(self.rfile.read(int(size)), type=messages.Call)
        except msgspec.DecodeError as error:
            raise UsageError(f"what the hook says of the container cannot be read: {error}") from None
        if not call.state.bundle.startswith("/"):
            raise UsageError("the OCI state has no bundle: is this the createRuntime hook?")
        assert isinstance(self.server, _Answer)
        found = self.server.place(call)
        return {"root": found.root, "mounts": msgspec.to_builtins(found.mounts), "hidden": []}

    def log_message(self, format: str, *_: object) -> None:
        """Says nothing: what goes wrong is answered."""


def main(channel: socket.socket) -> None:
    """The helper's whole life. Answers the offer with one byte, or with the reason why it cannot be made."""
    offer: messages.Offer = messages.decode(channel.recv(messages.MESSAGE_MAX), messages.Offer)
    try:
        service = _begun(offer, channel)
    except (OSError, RefusedError) as error:
        code = error.code if isinstance(error, GpushareError) else FailedError.code
        channel.send(msgspec.json.encode((code, f"no CDI device can be made: {error}")))
        return
    try:
        channel.send(messages.BEGUN)
        service.run()
    finally:
        with spec.locked(Path(offer.cdi)):
            spec.path(Path(offer.cdi), offer.name).unlink(missing_ok=True)
            service.close()


def _begun(offer: messages.Offer, channel: socket.socket) -> Service:
    directory = Path(offer.cdi)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with spec.locked(directory):
        spec.clean(directory, offer.name)
        service = Service(offer, channel)
        try:
            spec.write(directory, offer.name, service.path, offer.env)
        except OSError:
            service.close()
            raise
    return service
