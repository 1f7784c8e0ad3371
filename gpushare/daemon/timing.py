"""How often the daemon looks, and how long it waits."""

from dataclasses import dataclass, fields
from typing import Self

from gpushare.errors import UsageError
from gpushare.relay.wire import SILENT_SECONDS


@dataclass(frozen=True)
class Timing:
    """In seconds. Only whoever starts the daemon can choose others (`gpushare daemon --timing`, which tests use): no
    configuration file and no environment variable does."""

    tick: float = 1.0
    """Between two readings of what grants got."""
    health: float = 2.0
    """Between two checks of the devices' health."""
    audit: float = 0.05
    """Between two looks at who uses a device, while a grant is active."""
    unowned: float = 10.0
    """How long a device holds memory that no process has before that is reported: drivers free it with a delay."""
    settle: float = 10.0
    """Between two looks at all open descriptors, where it is in doubt what memory the driver's count is of."""
    kept: float = 10.0
    """After a look, memory that was in doubt counts again, but then possibly no process is in a call in which it could
    be signalled: a cgroup that holds too much for this long is killed. Not sooner, since helpers of an ended process
    keep its descriptors for a while (PyTorch's data loaders check every 5 s whether it lives), which must not get its
    successor killed."""
    doubt: float = 1.0
    """How much device time beyond what a grant's processes report is no error of measuring."""
    reader_ahead: float = 1.0
    """From the daemon's start to that of a reader before the first job."""
    reader_job: float = 2.0
    """How long a reader may work on a job."""
    pool_job: float = 20.0
    """How long making or emptying one segment of the host pool may take."""
    idle: float = 60.0
    """How long a connection may have no request, or half a header."""
    body: float = 20.0
    """How long a request's body may take."""
    send: float = 20.0
    """How long a client may leave an answer unread."""
    linger: float = 2.0
    """How long an unwanted body is read, so that its sender gets the answer."""
    served: float = 15.0
    """How long a carrier's server may take until it listens."""
    heard: float = SILENT_SECONDS
    """How long nothing may be heard of an attachment before it is lost."""
    starter: float = 1.0
    """Between two looks at an expired grant whose container is being started."""
    starter_most: float = 100.0
    """How long an expired grant lives on while its container is being started."""
    prepared: float = 1.0
    """A second of the time for which a prepared part of a gang is held."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `health=0.05,tick=0.1`. Raises UsageError."""
        known = {one.name for one in fields(cls)}
        given = {}
        for word in text.split(","):
            name, _, seconds = word.partition("=")
            try:
                given[name] = float(seconds)
            except ValueError:
                raise UsageError(f"{word[:40]!r} is not NAME=SECONDS") from None
            if name not in known or not given[name] >= 0:
                raise UsageError(f"{word[:40]!r}: the intervals are {', '.join(sorted(known))}, none below 0")
        return cls(**given)
