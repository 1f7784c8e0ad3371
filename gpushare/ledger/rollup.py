"""Makes rows of minutes into rows of hours, and those into rows of days, so that a long record stays small and is read
fast. Works in an open transaction of the ledger's file.

Sums stay what they were. A row begins where the first of those that it replaces began and is as long as they were
together, so that gaps between them do not count.
"""

import logging
import sqlite3
from typing import NamedTuple

from gpushare.ledger import chain
from gpushare.ledger.chain import Insert
from gpushare.ledger.entries import LARGEST, Kind
from gpushare.ledger.schema import CHAINED, KINDS, MOVING
from gpushare.ledger.sqlite_file import sums, whole

log = logging.getLogger(__name__)

_HOUR_NS = 3600 * 10**9
_ROWS = 8_000
"""Most rows rolled up at once: callers wait for the disk meanwhile."""

_ACROSS = 1_000
"""How many rows after the old ones are looked at: as many as are written at once on a busy node."""


class Step(NamedTuple):
    """Rows of `source` that ended `age_ns` ago become rows of `target`, one for each `unit_ns` in which they began."""

    source: str
    target: str
    unit_ns: int
    age_ns: int


STEPS = tuple(
    step
    for short, hours, days in (CHAINED, MOVING)
    for step in (
        Step(short, hours, _HOUR_NS, 3 * _HOUR_NS),  # no question is about less than an hour
        Step(hours, days, 24 * _HOUR_NS, 32 * 24 * _HOUR_NS),
    )
)


def roll(db: sqlite3.Connection, insert: Insert, now_ns: int) -> bool:
    """Rolls up some old rows. Returns whether there may be more. Rows that are not what was written stay as they are:
    afterwards it could not be found out which they were."""
    found = [_roll(db, insert, step, now_ns) for step in STEPS]
    return any(found)


def _roll(db: sqlite3.Connection, insert: Insert, step: Step, now_ns: int) -> bool:
    # The whole unit has to be old, else it would become several rows.
    before_ns = (now_ns - step.age_ns) // step.unit_ns * step.unit_ns
    first, last = chain.older(db, step.source, before_ns)
    if first > last:
        return False
    last = min(_with_begun(db, step, last, before_ns), _units(db, step, first))
    if fault := chain.fault(db, step.source, last)[0]:
        log.error(
            "ledger: %s: %s: its rows are kept as they are; `gpushare usage verify` shows more", step.source, fault
        )
        return False
    chain.append(db, insert, step.target, _merged(db, step, last))
    chain.drop_oldest(db, step.source, last)
    return True


def _with_begun(db: sqlite3.Connection, step: Step, last: int, before_ns: int) -> int:
    """The last row that began before `before_ns`: `last`, or one written with it that ends later."""
    query = (
        f"SELECT MAX(id) FROM (SELECT id, from_ns FROM {step.source} WHERE id > ? ORDER BY id LIMIT {_ACROSS}) "
        "WHERE from_ns < ?"
    )
    found = db.execute(query, (last, before_ns)).fetchone()[0]
    return last if found is None else int(found)


def _units(db: sqlite3.Connection, step: Step, first: int) -> int:
    """The last of the rows from `first` on to roll up together: as many whole units as fit in _ROWS, or a part of
    one."""
    units = db.execute(
        f"SELECT MAX(id), COUNT(*) FROM (SELECT id, from_ns FROM {step.source} WHERE id >= ? ORDER BY id LIMIT ?) "
        f"GROUP BY from_ns / {step.unit_ns} ORDER BY 1",
        (first, _ROWS),
    ).fetchall()
    found: int = units[-1][0]
    if sum(count for _, count in units) == _ROWS and len(units) > 1:
        found = units[-2][0]
    return found


def _column(name: str, kind: Kind) -> str:
    if name in ("run", *kind.maxima):
        return f"MAX({name})"
    if name == "from_ns":
        return "MIN(from_ns)"
    return name


def _merged(db: sqlite3.Connection, step: Step, last: int) -> list[tuple[object, ...]]:
    """Values of the table's columns (chain.columns)."""
    kind, columns = KINDS[step.source], chain.columns(step.source)
    plain = [name for name in columns if name not in (*kind.sums, *kind.latest)]
    query = (
        f"SELECT {', '.join(_column(name, kind) for name in plain)}, {sums('(to_ns - from_ns)', *kind.sums)}, MAX(id) "
        f"FROM {step.source} WHERE id <= ? GROUP BY {', '.join(kind.texts)}, from_ns / {step.unit_ns} "
        "ORDER BY MIN(from_ns), MIN(id)"
    )
    rows = []
    for row in db.execute(query, (last,)).fetchall():
        found = dict(zip(plain, row, strict=False))
        length, *added = whole(row[len(plain) : -1])
        found |= {name: min(value, LARGEST) for name, value in zip(kind.sums, added, strict=True)}
        # Of grants that were merged into one row, several had the device in the same time.
        together = min(LARGEST, found["from_ns"] + length)
        found["to_ns"] = together if found["tenant"].startswith("(") else min(found["to_ns"], together)
        for name in kind.latest:
            found[name] = db.execute(f"SELECT {name} FROM {step.source} WHERE id = ?", (row[-1],)).fetchone()[0]
        rows.append(tuple(found[name] for name in columns))
    return rows
