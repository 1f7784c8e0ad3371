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
from gpushare.reader import config, lookups, messages

_DESCRIPTORS = 256  # view.DEPTH_MAX, and some


class Reader:
    """Answers jobs, and keeps the config of the last one."""

    def __init__(self) -> None:
        self._config: dict[str, Any] = {}

    def answered(self, message: bytes) -> messages.Answer:
        """The answer to a job."""
        try:
            return self._answer(msgspec.msgpack.decode(message, type=messages.Job))
        except GpushareError as error:
            return messages.Refused(code=error.code, line=str(error))
        except MemoryError:
            return messages.Refused(code="usage", line="config.json takes more memory to read than any needs")

    def _answer(self, job: messages.Job) -> messages.Answer:
        match job:
            case messages.Config():
                self._read(job.text)
                return _asks(self._config, job)
            case messages.Edit():
                if job.text is not None:
                    self._read(job.text)
                return _edited(self._config, job)
            case messages.Member():
                return messages.Found(text="1" if lookups.is_member(job.uid, job.gid, job.users, job.groups) else "")
            case messages.Names():
                return messages.Unknown(*lookups.unknown(job.users, job.groups))
            case messages.Command():
                return messages.Found(text=lookups.command(job.pid))

    def _read(self, text: bytes) -> None:
        self._config = {}  # never another container's, whatever this text is
        self._config = config.load(text)


def _asks(found: dict[str, Any], job: messages.Config) -> messages.Asks:
    share = oci.request(found) if job.by != "nvidia" else None
    if share is not None:
        return messages.Asks(share=share)
    try:
        if job.by == "environment":
            return messages.Asks(share=oci.request_by_environment(found))
        return messages.Asks(ways=nvidia.ways(found), container=nvidia.identity(found, job.bundle))
    except (AttributeError, KeyError, TypeError) as error:
        if job.by == "annotations":
            return messages.Asks()
        raise UsageError(f"config.json is not one: {error!r:.200}") from None


def _edited(found: dict[str, Any], job: messages.Edit) -> messages.Edited:
    try:
        return _apply(found, job)
    except (GpushareError, MemoryError):
        raise
    except Exception as error:  # nothing has checked the config's shape: it may be anything that is JSON
        where = job.bundle or "a container that is not made yet"
        raise UsageError(f"config.json of {where} cannot be edited: {error!r:.200}") from None


def _apply(found: dict[str, Any], job: messages.Edit) -> messages.Edited:
    bundle = Path(job.bundle) if job.bundle is not None else None
    files = oci.Files(Path(job.lib_dir), Path(job.preload_file), Path(job.cache_file))
    edited = oci.apply(found, bundle, job.edits, files)
    answer = messages.Edited(preload=[os.fsencode(line) for line in edited.preload], cache=edited.cache)
    if not job.created:
        answer.config = config.dump(edited.config)
    if bundle is not None:
        now = found if job.created else edited.config
        answer.mounts, answer.cache = placing.mounts(edited, now, job.edits, created=job.created, movable=job.movable)
        answer.root = placing.root(found, bundle)
        answer.seen = Path(answer.root).is_dir()
    return answer


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
    reader = Reader()
    with socket.socket(fileno=0) as channel:
        channel.sendall(messages.HEAD.pack(0))  # ready
        while True:
            (size,) = messages.HEAD.unpack(_receive(channel, messages.HEAD.size))
            answer = msgspec.msgpack.encode(reader.answered(_receive(channel, size)))
            channel.sendall(messages.HEAD.pack(len(answer)) + answer)
