"""A command in a terminal of a given size."""

import fcntl
import os
import pty
import signal
import struct
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Running:
    """A command in a terminal. `printed`: bytes sent to the terminal so far."""

    def __init__(self, pid: int, terminal: int) -> None:
        self.pid, self._terminal, self.printed = pid, terminal, b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while data := os.read(self._terminal, 1 << 16):
                self.printed += data
        except OSError:
            pass  # the command has ended


@contextmanager
def in_terminal(columns: int, lines: int, command: Sequence[str], env: dict[str, str]) -> Iterator[Running]:
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        colours = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LC_ALL": "C.UTF-8"}
        os.execvpe(command[0], command, {**env, **colours})
    try:
        yield Running(pid, terminal)
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        os.close(terminal)
