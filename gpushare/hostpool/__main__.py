"""The helper's main program: descriptor 0 is a socket to the daemon."""

import os
import socket

from gpushare.hostpool import memory_file, messages
from gpushare.processes.helper import confine


def main(daemon: str) -> None:
    """Does one job after another until the daemon closes the socket or ends. `daemon`: its pid."""
    confine(daemon, keep=())
    with socket.socket(fileno=os.dup(0)) as channel:  # not inherited, unlike 0
        while True:
            data, descriptors, _, _ = socket.recv_fds(channel, messages.MESSAGE_MAX, 1)
            if not data:
                return
            answer, made = _do(messages.job(data), descriptors)
            socket.send_fds(channel, [messages.encode(answer)], made)
            for descriptor in [*descriptors, *made]:
                os.close(descriptor)


def _do(job: messages.Job, descriptors: list[int]) -> tuple[messages.Answer, list[int]]:
    try:
        match job:
            case messages.Make(size, numa):
                memory_file.prefer(numa)
                return messages.Made(), [memory_file.make(size)]
            case messages.Empty():
                memory_file.empty(descriptors[0])
                return messages.Emptied(), []
    except OSError as error:
        return messages.Failed(error.strerror or str(error)), []
