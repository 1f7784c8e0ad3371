"""The sandbox's main program: descriptor 0 is a socket to the daemon. It forks a supervisor for each server, one ahead,
so that none has to wait for an interpreter, passes messages on, and removes the cgroups of supervisors that have
ended."""

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field

from gpushare.enforce import server_cgroup
from gpushare.processes import helper
from gpushare.sandbox import messages, supervisor

_PR_SET_DUMPABLE = 4
_AGAIN_MS = 50
"""Between attempts to remove cgroups that processes are about to leave."""
_CLOSE_TRIES = 10


@dataclass(slots=True)
class _Starting:
    """A supervisor that is not ready yet. `channel`: to it. `number`: None: it has none, and waits for one. `failed`:
    what it said last, passed on once it has ended."""

    pid: int
    channel: socket.socket
    number: int | None = None
    failed: bytes = b""


@dataclass(slots=True)
class _Cgroups:
    """Those of supervisors. `watched`: pids by the pidfd that tells their end. `left`: pids of those that have ended
    and whose cgroups are still there."""

    watched: dict[int, int] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)

    def find(self) -> None:
        """Those of an earlier helper. What is empty is removed, whoever has the pid now: a supervisor that is about to
        enter makes it again."""
        for pid in server_cgroup.existing():
            if server_cgroup.remove(pid):
                continue
            try:
                self.watched[os.pidfd_open(pid)] = pid
            except OSError:
                self.left.add(pid)

    def remove(self) -> None:
        """Removes what can be removed now."""
        self.left = {pid for pid in self.left if not server_cgroup.remove(pid)}


class Sandbox:
    """Carries out what the daemon asks for."""

    def __init__(self, daemon: socket.socket) -> None:
        self._daemon = daemon
        self._poll = select.epoll()
        self._poll.register(daemon, select.EPOLLIN)
        self._starting: dict[int, _Starting] = {}
        """By number."""
        self._spare: _Starting | None = None
        self._channels: dict[int, _Starting] = {}
        """By the descriptor of the channel."""
        self._ended: dict[int, _Starting] = {}
        """By pid, those whose channel is closed before they were ready: they are ending."""
        self._cgroups = _Cgroups()
        self._cgroups.find()
        for pidfd in self._cgroups.watched:
            self._poll.register(pidfd, select.EPOLLIN)
        self._cgroups.remove()
        self._short = os.geteuid() == 0
        """Whether a spare is to be made, once nobody waits."""

    def serve(self) -> None:
        """Serves until the daemon closes its end. Supervisors that are not ready end then, others do not."""
        while True:
            busy = self._starting or self._ended
            if self._short and not busy:
                with contextlib.suppress(OSError):  # the next start says so
                    self._spare = self._fork()
                self._short = False
            for descriptor, _ in self._poll.poll(_AGAIN_MS / 1e3 if self._cgroups.left else None):
                if descriptor == self._daemon.fileno():
                    if not self._listen():
                        return
                elif descriptor in self._channels:
                    self._hear(self._channels[descriptor])
                elif descriptor in self._cgroups.watched:
                    self._process_ended(descriptor)
            self._cgroups.remove()

    def close(self) -> None:
        """Ends supervisors that are not ready, and removes what is left of them."""
        known = {starting.pid for starting in (*self._channels.values(), *self._ended.values())}
        for pid in known.intersection(self._cgroups.watched.values()):  # the others have ended: `_process_ended`
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._cgroups.left.add(pid)
        for _ in range(_CLOSE_TRIES):
            self._cgroups.remove()
            if not self._cgroups.left:
                break
            time.sleep(_AGAIN_MS / 1e3)
        server_cgroup.remove_parents()

    def _listen(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._daemon, messages.MESSAGE_MAX, 1)
        if not data:
            return False
        message = messages.from_daemon(data)
        match message:
            case messages.Start(number):
                with socket.socket(fileno=descriptors.pop()) as connector:
                    self._start(number, connector)
            case messages.Go(number) | messages.Cancel(number):
                if (starting := self._starting.get(number)) is not None:
                    with contextlib.suppress(OSError):  # it has ended, which its channel tells
                        starting.channel.send(data)
                elif isinstance(message, messages.Go) and all(one.number != number for one in self._ended.values()):
                    # It ended before, or with an earlier helper.
                    self._say(messages.Failed(number, "it was killed"))
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _start(self, number: int, connector: socket.socket) -> None:
        if os.geteuid() != 0:
            self._say(messages.Failed(number, "the daemon is not root's: only root's can keep a server to itself"))
            return
        try:
            starting, self._spare = self._spare or self._fork(), None
        except OSError as error:
            self._say(messages.Failed(number, f"no process can be started: {error.strerror}"))
            return
        self._short = True
        starting.number = number
        self._starting[number] = starting
        with contextlib.suppress(OSError):  # it has ended, which its channel tells
            socket.send_fds(starting.channel, [messages.encode(messages.Start(number))], [connector.fileno()])

    def _fork(self) -> _Starting:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                parent, pid = os.getpid(), os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                supervisor.run(parent, theirs)
        starting = self._channels[ours.fileno()] = _Starting(pid, ours)
        pidfd = os.pidfd_open(pid)
        self._cgroups.watched[pidfd] = pid
        for descriptor in (ours.fileno(), pidfd):
            self._poll.register(descriptor, select.EPOLLIN)
        return starting

    def _hear(self, starting: _Starting) -> None:
        try:
            data = starting.channel.recv(messages.MESSAGE_MAX)
        except OSError:
            data = b""
        message = messages.from_sandbox(data) if data else None
        if isinstance(message, messages.Started):
            self._say(message)
            return
        if isinstance(message, messages.Failed):
            starting.failed = data
            return
        del self._channels[starting.channel.fileno()]
        # Closing alone would not do: a process that was forked just now may still have a copy, and what happens there
        # would be taken for what happens at the next descriptor of this number.
        self._poll.unregister(starting.channel)
        starting.channel.close()
        if starting.number is None:
            self._spare = None
            return
        del self._starting[starting.number]
        if message is not None:
            self._say(message)
        elif starting.pid in self._cgroups.watched.values():
            self._ended[starting.pid] = starting
        else:
            self._say_failed(starting)

    def _process_ended(self, pidfd: int) -> None:
        pid = self._cgroups.watched.pop(pidfd)
        self._poll.unregister(pidfd)  # as in `_hear`
        os.close(pidfd)
        with contextlib.suppress(ChildProcessError):  # an earlier helper's
            os.waitpid(pid, 0)
        self._cgroups.left.add(pid)
        if (starting := self._ended.pop(pid, None)) is not None:
            self._say_failed(starting)

    def _say_failed(self, starting: _Starting) -> None:
        assert starting.number is not None
        self._daemon.send(starting.failed or messages.encode(messages.Failed(starting.number, "it was killed")))

    def _say(self, message: messages.FromSandbox) -> None:
        self._daemon.send(messages.encode(message))


def main(daemon: str) -> None:
    """Serves until the daemon closes the socket or ends. `daemon`: its pid."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the daemon decides when to stop
    helper.end_with_parent(signal.SIGKILL)
    if os.getppid() != int(daemon):
        raise SystemExit
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    gc.collect()
    gc.freeze()  # forks share the pages of what is loaded
    with socket.socket(fileno=os.dup(0)) as channel, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        os.close(0)
        sandbox = Sandbox(channel)
        try:
            sandbox.serve()
        finally:
            sandbox.close()
