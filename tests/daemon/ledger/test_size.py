"""The size of a ledger: a day's rows in each table, and what that makes in a year."""

import sqlite3
from contextlib import closing

from msgspec.structs import replace
from values.ledgerrows import batch, period, row

from gpushare.ledger.entries import IDLE, SWITCHING
from gpushare.ledger.file import LedgerFile

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
DAY = 24 * HOUR
TENANTS, DEVICES = 64, 8
GRANTS_A_DAY = 9  # per tenant: two at any time, a session for the day and a new job every three hours
NUMBER = 3_600_000_000_000
PERIODS, HOURS, DAYS = 4 * 60, 33 * 24, 332
"""Numbers of minutes, hours and days that have rows of their own; the last one is rolled up once an hour, or once a
day."""


def day(at):
    """Rows of hours for a day."""
    for hour in range(24):
        for tenant in range(TENANTS):
            for kind, number in (("session", 0), ("job", hour // 3)):
                yield replace(
                    period(f"g-{kind[0]}{tenant:04}{number:07x}", used=NUMBER),
                    tenant=f"organisation/team-{tenant % 8}/user-{tenant:02}",
                    device=f"GPU-67707573-6841-7265-ad73-69{tenant % DEVICES:010x}",
                    from_ns=at + hour * HOUR,
                    to_ns=at + (hour + 1) * HOUR,
                    **dict.fromkeys(("granted_ns", "busy_ns", "borrowed_ns", "lent_ns", "waited_ns"), NUMBER),
                    **dict.fromkeys(("memory_bytes", "memory_peak_bytes", "wait_max_ns", "memory_mib_ms"), NUMBER),
                )
        for what in (IDLE, SWITCHING):
            for device in range(DEVICES):
                name = f"GPU-67707573-6841-7265-ad73-69{device:010x}"
                yield replace(
                    period(what), tenant=what, device=name, from_ns=at + hour * HOUR, to_ns=at + (hour + 1) * HOUR
                )


def used_bytes(path):
    with closing(sqlite3.connect(path)) as db:
        page, count, free = (
            db.execute(f"PRAGMA {one}").fetchone()[0] for one in ("page_size", "page_count", "freelist_count")
        )
    return page * (count - free)


def test_a_year_of_64_tenants_stays_below_a_gibibyte(tmp_path):
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    empty = used_bytes(path)
    rows = list(day(1_800_000_000 // 86400 * DAY))
    file.write(1, batch(*rows))
    row_bytes = (used_bytes(path) - empty) / len(rows)
    while file.roll(rows[0].from_ns + 40 * DAY):
        pass
    with closing(sqlite3.connect(path)) as db:
        a_day = db.execute("SELECT COUNT(*) FROM days").fetchone()[0]
        assert [db.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in ("periods", "hours")] == [0, 0]
    assert a_day == TENANTS * GRANTS_A_DAY + 2 * DEVICES
    before = used_bytes(path)
    grants = [row(f"g-{number:012x}", ended=5, state="." * 1000) for number in range(TENANTS * GRANTS_A_DAY)]
    file.write(1, batch(*grants))
    grant_bytes = (used_bytes(path) - before) / len(grants)
    file.close()
    at_once = 2 * TENANTS + 2 * DEVICES
    year = row_bytes * (at_once * (PERIODS + HOURS) + a_day * DAYS) + grant_bytes * len(grants) * 365
    assert year < 0.6 * (1 << 30), (row_bytes, grant_bytes)
