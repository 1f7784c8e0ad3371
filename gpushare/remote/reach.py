"""A node's daemon, reached from this machine: its socket, forwarded by ssh where it is on another one."""

import contextlib
import functools
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpushare.client import Client
from gpushare.errors import GpushareError, UnreachableError
from gpushare.processes import ssh
from gpushare.processes.helper import end_with_parent
from gpushare.remote.nodes import Target

FORWARD_SECONDS = 15.0
"""Maximum time for ssh to connect."""
_READ = 4096
_RESOLVE_SECONDS = 5.0
_HERE = "127.0.0.1"


class Node:
    """A node that can be asked. `client`: of its daemon."""

    def __init__(self, target: Target, socket: Path) -> None:
        self.target = target
        self.client = Client(socket)

    @property
    def name(self) -> str:
        """As its user calls it."""
        return self.target.name

    def relay_address(self, host: str, port: int) -> tuple[str, int]:
        """Returns where its relay is reached from here. `host`, `port`: as the node says; no host: where ssh goes."""
        if self.target.relay is not None:
            return self.target.relay
        return host or (_resolved(self.target.host) if self.target.host else _HERE), port


Reach = Callable[[], Node | UnreachableError]


@contextlib.contextmanager
def opened(target: Target, seconds: float = FORWARD_SECONDS) -> Iterator[Node]:
    """Yields the node, whose daemon answers; one on another machine can be asked as long as the context lasts.
    `seconds`: for ssh to connect. Raises UnreachableError."""
    with opened_all([target], seconds) as (reach,):
        found = reach()
        if isinstance(found, UnreachableError):
            raise found
        yield found


@contextlib.contextmanager
def opened_all(targets: Sequence[Target], seconds: float) -> Iterator[list[Reach]]:
    """As `opened`, for several nodes at once. Yields, for each, what waits for it, in any thread, and returns the node
    or why it cannot be asked."""
    with contextlib.ExitStack() as stack:
        # All from this thread: where the one that started it ends, ssh ends too.
        deadline = time.monotonic() + seconds
        forwards = [_started(stack, target) for target in targets]
        pairs = zip(targets, forwards, strict=True)
        yield [functools.partial(_reached, target, forward, deadline) for target, forward in pairs]


def _started(stack: contextlib.ExitStack, target: Target) -> "_Forward | UnreachableError | None":
    if not target.host:
        return None
    try:
        return stack.enter_context(_Forward(target))
    except UnreachableError as error:
        return error


def _reached(target: Target, forward: "_Forward | UnreachableError | None", deadline: float) -> Node | UnreachableError:
    if isinstance(forward, UnreachableError):
        return forward
    try:
        node = Node(target, target.socket if forward is None else forward.ready(deadline))
        node.client.call("GET", "/v1/version", timeout=max(0.1, deadline - time.monotonic()))
    except UnreachableError as error:
        if forward is None or forward.failed:
            return error
        return UnreachableError(
            f"no daemon answers at {target.socket} on {target.host} to the user that ssh is there: is it running, and"
            f" may that user ask it? (`ssh {target.host} gpushare ps`)"
        )
    except GpushareError as error:
        return UnreachableError(f"{target.name}: {error}")
    return node


class _Forward:
    """ssh, which forwards the node's socket while it runs. `failed`: it did not get that far."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.failed = True
        self._directory = tempfile.TemporaryDirectory(prefix="gpushare-", ignore_cleanup_errors=True)
        self._socket = Path(self._directory.name) / "node.sock"
        try:
            self._process = subprocess.Popen(
                ssh.forwarding(self._socket, target.socket, target.host, tells=True),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a terminal's Ctrl-C is for the command, which may go on
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            self._directory.cleanup()
            raise UnreachableError(f"ssh cannot be started: {error.strerror}: install it (openssh-client)") from None

    def __enter__(self) -> "_Forward":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._directory.cleanup()

    def ready(self, deadline: float) -> Path:
        """Returns the socket, when ssh says that it is there. Raises UnreachableError."""
        process, target = self._process, self._target
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.fileno(), process.stderr.fileno()
        told, said, waits = b"", b"", [out, err]
        while ssh.READY not in told:
            ready = select.select(waits, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not ready:
                raise UnreachableError(f"{target.name} does not answer: ssh to {target.host} is not connected yet")
            for one in ready:
                part = os.read(one, _READ)
                told, said = (told + part, said) if one == out else (told, (said + part)[-_READ:])
                if not part:
                    waits.remove(one)
            if not waits:
                why = ssh.last_line(said) or f"status {process.wait()}"
                raise UnreachableError(f"{target.name} cannot be reached by ssh: {why} (try `ssh {target.host}`)")
        self.failed = False
        return self._socket


def _resolved(host: str) -> str:
    """The name or address to which ssh connects for a host, as its configuration says."""
    bare = host.rpartition("@")[2]
    try:
        found = subprocess.run(
            ssh.resolving(host), capture_output=True, stdin=subprocess.DEVNULL, timeout=_RESOLVE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return bare
    for line in found.stdout.decode(errors="replace").splitlines():
        key, _, value = line.partition(" ")
        if key == "hostname" and value:
            return value
    return bare
