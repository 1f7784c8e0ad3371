"""What it costs a program to use its device over a link. Pure.

A program does not wait for most of what it asks of a device: launches, and copies and records in streams, are sent and
forgotten. It waits for the calls that return when work is done, or that return something (synchronising calls), and for
the bytes that go between its memory and the device's. So the time that a link adds is

    calls x (round trip + carrier) + bytes to the device / rate up + bytes from it / rate down

which is exact for a program that does one thing after the other, and too much for one whose copies go on beside its
kernels, or whose threads wait at once.
"""

from dataclasses import dataclass
from typing import NamedTuple

CARRIER_US = 30.0
"""What the carrier's own software adds to a round trip: taking a call apart, waking its server, and the answer's way
back. Measured with a CUDA-over-TCP carrier between two network namespaces of one machine, as what is left of steps of 1
to 1000 kernels once round trips and bytes are taken off. Relays are not in it: a link check goes through them, and its
round trip has their part."""


@dataclass(frozen=True, slots=True)
class Path:
    """A link, as a check of it found it. `up_bps`: to the node of the device, bits per second."""

    rtt_us: float
    up_bps: float
    down_bps: float


class Work(NamedTuple):
    """What a program asked of its device. `sync_calls`: synchronising calls. `bytes_in`: copied from its memory to the
    device's, `bytes_out`: back."""

    sync_calls: float
    bytes_in: float
    bytes_out: float


def added_seconds(work: Work, path: Path) -> float:
    """How much longer this work takes over the link; infinite where bytes have no way."""
    waits = work.sync_calls * (path.rtt_us + CARRIER_US) / 1e6
    return waits + _seconds(work.bytes_in, path.up_bps) + _seconds(work.bytes_out, path.down_bps)


def _seconds(size: float, bps: float) -> float:
    return size * 8 / bps if bps > 0 else float("inf") if size else 0.0


def slowdown(work: Work, seconds: float, path: Path) -> float:
    """By which part of its time a program would be slower over the link: 0.014 is 1.4 %. `work`: what it did in so many
    seconds beside its device. 0 for no time."""
    return added_seconds(work, path) / seconds if seconds > 0 else 0.0


class Cost(NamedTuple):
    """What a link cost a program. `part`: of the time that the program would have taken without it."""

    seconds: float
    part: float


def cost(work: Work, seconds: float, path: Path) -> Cost:
    """What the link cost a program that ran over it for so many seconds and did this work: at most all of them."""
    added = min(added_seconds(work, path), seconds)
    rest = seconds - added
    return Cost(added, added / rest if rest > 0 else float("inf") if added else 0.0)
