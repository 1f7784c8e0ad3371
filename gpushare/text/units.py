"""Parsing and printing of sizes (bytes), time shares (milli-GPU) and durations (seconds). Every entry point uses these
and nothing else."""

import re
from decimal import Decimal

from gpushare.errors import UsageError

MIB = 1 << 20
GIB = 1 << 30
PAGE = 2 * MIB
"""Of device memory: what a program cannot have in whole pages it cannot have in one piece
(native/interposer/hooks/memory/linear/alloc.c)."""

_UNIT = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(?:(Ki|Mi|Gi|Ti)B?)?", re.ASCII)
_DECIMAL = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT])(?:i?B)?", re.ASCII | re.IGNORECASE)
"""Spellings that people use for a binary unit."""
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%", re.ASCII)
_FRACTION = re.compile(r"[0-9]+\.[0-9]+", re.ASCII)
_MILLI = re.compile(r"[0-9]+", re.ASCII)
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([smh]?)", re.ASCII)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
# 16 TiB per device is beyond any GPU and keeps every sum in a u64.
_SIZE_MAX = 16 << 40
_NODE_MILLI_MAX = 16000
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
    """`8GiB`, `8Gi`, `512MiB`, `1.5GiB` or plain bytes -> bytes. Raises UsageError."""
    match = _SIZE.fullmatch(_stripped("memory", text))
    if match is None:
        near = _DECIMAL.fullmatch(text.strip())
        meant = f"{near[1]}{near[2].upper()}iB" if near else "for example 8GiB, 512MiB or a number of bytes"
        raise UsageError(f"memory {text!r} is not a size: write {meant}")
    size = Decimal(match[1]) * _UNIT[match[2] or ""]
    if size != int(size):
        raise UsageError(f"memory {text!r} is not a whole number of bytes: write for example 8GiB or 512MiB")
    if not 0 < size <= _SIZE_MAX:
        raise UsageError(f"memory {text!r} is out of range: give more than 0 and at most 16TiB")
    return int(size)


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
    """`30%`, `0.3` (a decimal point is a fraction) or `300` (an integer is milli) -> milli-GPU of one device. 0 is
    allowed: a share that only borrows."""
    stripped = _stripped("time", text)
    milli = Decimal(stripped) * 1000 if _FRACTION.fullmatch(stripped) else _milli(stripped)
    if milli is None:
        raise UsageError(f"time {text!r} is not a share: write 30%, 0.3 or 300 (thousandths)")
    if _whole(text, milli) > 1000:
        raise UsageError(f"time {text!r} is out of range: give at most 100%, 1.0 or 1000")
    return int(milli)


def parse_node_time(text: str) -> int:
    """A tenant's share of all devices of the node together: `600%` or `6000` (milli) -> milli. 0 is allowed."""
    milli = _milli(_stripped("time", text))
    if milli is None:
        raise UsageError(f"time {text!r} is not a share of the node: write 75%, or 6000 (thousandths) for six devices")
    if _whole(text, milli) > _NODE_MILLI_MAX:
        raise UsageError(f"time {text!r} is out of range: a node has at most {_NODE_MILLI_MAX} (16 devices)")
    return int(milli)


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


def _milli(stripped: str) -> Decimal | None:
    """A percentage or a number of milli."""
    if match := _PERCENT.fullmatch(stripped):
        return Decimal(match[1]) * 10
    return Decimal(stripped) if _MILLI.fullmatch(stripped) else None


def _whole(text: str, milli: Decimal) -> int:
    if milli != int(milli):
        raise UsageError(f"time {text!r} is finer than a thousandth of a device: round it to 0.1%")
    return int(milli)


def format_size(size: int) -> str:
    """Bytes -> the largest binary unit that keeps it readable: `8GiB`, `1.5GiB`, `512MiB`."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        factor = _UNIT[unit]
        if abs(size) >= factor:
            whole = size / factor
            return f"{size // factor}{unit}B" if size % factor == 0 else f"{whole:.2f}{unit}B"
    return f"{size}B"


def format_time(milli: int) -> str:
    """Milli-GPU -> `30%` or `12.5%`."""
    return f"{milli // 10}%" if milli % 10 == 0 else f"{milli / 10:.1f}%"
