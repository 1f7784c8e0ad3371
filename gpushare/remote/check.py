"""The link check: round trips and rates between this machine and a node's relay, through the same relays as a program's
calls."""

import contextlib
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpushare.errors import RefusedError, UnreachableError
from gpushare.policy.remote import link
from gpushare.policy.remote.predict import Path
from gpushare.policy.remote.told import path as told
from gpushare.relay.wire import CHECK_SECONDS_FORMAT, Check

PINGS = 200
PING_BYTES = 64
PING_SECONDS = 0.1
"""Fewer round trips are made on a slow link."""
PINGS_MIN = 5
BULK_SECONDS = 0.2
ANSWER_SECONDS = 5.0
_CHUNK = 1 << 18
_COUNT = struct.Struct("<Q")

Connect = Callable[[], socket.socket]
"""Returns a connection for a check, which the caller closes. Raises UnreachableError."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found. `path`: round trip and rates; `kind`: its class."""

    path: Path
    kind: link.LinkClass

    def report(self) -> dict[str, object]:
        """As a LinkReport in JSON."""
        found = self.path
        return {"checked": self.kind, "rtt_us": found.rtt_us, "up_bps": found.up_bps, "down_bps": found.down_bps}


def measure(connect: Connect) -> Checked:
    """Checks a link, in about 0.5 s. Raises UnreachableError where it breaks meanwhile."""
    try:
        rtt_us = _round_trip(connect)
        up_bps, down_bps = _up(connect), _down(connect)
    except (OSError, struct.error) as error:
        raise UnreachableError(f"the link broke while it was checked ({error})") from None
    return Checked(Path(rtt_us, up_bps, down_bps), link.classify(rtt_us, up_bps, down_bps))


def refuse_slow(node: str, found: Checked, least: link.Least) -> None:
    """Raises RefusedError unless the link is as good as its user wants."""
    if link.is_enough(found.kind, least):
        return
    bound = link.BOUNDS[least]  # type: ignore[index] # `any` is always enough
    wanted = told(Path(bound.rtt_us, bound.bps, bound.bps))
    raise RefusedError(
        f"the link to {node} is too slow: {sentence(found)}; {least} is at most {wanted}. Run the program there instead"
        f" (gpushare run --on {node}), or take it as it is (--link-min any)"
    )


def sentence(found: Checked) -> str:
    """What was found, for people."""
    return f"round trip {told(found.path)} (up {_gbit(found.path.up_bps)}, down {_gbit(found.path.down_bps)} Gbit/s)"


def _gbit(bps: float) -> str:
    return f"{bps / 1e9:.2f}"


@contextlib.contextmanager
def _asked(connect: Connect, what: Check, seconds: float) -> Iterator[socket.socket]:
    with connect() as line:
        line.settimeout(ANSWER_SECONDS)
        line.sendall(bytes([what]) + struct.pack(CHECK_SECONDS_FORMAT, seconds))
        yield line


def _round_trip(connect: Connect) -> float:
    """The median, in us."""
    times: list[int] = []
    ping = bytes(PING_BYTES)
    with _asked(connect, Check.ECHO, 2 * PING_SECONDS) as line:
        end = time.monotonic() + PING_SECONDS
        while len(times) < PINGS and (len(times) < PINGS_MIN or time.monotonic() < end):
            began = time.perf_counter_ns()
            line.sendall(ping)
            _receive(line, PING_BYTES)
            times.append(time.perf_counter_ns() - began)
    return statistics.median(times[1:]) / 1000  # the first one found both sides asleep


def _up(connect: Connect) -> float:
    data = bytes(_CHUNK)
    with _asked(connect, Check.SINK, BULK_SECONDS) as line:
        end = time.monotonic() + BULK_SECONDS
        with contextlib.suppress(TimeoutError):  # the other side has read for long enough
            while (left := end - time.monotonic()) > 0:
                line.settimeout(left)
                line.send(data)
        line.settimeout(ANSWER_SECONDS)
        (read,) = _COUNT.unpack(_receive(line, _COUNT.size))
    return float(read * 8 / BULK_SECONDS)


def _down(connect: Connect) -> float:
    with _asked(connect, Check.SOURCE, BULK_SECONDS) as line:
        count, began, last = 0, 0.0, 0.0
        while part := line.recv(_CHUNK):
            last = time.monotonic()
            began = began or last
            count += len(part)
    return count * 8 / max(last - began, BULK_SECONDS / 2) if count else 0.0


def _receive(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = line.recv(size - len(found))
        if not part:
            raise ConnectionResetError("it was closed")
        found += part
    return found
