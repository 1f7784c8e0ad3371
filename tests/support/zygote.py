"""Python processes without the start-up cost of Python: forked from a process that has imported the CUDA bindings.

`fork` creates a process with the requested environment. Variables that the dynamic loader reads (LD_PRELOAD and
similar) cannot change after the start of a process, so there is one zygote for each distinct set of them. It lives as
long as the test session. The bindings and pynvml load a driver library only on first use, and a zygote never uses them,
so each forked process loads and initialises the driver itself.
"""

import atexit
import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

PROGRAM = Path(__file__)
MESSAGE_BYTES = 1 << 17


# ---- the tests' side


class Forked:
    """A process with the interface of a subprocess.Popen with pipes for stdin and stdout in text mode."""

    def __init__(self, zygote: "Zygote", pid: int, pidfd: int, pipes: tuple[int, int, int | None]) -> None:
        self._zygote, self.pid, self._pidfd = zygote, pid, pidfd
        self.returncode: int | None = None
        self.stdin: IO[str] = os.fdopen(pipes[0], "w")
        self.stdout: IO[str] = os.fdopen(pipes[1])
        self.stderr: IO[str] | None = None if pipes[2] is None else os.fdopen(pipes[2])

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

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Closes stdin and collects stdout until the process ends; also stderr if that is a pipe."""
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()
        with self.stdout, self.stderr or contextlib.nullcontext() as errors:
            printed, said = self.stdout.read(), errors.read() if errors else ""
        self.wait(timeout)
        return printed, said

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(9)

    def terminate(self) -> None:
        self.send_signal(15)


class Zygote:
    def __init__(self, loader: Mapping[str, str]) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSHARE_", "CUDA_", "LD_"))}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._ended: dict[int, int] = {}
        with theirs:
            command = [sys.executable, str(PROGRAM), str(theirs.fileno())]
            self._process = subprocess.Popen(command, env=kept | dict(loader), pass_fds=[theirs.fileno()])
        atexit.register(self.stop)

    def stop(self) -> None:
        self._socket.close()
        self._process.wait(10)

    def _receive(self) -> tuple[dict[str, int], list[int]]:
        message, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
        assert message, "the zygote has ended"
        return json.loads(message), descriptors

    def fork(self, environment: Mapping[str, str], code: str | None = None) -> Forked:
        """A process that runs `code`, or the worker's loop if there is none. stderr is a pipe only with code."""
        near, far = [], []
        for writes in (True, False, False)[: 2 if code is None else 3]:
            read, write = os.pipe()
            near.append(write if writes else read)
            far.append(read if writes else write)
        request = json.dumps({"environment": dict(environment), "code": code, "directory": os.getcwd()})
        with self._lock:
            socket.send_fds(self._socket, [request.encode()], far)
            while "pid" not in (answer := self._receive())[0]:
                self._note(answer[0])
        for descriptor in far:
            os.close(descriptor)
        return Forked(self, answer[0]["pid"], answer[1][0], (near[0], near[1], near[2] if code is not None else None))

    def _note(self, answer: dict[str, int]) -> None:
        self._ended[answer["ended"]] = answer["status"]

    def status_of(self, pid: int) -> int:
        """Of a process that has exited."""
        with self._lock:
            while pid not in self._ended:
                self._note(self._receive()[0])
            return self._ended.pop(pid)


_zygotes: dict[tuple[tuple[str, str], ...], Zygote] = {}


def fork(environment: Mapping[str, str], code: str | None = None) -> Forked:
    loader = tuple(sorted((key, value) for key, value in environment.items() if key.startswith("LD_")))
    if loader not in _zygotes:
        _zygotes[loader] = Zygote(dict(loader))
    return _zygotes[loader].fork(environment, code)


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
    sys.path.insert(0, str(PROGRAM.parent))
    import pynvml  # noqa: F401 - imported for the forked processes
    import worker

    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        request = serve(control)
    except (BrokenPipeError, KeyboardInterrupt):
        return
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    if request["code"] is None:
        worker.main()
    else:
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
