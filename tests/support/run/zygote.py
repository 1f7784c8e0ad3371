"""Python processes without the start-up cost of Python: forked from a process that has imported what they need.

`fork` creates a process with the requested environment that has the CUDA bindings, `fork_daemon` and `fork_command` one
that has what the daemon and the command line import. Variables that the dynamic loader reads (LD_PRELOAD and similar)
cannot change after the start of a process, so there is one zygote for each distinct set of them. It lives as long as
the test session. The bindings and pynvml load a driver library only on first use, and a zygote never uses them, so each
forked process loads and initialises the driver itself. None of what it imports starts a thread or opens a file.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

PROGRAM = Path(__file__)
MESSAGE_BYTES = 1 << 17
WORKER = "from run import worker; worker.main()"
COMMAND = "from gpushare.cli.main import entry; entry()"
IMPORTED = {
    "cuda": ("pynvml", "run.worker"),
    # Without the daemon's own modules: tests change their constants before other modules import these by name.
    "gpushare": (
        *("aiohttp.web", "csv", "http.client", "sqlite3", "tomlkit"),
        *("gpushare.cli.main", "gpushare.cli.grants.run", "gpushare.cli.look.show", "gpushare.client.transport"),
        *("gpushare.api.types", "gpushare.api.usage", "gpushare.api.why", "gpushare.binding.arbiter"),
        *("gpushare.inject.cdi", "gpushare.inject.oci", "gpushare.inject.pod", "gpushare.node.simulated"),
        *("gpushare.reader",),
        *(
            "gpushare.policy.grants.admission",
            "gpushare.policy.grants.selector",
            "gpushare.policy.quota.shares",
            "gpushare.tenants.file",
        ),
    ),
    "daemon": ("gpushare.cli.main", "gpushare.daemon.app", "gpushare.node.simulated"),
}
"""What forked processes find imported, by the kind of their zygote."""


# ---- the tests' side


class Process:
    """A forked process, with the interface of a subprocess.Popen without pipes."""

    def __init__(self, zygote: "Zygote", pid: int, pidfd: int) -> None:
        self._zygote, self.pid, self._pidfd = zygote, pid, pidfd
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._pidfd], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0)
            self.returncode = self._zygote.status_of(self.pid)
            os.close(self._pidfd)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)

    def terminate(self) -> None:
        self.send_signal(15)


class Forked(Process):
    """A forked process, with the interface of a subprocess.Popen with text pipes."""

    def __init__(self, zygote: "Zygote", pid: int, pidfd: int, pipes: list[int]) -> None:
        super().__init__(zygote, pid, pidfd)
        self.stdin: IO[str] = os.fdopen(pipes[0], "w", 1)
        self.stdout: IO[str] = os.fdopen(pipes[1])
        self.stderr: IO[str] | None = os.fdopen(pipes[2]) if len(pipes) == 3 else None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Closes stdin and collects stdout until the process ends; also stderr if that is a pipe."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        with self.stdout, self.stderr or contextlib.nullcontext() as errors:
            printed, reply = self.stdout.read(), errors.read() if errors else ""
        self.wait(timeout)
        return printed, reply


class Zygote:
    def __init__(self, kind: str, loader: Mapping[str, str]) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSHARE_", "CUDA_", "LD_"))}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        with theirs:
            command = [sys.executable, str(PROGRAM), kind, str(theirs.fileno())]
            self._process = subprocess.Popen(command, env=kept | dict(loader), pass_fds=[theirs.fileno()])
        atexit.register(self.stop)

    def stop(self) -> None:
        self._socket.close()
        self._process.wait(10)

    def _receive(self) -> tuple[dict[str, int], list[int]]:
        message, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
        assert message, "the zygote has ended"
        return json.loads(message), descriptors

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> tuple[int, int]:
        """Forks a process whose first descriptors are `streams`; returns (pid, pidfd). `request`: as `main` reads
        it."""
        message = json.dumps({"directory": os.getcwd(), **request}).encode()
        with self._lock:
            socket.send_fds(self._socket, [message], streams)
            while "pid" not in (answer := self._receive())[0]:
                self._note(answer[0])
        return answer[0]["pid"], answer[1][0]

    def _note(self, answer: dict[str, int]) -> None:
        self._ended[answer["ended"]] = answer["status"]

    def status_of(self, pid: int) -> int:
        """The exit status of a process that has exited."""
        with self._lock:
            while pid not in self._ended:
                self._note(self._receive()[0])
            return self._ended.pop(pid)


_zygotes: dict[tuple[str, tuple[tuple[str, str], ...]], Zygote] = {}


def _zygote(kind: str, environment: Mapping[str, str]) -> Zygote:
    loader = tuple(sorted((key, value) for key, value in environment.items() if key.startswith("LD_")))
    if (kind, loader) not in _zygotes:
        _zygotes[kind, loader] = Zygote(kind, dict(loader))
    return _zygotes[kind, loader]


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether forking pays for this environment: each set of the loader's variables would need its own zygote."""
    return not any(key.startswith("LD_") for key in environment)


def _with_pipes(zygote: Zygote, request: Mapping[str, Any], count: int) -> Forked:
    near, far = [], []
    for writes in (True, False, False)[:count]:
        read, write = os.pipe()
        near.append(write if writes else read)
        far.append(read if writes else write)
    pid, pidfd = zygote.fork(request, far)
    for descriptor in far:
        os.close(descriptor)
    return Forked(zygote, pid, pidfd, near)


def fork(environment: Mapping[str, str], code: str | None = None) -> Forked:
    """A process that runs `code`, or the worker's loop if there is none. stderr is a pipe only with code."""
    request = {"environment": dict(environment), "code": code or WORKER, "arguments": []}
    return _with_pipes(_zygote("cuda", environment), request, 2 if code is None else 3)


def fork_command(environment: Mapping[str, str], arguments: Sequence[str], *, stderr: bool = True) -> Forked:
    """Runs `gpushare ARGUMENTS`. `stderr`: whether that is a pipe."""
    request = {"environment": dict(environment), "code": COMMAND, "arguments": list(arguments)}
    return _with_pipes(_zygote("gpushare", environment), request, 3 if stderr else 2)


def fork_daemon(
    environment: Mapping[str, str], code: str, arguments: Sequence[str], log: int, *, patched: bool
) -> Process:
    """A process that runs `code` with these command-line arguments; its output goes to `log`. `patched`: the code
    changes modules of the daemon before it starts."""
    zygote = _zygote("gpushare" if patched else "daemon", environment)
    with open(os.devnull, "rb") as nothing:
        request = {"environment": dict(environment), "code": code, "arguments": list(arguments)}
        return Process(zygote, *zygote.fork(request, (nothing.fileno(), log, log)))


# ---- the zygote's side


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Returns the request in each forked process, and None in the zygote at its end."""
    children: dict[int, int] = {}  # by pidfd
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in children:
                pid = children.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                control.send(json.dumps({"ended": pid, "status": status}).encode())
                continue
            message, pipes, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
            if not message:
                return None
            pid = os.fork()
            if pid == 0:
                control.close()
                for other in children:
                    os.close(other)
                for place, pipe in enumerate(pipes):
                    os.dup2(pipe, place)
                    os.close(pipe)
                request: dict[str, Any] = json.loads(message)
                return request
            for pipe in pipes:
                os.close(pipe)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [pidfd])


def main() -> None:
    kind, control_fd = sys.argv[1:]
    sys.path.insert(0, str(PROGRAM.parents[1]))
    for module in IMPORTED[kind]:
        importlib.import_module(module)
    gc.freeze()  # collections in forked processes skip the imports, and so do not copy their pages
    control = socket.socket(fileno=int(control_fd))
    try:
        request = serve(control)
    except (BrokenPipeError, KeyboardInterrupt):
        return
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv = ["-c", *request["arguments"]]
    exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
