"""The process itself: jobs come and answers go on standard input, a socket, until its other end is closed."""

import ctypes
import os
import resource
import signal
import socket
import struct
from pathlib import Path

import msgspec

from gpushare.errors import GpushareError, UsageError
from gpushare.inject import oci
from gpushare.reader import HEAD, Answer, Job, config

_MEMORY_BYTES = 1 << 30
_DESCRIPTORS = 256  # view.DEPTH_MAX, and some
_NOBODY = 65534

# linux/prctl.h and linux/capability.h
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 2


def _bound() -> None:
    for limit, value in (
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ):
        resource.setrlimit(limit, (value, value))


def _drop(daemon: int) -> None:
    """Gives up every capability but the one to read what others own, and acts as nobody towards files.

    The uid stays: a FUSE file system that root has mounted for itself, as some tools do images, shows itself to no
    other. Ends with the daemon from here on.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        os.setgroups([])
        libc.setfsgid(_NOBODY)
        libc.setfsuid(_NOBODY)
        header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
        # effective, permitted, inheritable; twice, for 64 capabilities
        sets = struct.pack("<6I", 1 << _CAP_DAC_READ_SEARCH, 1 << _CAP_DAC_READ_SEARCH, 0, 0, 0, 0)
        if libc.capset(header, sets) != 0:
            raise OSError(ctypes.get_errno(), "capset")
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Last: the kernel forgets it at a change of credentials.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != daemon:
        raise SystemExit


def _answer(job: Job) -> Answer:
    found = config.load(job.config)
    if job.edit is None:
        return Answer(asks=oci.request(found))
    edit = job.edit
    try:
        edited, lines = oci.apply(found, Path(edit.bundle), edit.edits, Path(edit.lib_dir), Path(edit.preload_file))
        return Answer(config=config.dump(edited), preload=[os.fsencode(line) for line in lines])
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        # Nothing has checked the config's shape: it may be anything that is JSON.
        raise UsageError(f"config.json of {edit.bundle} cannot be edited: {error!r}") from None


def _answered(message: bytes) -> Answer:
    try:
        return _answer(msgspec.msgpack.decode(message, type=Job))
    except GpushareError as error:
        return Answer(error=(error.code, str(error)))
    except MemoryError:
        return Answer(error=("usage", "config.json takes more memory to read than any needs"))


def _receive(channel: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    got = 0
    while got < size:
        count = channel.recv_into(memoryview(data)[got:])
        if not count:
            raise SystemExit
        got += count
    return bytes(data)


def main(daemon: int) -> None:
    """Serves until the daemon closes the socket or ends. `daemon`: its pid."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the daemon says when to stop
    _bound()
    _drop(daemon)
    with socket.socket(fileno=0) as channel:
        while True:
            (size,) = HEAD.unpack(_receive(channel, HEAD.size))
            answer = msgspec.msgpack.encode(_answered(_receive(channel, size)))
            channel.sendall(HEAD.pack(len(answer)) + answer)
