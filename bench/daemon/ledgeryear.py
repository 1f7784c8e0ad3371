"""A node's ledger of a year, written by the product's own writer and rolled up as time passes.

Before the last day each row covers an hour, not a minute: rolled up, both give the same row.
"""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpushare.ledger.entries import GAP, IDLE, SWITCHING, Batch, GrantRow, Period, values
from gpushare.ledger.file import LedgerFile

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
DAY = 24 * HOUR
_LENGTHS = (("s", DAY), ("j", 3 * HOUR))
"""Lengths of each tenant's grants: a session and a job, nine grants a day."""
DEVICES = [f"GPU-67707573-6841-7265-ad73-69{n:010x}" for n in range(8)]


def tenants(count: int) -> list[str]:
    """Names of tenants, in three levels."""
    return [f"org-{n % 2}/team-{n % 8}/user-{n:02}" for n in range(count)]


def state(grant: str, tenant: str, device: str, at: int) -> str:
    """The record of an ended grant, longer than that of a plain program's grant, which has 720 bytes."""
    return json.dumps({"id": grant, "tenant": tenant, "device": device, "at": at, "rest": "." * 850})


class Written(NamedTuple):
    """How much was written. `grants`: number of ended grants."""

    periods: int
    grants: int


def grants(number: int, tenant: str, at: int) -> Iterator[tuple[str, str, int, int]]:
    """(id, device, begin, end) of a tenant's grants at a moment: a session of a day, and a job of three hours."""
    for kind, length in _LENGTHS:
        begin = at // length * length
        device = DEVICES[(number + begin // length) % len(DEVICES)]
        yield f"g-{kind}{number:03}{begin // HOUR:08x}", device, begin, begin + length


def periods(names: list[str], at: int, length: int, chance: random.Random) -> Iterator[Period]:
    """Rows of all grants and devices; those of a device add up to `length`."""
    used = dict.fromkeys(DEVICES, 0)
    most = length * len(DEVICES) // (2 * len(names) or 1)
    for number, tenant in enumerate(names):
        for grant, device, _, _ in grants(number, tenant, at):
            took = min(chance.randrange(most), length - used[device])
            used[device] += took
            yield Period(
                grant, tenant, device, at, at + length, most // 2, took, took * 9 // 10, took // 3, took // 7,
                chance.randrange(length // 20), 1 << 30, 1 << 31, 100, 20_000_000, 3, 4_000_000, 2_000_000,
                took // 3 if number % 16 == 0 else 0, length // 10**6 * 1024, took // 11, took // 13, took // 10**6,
            )  # fmt: skip
    for device in DEVICES:
        switching = min(length // 200, length - used[device])
        for what, ns in ((SWITCHING, switching), (IDLE, length - used[device] - switching)):
            yield Period(what, what, device, at, at + length, 0, ns, 0, 0, 0, ns // 9 if what == IDLE else 0, 0, 0)


def write(path: Path, *, days: int = 365, count: int = 64, exact_days: int = 1) -> Written:
    """Writes the days until now. `exact_days`: the last days, with a row a minute. In each week one row's time had no
    daemon."""
    chance = random.Random(1)
    names = tenants(count)
    end = time.time_ns() // HOUR * HOUR
    at = end - days * DAY
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    written = ended = 0
    while at < end:
        length = MINUTE if at >= end - exact_days * DAY else HOUR
        rows = periods(names, at, length, chance) if at % (7 * DAY) >= length else missed(at, length)
        batch = Batch(list(started_or_ended(names, at, length)), list(map(values, rows)))
        file.write(1, batch)
        ended += sum(row[-1] is not None for row in batch.grants)
        written += len(batch.periods)
        at += length
        if at % HOUR == 0:
            while file.roll(at):
                pass
    file.end(1)
    file.close()
    return Written(written, ended)


def missed(at: int, length: int) -> Iterator[Period]:
    """Rows for a time without a daemon."""
    for device in DEVICES:
        yield Period(GAP, GAP, device, at, at + length, 0, length, 0, 0, 0, 0, 0, 0)


def started_or_ended(names: list[str], at: int, length: int) -> Iterator[GrantRow]:
    """Rows of grants that begin or end with this period."""
    for number, tenant in enumerate(names):
        for grant, device, begin, end in grants(number, tenant, at):
            if begin == at or end == at + length:
                ended = end if end == at + length else None
                row = state(grant, tenant, device, begin)
                yield GrantRow(grant, grant, tenant, 1000, "released" if ended else "active", row, begin, ended)
