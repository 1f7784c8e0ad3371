"""Processes with hostile names."""

import ctypes
import os
import signal

import pytest

from gpushare.daemon.host import peer

PR_SET_NAME = 15


@pytest.mark.parametrize("name", [b"\xff\xfe", b") Z 1 (", b"a\nb) ", b""], ids=repr)
def test_a_process_is_known_whatever_its_name_is(name: bytes) -> None:
    """A name that is not valid text once raised an exception in the daemon's handling of the join."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(PR_SET_NAME, name)
        os.write(write, b"x")
        signal.pause()
        os._exit(0)
    try:
        os.read(read, 1)
        found = peer.status(child)
        assert found is not None
        assert not found.ending
        assert found.image == peer.status(os.getpid()).image  # type: ignore[union-attr] # a fork has its parent's
        assert found.started >= peer.start_time(os.getpid())  # type: ignore[operator]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
