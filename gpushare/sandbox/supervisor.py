"""The supervisor of one server, a process that the helper forks: waits until the grant is bound to it, makes the
namespaces, starts the server in them, and serves its connector until the relay or the server ends.

Until the server listens it belongs to the helper: it ends with it, with what it has started. From then on it belongs to
its grant, has the server's uid and no rights, and no descriptor but the connector.
"""

import contextlib
import fcntl
import gc
import os
import select
import signal
import socket
import struct
import time
from pathlib import Path
from typing import NoReturn

from gpushare.enforce import server_cgroup
from gpushare.errors import FailedError
from gpushare.inject import mounts
from gpushare.paths import GRANT_DIR_ENV, PROCESS_SELF
from gpushare.processes import helper
from gpushare.sandbox import first, messages, view
from gpushare.sandbox.connector import END_SECONDS
from gpushare.sandbox.output import Output
from gpushare.sandbox.serving import HOST, Serving

_OWN_BYTES = 16 << 20
"""What the supervisor and process 1 need of the cgroup's memory."""
_OWN_PIDS = 2
_NEVER_KILL = -1000
_PAUSE_SECONDS, _PAUSE_MOST = 0.001, 0.01
_PROBE_SECONDS = 0.2

# sched.h, linux/if.h, linux/sockios.h
_NEWUTS, _NEWIPC, _NEWPID, _NEWNET = 0x4000000, 0x8000000, 0x20000000, 0x40000000
_IFF_UP, _SIOCSIFFLAGS = 1, 0x8914


class _CancelledError(Exception):
    """The helper wants it to end, or has ended."""


def run(parent: int, channel: socket.socket) -> NoReturn:
    """Takes over this process, a fork of the helper, whose pid is `parent`. `channel`: to the helper: messages of
    gpushare/sandbox/messages.py, as between it and the daemon. All other descriptors are closed."""
    try:
        channel = _alone(channel)
        helper.end_with_parent(signal.SIGKILL)
        if os.getppid() == parent:
            with contextlib.suppress(_CancelledError):
                Supervisor(channel).run()
    finally:
        os._exit(0)


def _alone(kept: socket.socket) -> socket.socket:
    """Closes all descriptors but this socket, which it returns with another number."""
    moved = fcntl.fcntl(kept.detach(), fcntl.F_DUPFD_CLOEXEC, 64)
    with open("/dev/null", "r+b", buffering=0) as null:
        for number in range(3):
            os.dup2(null.fileno(), number)
    os.dup2(moved, 3, inheritable=False)
    os.closerange(4, 1 << 20)
    return socket.socket(fileno=3)


class Supervisor:
    """Used once, by `run`. What takes its time and does not depend on a grant is done before there is one."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._number = 0
        self._connector: socket.socket
        self._first = 0
        """Pid of the server's process 1; 0: not started."""

    def run(self) -> None:
        """Raises _CancelledError."""
        gc.disable()  # a collection would copy the pages that are shared with the helper
        trouble = self._prepare()
        self._await_start()
        try:
            serving = self._start(trouble)
        except _CancelledError:
            self._fail("it was cancelled")
        except OSError as error:
            self._fail(f"{error.filename}: {error.strerror}" if error.filename is not None else str(error))
        except FailedError as error:
            self._fail(str(error))
        except Exception as error:  # a defect: the daemon logs it
            self._fail(f"{type(error).__name__}: {error}")
        else:
            self._serve(serving)

    def _fail(self, reason: str) -> None:
        self._kill()
        self._send(messages.Failed(self._number, reason))

    def _serve(self, serving: Serving) -> None:
        self._send(messages.Ready(self._number))
        self._channel.close()
        if serving.serve():
            self._end()
        self._kill()

    @staticmethod
    def _prepare() -> FailedError | None:
        try:
            server_cgroup.enter()
        except FailedError as error:
            return error
        with contextlib.suppress(OSError):  # it is in the cgroup that the server fills
            Path("/proc/self/oom_score_adj").write_text(str(_NEVER_KILL))
        return None

    def _await_start(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._channel, messages.MESSAGE_MAX, 1)
        message = messages.from_daemon(data) if data else None
        if not isinstance(message, messages.Start):
            raise _CancelledError
        self._number = message.number
        self._connector = socket.socket(fileno=descriptors[0])

    def _send(self, message: messages.FromSandbox) -> None:
        try:
            self._channel.send(messages.encode(message))
        except OSError:
            self._kill()
            raise _CancelledError from None

    def _start(self, trouble: FailedError | None) -> Serving:
        """`trouble`: of `_prepare`. Raises FailedError, OSError and _CancelledError."""
        if trouble is not None:
            raise trouble
        self._send(messages.Started(self._number, os.getpid()))
        message = self._go()
        server_cgroup.limit(message.host_memory + _OWN_BYTES, message.pids + _OWN_PIDS)
        os.umask(0o022)
        _isolate()
        grant, daemon = Path(message.grant_dir), Path(message.node_socket)
        view.enter(view.Needs(grant, message.env, daemon, message.argv[0], message.devices, message.host_memory))
        output, report, ended = self._fork(message)
        self._await_listening(message, output, report, ended)
        # From here on it does not end with the helper: the kernel forgets that as the rights change. Not before, since
        # process 1 may still be root's, and could not be ended.
        helper.become_alone(message.uid)
        return Serving(self._connector, message.port, ended, output)

    def _go(self) -> messages.Go:
        waiting = select.poll()
        waiting.register(self._channel, select.POLLIN)
        waiting.register(self._connector, 0)
        waiting.poll()
        try:
            data = self._channel.recv(messages.MESSAGE_MAX, socket.MSG_DONTWAIT)
        except OSError:  # the connector's other end is closed
            raise _CancelledError from None
        message = messages.from_daemon(data) if data else None
        if not isinstance(message, messages.Go):
            raise _CancelledError
        return message

    def _fork(self, go: messages.Go) -> tuple[Output, int, int]:
        """Starts process 1. Returns the server's output, the pipe in which process 1 reports, and its pidfd."""
        read, written = os.pipe()
        report, reported = os.pipe()
        env = {"HOME": "/tmp", "PATH": os.defpath, **go.env, GRANT_DIR_ENV: PROCESS_SELF}  # noqa: S108 - the server's own
        server = first.Server(go.argv, env, go.uid, go.host_memory, go.pids)
        pid = os.fork()
        if pid == 0:
            for descriptor in (self._connector.detach(), self._channel.detach(), read, report):
                os.close(descriptor)
            first.run(server, written, reported)
        self._first = pid
        os.close(written)
        os.close(reported)
        return Output(read), report, os.pidfd_open(pid)

    def _await_listening(self, go: messages.Go, output: Output, report: int, ended: int) -> None:
        deadline, pause = time.monotonic() + go.seconds, _PAUSE_SECONDS
        poll = select.poll()
        for descriptor in (ended, self._channel.fileno(), output.descriptor):
            poll.register(descriptor, select.POLLIN)
        poll.register(self._connector, 0)
        while not _listens(go.port):
            happened = {descriptor for descriptor, _ in poll.poll(pause * 1e3)}
            if not happened.isdisjoint((self._channel.fileno(), self._connector.fileno())):
                raise _CancelledError
            if ended in happened:
                why = os.read(report, 4096).decode(errors="replace").partition("\n")[0] or "was killed"
                raise FailedError(f"it {why}{_last_words(output)}")
            if output.descriptor in happened and not output.read():
                poll.unregister(output.descriptor)
            if time.monotonic() >= deadline:
                self._kill()  # first: one that writes without end would have no last words
                words = _last_words(output)
                raise FailedError(f"it does not listen on {HOST}:{go.port} after {go.seconds:g} s{words}")
            pause = min(pause * 1.2, _PAUSE_MOST)
        os.close(report)

    def _end(self) -> None:
        """SIGTERM to all processes of the namespace, and time to end."""
        os.kill(self._first, signal.SIGTERM)
        ended = select.poll()
        ended.register(os.pidfd_open(self._first), select.POLLIN)
        ended.poll(END_SECONDS * 1e3)

    def _kill(self) -> None:
        """Ends all processes of the namespace, if they have not ended."""
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
            os.waitpid(self._first, 0)
            self._first = 0


def _isolate() -> None:
    """Enters new namespaces; the next child is the first of a new pid namespace."""
    mounts.check(mounts.libc.unshare(_NEWUTS | _NEWIPC | _NEWPID | _NEWNET), "namespaces for the server")
    socket.sethostname("gpushare")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect((HOST, port))
        except OSError:
            return False
    return True


def _last_words(output: Output) -> str:
    while output.read():
        pass
    line = output.last_line()
    return f": {line}" if line else ""
