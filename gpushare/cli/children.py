"""Whether this process learns of its children's end.

Shells and service managers may start a command with SIGCHLD ignored. Then the kernel would tell nobody how a child has
ended, and Python takes that for success.
"""

import signal

_ignored = False


def watch() -> None:
    """From now on this process learns of it."""
    global _ignored
    _ignored = signal.signal(signal.SIGCHLD, signal.SIG_DFL) == signal.SIG_IGN


def leave() -> None:
    """The program that replaces this process finds what the caller had left to it."""
    if _ignored:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
