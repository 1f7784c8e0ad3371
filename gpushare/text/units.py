"""Parsing and printing of sizes (bytes), time shares (milli-GPU) and durations (seconds). Every entry point uses these
and nothing else."""

import re
from collections.abc import Callable
from decimal import Decimal

from gpushare.errors import UsageError

MIB = 1 << 20
GIB = 1 << 30
PAGE = 2 * MIB
"""Of device memory: what a program cannot have in whole pages it cannot have in one piece
(native/interposer/hooks/memory/linear/alloc.c)."""

_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGT])(?:i?B)?|([KMGT])i|B)?", re.ASCII | re.IGNORECASE)
"""Units are powers of 1024 whether they are written with an `i` or without: `docker run -m 4g`, Slurm's `--mem=4G` and
the `4Gi` of Kubernetes are the same size."""
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%", re.ASCII)
_FRACTION = re.compile(r"[0-9]+\.[0-9]+", re.ASCII)
_MILLI = re.compile(r"([0-9]+) ?m", re.ASCII)
_BARE = re.compile(r"0*([0-9]+)", re.ASCII)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([smh]?)", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
# 16 TiB per device is beyond any GPU and keeps every sum in a u64.
_SIZE_MAX = 16 << 40
BARE_BYTES_MIN = 1_000_000
"""A number of bytes below this has to be written with a unit."""
_DEVICE_MILLI, _NODE_MILLI_MAX = 1000, 16000
IDLE_SECONDS_MIN, IDLE_SECONDS_MAX = 0.1, 86400
"""Range of the time after which memory counts as idle."""
TEXT_MAX = 64
"""Most characters of a number. Parsing time grows with the square of its digits: a second for 100,000 of them."""


def _stripped(what: str, text: str) -> str:
    """The text without surrounding space. Raises UsageError for one longer than TEXT_MAX."""
    if len(text) > TEXT_MAX:
        raise UsageError(f"{what} {text[:40]!r}... has {len(text)} characters: give at most {TEXT_MAX}")
    return text.strip()


def parse_size(text: str) -> int:
    """`8GiB`, `8Gi`, `8GB`, `8G`, `8g`, `512MiB`, `1.5GiB` or plain bytes -> bytes. Raises UsageError, also for a plain
    number below a million, whose unit was forgotten."""
    stripped = _stripped("memory", text)
    match = _SIZE.fullmatch(stripped)
    if match is None:
        raise UsageError(f"memory {text!r} is not a size: write for example 8GiB, 512MiB or a number of bytes")
    size = Decimal(match[1]) * _UNIT[(match[2] or match[3] or "").upper()]
    if size != int(size):
        raise UsageError(f"memory {text!r} is not a whole number of bytes: write for example 8GiB or 512MiB")
    if not 0 < size <= _SIZE_MAX:
        raise UsageError(f"memory {text!r} is out of range: give more than 0 and at most 16TiB")
    if size < BARE_BYTES_MIN and (bare := _BARE.fullmatch(stripped)):
        raise UsageError(f"memory {text!r} has no unit and would be bytes: write {bare[1]}GiB or {bare[1]}MiB")
    return int(size)


def size_of(given: int | str) -> int:
    """A size of the node API, where a number is bytes -> bytes. Raises UsageError."""
    return parse_size(f"{given}B" if isinstance(given, int) else given)


def parse_memory(text: str, device_bytes: int) -> int:
    """A size, or `35%` of the device's memory -> bytes. Raises UsageError."""
    match = _PERCENT.fullmatch(_stripped("memory", text))
    if match is None:
        return parse_size(text)
    percent = Decimal(match[1])
    if not 0 < percent <= 100:
        raise UsageError(f"memory {text!r} is out of range: give more than 0% and at most 100%")
    return int(device_bytes * percent / 100)


def parse_time(text: str) -> int:
    """`30%`, `300m` or `0.3` (a decimal point is a part of the device) -> milli-GPU of one device. 0 is allowed: a
    share that only borrows. Raises UsageError, also for any other number without a unit: `50` is 50% to some and 50m to
    others."""
    stripped = _stripped("time", text)
    milli = Decimal(stripped) * 1000 if _FRACTION.fullmatch(stripped) else _milli(text, stripped, _DEVICE_MILLI)
    if milli is None:
        raise UsageError(f"time {text!r} is not a share: write 30%, 0.3 or 300m (thousandths)")
    if _whole(text, milli) > _DEVICE_MILLI:
        raise UsageError(f"time {text!r} is out of range: give at most 100%, 1.0 or 1000m")
    return int(milli)


def parse_node_time(text: str) -> int:
    """A tenant's share of all devices of the node together: `600%` or `6000m` -> milli. 0 is allowed. Raises
    UsageError as parse_time does."""
    stripped = _stripped("time", text)
    milli = _milli(text, stripped, _NODE_MILLI_MAX)
    if milli is None:
        raise UsageError(f"time {text!r} is not a share of the node: write 75%, or 600% or 6000m for six devices")
    if _whole(text, milli) > _NODE_MILLI_MAX:
        raise UsageError(f"time {text!r} is out of range: a node has at most 1600% (16 devices)")
    return int(milli)


def milli_of(given: int | str, parsed: Callable[[str], int] = parse_time) -> int:
    """A time of the node API, where a number is milli -> milli. `parsed`: what reads a text. Raises UsageError."""
    return parsed(f"{given}m" if isinstance(given, int) else given)


def parse_duration(text: str, least: float, most: float) -> float:
    """`30`, `30s`, `5m` or `1.5h` -> seconds. `least`, `most`: the range in seconds. Raises UsageError."""
    match = _DURATION.fullmatch(_stripped("duration", text))
    if match is None:
        raise UsageError(f"duration {text!r} is none: write for example 30s, 5m, 2h or a number of seconds")
    seconds = float(Decimal(match[1]) * _SECONDS[match[2]])
    if not least <= seconds <= most:
        raise UsageError(f"duration {text!r} is out of range: give {least:g} to {most:g} seconds")
    return seconds


def parse_idle_after(text: str) -> float:
    """After how long memory counts as idle -> seconds. Raises UsageError."""
    return parse_duration(text, IDLE_SECONDS_MIN, IDLE_SECONDS_MAX)


def _milli(text: str, stripped: str, most: int) -> Decimal | None:
    """A percentage, or thousandths. `most`: milli, for what is proposed instead of a number without a unit, which
    raises UsageError."""
    if match := _PERCENT.fullmatch(stripped):
        return Decimal(match[1]) * 10
    if match := _MILLI.fullmatch(stripped):
        return Decimal(match[1])
    if (bare := _BARE.fullmatch(stripped)) and (number := int(bare[1])):
        meant = [f"{number}%"] if number * 10 <= most else []
        meant += [f"{number}m (thousandths: {format_time(number)})"] if number <= most else []
        raise UsageError(f"time {text!r} has no unit: write {' or '.join(meant) or '30% or 300m'}")
    return Decimal(0) if bare else None


def _whole(text: str, milli: Decimal) -> int:
    if milli != int(milli):
        raise UsageError(f"time {text!r} is finer than a thousandth of a device: round it to 0.1%")
    return int(milli)


def format_size(size: int) -> str:
    """Bytes -> the largest binary unit that keeps it readable: `8GiB`, `1.5GiB`, `512MiB`."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        factor = _UNIT[unit[0]]
        if abs(size) >= factor:
            whole = size / factor
            return f"{size // factor}{unit}B" if size % factor == 0 else f"{whole:.2f}{unit}B"
    return f"{size}B"


def format_time(milli: int) -> str:
    """Milli-GPU -> `30%` or `12.5%`."""
    return f"{milli // 10}%" if milli % 10 == 0 else f"{milli / 10:.1f}%"
