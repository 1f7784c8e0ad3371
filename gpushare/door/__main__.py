"""The door's main program: descriptor 0 is a socket to the daemon."""

import os
import select
import socket
import threading

from gpushare.door import messages
from gpushare.door.grants import Grants
from gpushare.processes import rights
from gpushare.processes.helper import CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, confine

_LOOKS_MAX = 16
"""Most processes looked at concurrently. Each look is a thread, since a process can keep it waiting."""


class Door:
    """Carries out what the daemon asks for."""

    def __init__(self, daemon: socket.socket, *, guarded: bool) -> None:
        self._daemon, self._guarded = daemon, guarded
        self._poll = select.epoll()
        self._poll.register(daemon, select.EPOLLIN)
        self._grants = Grants(self._poll, self._send)
        self._looks = threading.Semaphore(_LOOKS_MAX)

    def serve(self) -> None:
        """Serves until the daemon closes its end."""
        while True:
            for descriptor, _ in self._poll.poll(self._grants.tick()):
                if descriptor != self._daemon.fileno():
                    self._grants.happened(descriptor)
                elif not self._listen():
                    return

    def _send(self, message: messages.FromDoor, descriptor: int | None = None) -> None:
        """Blocks while the daemon is slow, and tenants wait too."""
        socket.send_fds(self._daemon, [messages.encode(message)], [descriptor] if descriptor is not None else [])

    def _listen(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._daemon, messages.MESSAGE_MAX, 1)
        if not data:
            return False
        match messages.from_daemon(data):
            case messages.Open(grant):
                listener = socket.socket(fileno=descriptors.pop())
                self._grants.open(grant, rights.refuse(listener, by_kernel=not self._guarded))
            case messages.Shut(grant):
                self._grants.shut(grant)
            case messages.Answer(connection, message):
                self._grants.answer(connection, message, descriptors[0] if descriptors else None)
            case messages.HangUp(connection):
                self._grants.hang_up(connection)
            case messages.Look(pid):
                self._look(pid)
            case messages.Ping():
                self._send(messages.Pong())
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _look(self, pid: int) -> None:
        if not self._looks.acquire(blocking=False):
            self._send(messages.Looked(pid, ""))
            return
        threading.Thread(target=self._look_now, args=(pid,), daemon=True).start()

    def _look_now(self, pid: int) -> None:
        word = ""
        try:
            with open(f"/proc/{pid}/syscall") as file:
                word = file.read(64).split()[0]
        except (OSError, IndexError):
            pass
        self._looks.release()
        self._send(messages.Looked(pid, word))


def main(daemon: str, guarded: str = "") -> None:
    """Serves until the daemon closes the socket or ends. `daemon`: its pid. `guarded`: not empty: acts as on a kernel
    that does not refuse descriptors at their sender (gpushare/processes/rights.py)."""
    confine(daemon, keep={CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE})  # to read /proc/PID/syscall
    with socket.socket(fileno=os.dup(0)) as channel:  # not inherited, unlike 0
        Door(channel, guarded=bool(guarded)).serve()
