"""The reader's main program. Standard input is a socket: jobs arrive on it and answers go out, until its other end is
closed."""

import os
import resource
import socket
from pathlib import Path
from typing import Any

import msgspec

from gpushare.errors import GpushareError, UsageError
from gpushare.inject import nvidia, oci, placing
from gpushare.processes.helper import CAP_DAC_READ_SEARCH, confine
from gpushare.reader import HEAD, Answer, Edit, Job, commands, config, members

_DESCRIPTORS = 256  # view.DEPTH_MAX, and some


def _answer(job: Job) -> Answer:
    if job.member is not None:
        who = job.member
        return Answer(member=members.is_member(who.uid, who.gid, who.users, who.groups))
    if job.command_of:
        return Answer(command=commands.command(job.command_of))
    found = config.load(job.config)
    if job.attempt:
        return _attempt(found, job.bundle)
    if job.edit is None:
        return _asked(found, job.environment)
    try:
        return _edited(found, job.edit)
    except (GpushareError, MemoryError):
        raise
    except Exception as error:  # nothing has checked the config's shape: it may be anything that is JSON
        where = job.edit.bundle or "a container that is not made yet"
        raise UsageError(f"config.json of {where} cannot be edited: {error!r:.200}") from None


def _asked(found: dict[str, Any], environment: bool) -> Answer:
    asks = oci.request(found)
    if asks is None and environment:
        try:
            asks = oci.request_by_environment(found)
        except (AttributeError, TypeError) as error:
            raise UsageError(f"config.json is not one: {error!r:.200}") from None
    return Answer(asks=asks)


def _edited(found: dict[str, Any], edit: Edit) -> Answer:
    bundle = Path(edit.bundle) if edit.bundle is not None else None
    files = Path(edit.lib_dir), Path(edit.preload_file), Path(edit.cache_file)
    if not edit.created:
        edited, lines, cache = oci.apply(found, bundle, edit.edits, *files)
        return Answer(config=config.dump(edited), preload=[os.fsencode(line) for line in lines], cache=cache)
    assert bundle is not None
    mounts, lines, cache = placing.mounts(found, bundle, edit.edits, *files, movable=edit.movable)
    root = placing.root(found, bundle)
    return Answer(
        root=root,
        seen=Path(root).is_dir(),
        mounts=mounts,
        preload=[os.fsencode(line) for line in lines],
        cache=cache,
    )


def _attempt(found: dict[str, Any], bundle: str | None) -> Answer:
    try:
        return Answer(ways=nvidia.ways(found), container=nvidia.identity(found, bundle))
    except (AttributeError, KeyError, TypeError) as error:
        raise UsageError(f"config.json is not one: {error!r:.200}") from None


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


def main(daemon: str) -> None:
    """Serves until the daemon closes the socket or ends. `daemon`: its pid."""
    # When memory runs out, a reader that has read too much is to be killed, not the daemon.
    Path("/proc/self/oom_score_adj").write_text("1000")
    confine(daemon, keep={CAP_DAC_READ_SEARCH}, descriptors=_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with socket.socket(fileno=0) as channel:
        channel.sendall(HEAD.pack(0))  # ready
        while True:
            (size,) = HEAD.unpack(_receive(channel, HEAD.size))
            answer = msgspec.msgpack.encode(_answered(_receive(channel, size)))
            channel.sendall(HEAD.pack(len(answer)) + answer)
