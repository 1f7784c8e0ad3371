"""The main program of the helper (`serve`), and of the process that looks at an image for it (`look`)."""

import os
import resource
import signal
import socket
import sys
from pathlib import Path

from gpushare.errors import GpushareError, UsageError
from gpushare.inject import placing
from gpushare.inject.view import View
from gpushare.processes.helper import CAP_DAC_READ_SEARCH, confine
from gpushare.reader import config
from gpushare.remote.containers import image, messages, service

_DESCRIPTORS = 256  # view.DEPTH_MAX, and some


def main(parent: str, part: str) -> None:
    """`serve`: standard input is the socket to the client relay. `look`: it is a job, and standard output gets the
    answer."""
    if part == "look":
        _look(parent)
        return
    # The terminal sends it to all; this process ends when the client relay has.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with socket.socket(fileno=os.dup(0)) as channel:
        service.main(channel)


def _look(parent: str) -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")
    confine(parent, keep={CAP_DAC_READ_SEARCH}, descriptors=_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    job: messages.Look = messages.decode(sys.stdin.buffer.read(), messages.Look)
    try:
        answer = _found(job)
    except GpushareError as error:
        answer = messages.Found(error=(error.code, str(error)))
    except OSError as error:
        answer = messages.Found(error=("failed", f"the bundle {job.bundle} cannot be read: {error}"))
    sys.stdout.buffer.write(messages.encode(answer))


def _found(job: messages.Look) -> messages.Found:
    container, bundle = config.load(job.config), Path(job.bundle)
    try:
        view = View(container, bundle)
        mounts = image.mounts(container, view, job.carrier, job.libraries)
        return messages.Found(root=placing.root(container, bundle), mounts=mounts)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # it may be anything that is JSON
        raise UsageError(f"config.json of {job.bundle} is not one: {error!r:.200}") from None
