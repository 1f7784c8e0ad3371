"""The daemon's directories, and the lock that makes it the only daemon in them."""

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from gpushare.errors import FailedError, UsageError
from gpushare.paths import LOCK, Layout

_SOCKET_PATH_MAX = 107  # sun_path less its NUL


def check_names(directory: Path, *sockets: Path) -> None:
    """Raises UsageError for paths that cannot be used: too long for a socket, or not UTF-8, as all answers are."""
    for path in sockets:
        if len(os.fsencode(path)) > _SOCKET_PATH_MAX:
            raise UsageError(f"{path} is too long for a socket, which has {_SOCKET_PATH_MAX} bytes: use a shorter one")
    for path in (directory, *sockets):
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:
            raise UsageError(f"{path} is not UTF-8: name another place") from None


def own(path: Path) -> None:
    """Makes a directory if it is absent, and checks that no other user can put things there. Raises FailedError."""
    try:
        if not path.exists():  # mkdir of an existing directory waits for a disk that takes no writes
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
        found = path.stat()
    except FileExistsError:  # a link that leads nowhere
        raise FailedError(f"{path} is not a directory: remove it, or give --state-dir") from None
    except OSError as error:
        raise FailedError(f"{path} cannot be made ({error.strerror}): run as root, or give --state-dir") from None
    if not stat.S_ISDIR(found.st_mode):
        raise FailedError(f"{path} is not a directory: remove it, or give --state-dir")
    if found.st_uid not in (0, os.geteuid()):
        raise FailedError(f"{path} belongs to uid {found.st_uid}: use a directory of your own with --state-dir")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise FailedError(f"{path} can be written by others: chmod go-w it, or give another --state-dir")


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Ensures one daemon per run-time directory and per socket, even if another one does not answer at the moment.

    Raises FailedError where there is another one, or a directory cannot be used.
    """
    for path in (layout.run, layout.state, layout.socket.parent):
        own(path)
    try:
        descriptor = os.open(layout.run / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FailedError(f"{layout.run} cannot be used ({error.strerror}): run as root, or give --state-dir") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedError(
                f"another daemon runs in {layout.run}: stop it first, or give --state-dir for a second one"
            ) from None
        _check_socket_free(layout.socket)
        yield
    finally:
        os.close(descriptor)


def _check_socket_free(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FailedError(f"{path} exists and is not a socket: remove it, or give --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return  # left by a daemon that was killed
        except OSError as error:
            raise FailedError(f"{path} cannot be checked ({error.strerror}): give another --socket") from None
    raise FailedError(f"another daemon serves {path}: stop it first, or give --socket and --state-dir")
