"""The tables of what the ledger's file does not have yet (recent.py), and how their rows are merged."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from gpushare.ledger import attachments
from gpushare.ledger.entries import (
    ATTACHMENTS,
    LARGEST,
    MOVES,
    PERIODS,
    REST,
    GrantRow,
    Kind,
    Move,
    Period,
    Row,
    joined,
    kind_of,
)

# As in the file, but any value is taken: the file decides which row is set aside.
TABLES = {
    "grants": GrantRow._fields,
    "periods": PERIODS.columns,
    "moves": MOVES.columns,
    "devices": ("id", "state", "seen_ns"),
    "contexts": ("device", "driver", "bytes", "listed_bytes"),
    "parts": ("id", "state"),
    "attachments": ATTACHMENTS.columns,
}
KINDS = {"periods": PERIODS, "moves": MOVES}
_KEYS = dict.fromkeys(KINDS, "grant_id, device")
_KEYS |= {"grants": "id", "devices": "id", "contexts": "device, driver", "parts": "id", "attachments": "attachment"}
LIVES = {"grants": "ended_ns IS NULL", "parts": "state != ''", "attachments": attachments.LIVES}
"""Which rows of a table stay here when the file has them."""
# `seq`: the order in which rows are moved to the file; rows of one transaction have the same. A period or move without
# one is not complete: later ones are merged with it. An attachment that lives gets one at the pace of periods.
SCHEMA = "".join(
    f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}, seq);"
    f"CREATE {'' if name in KINDS else 'UNIQUE '}INDEX IF NOT EXISTS {name}_key ON {name} ({_KEYS[name]});"
    f"CREATE INDEX IF NOT EXISTS {name}_seq ON {name} (seq);"
    for name, columns in TABLES.items()
)
PUT = {
    name: f"INSERT OR REPLACE INTO {name} VALUES ({', '.join('?' * (len(columns) + 1))})"
    for name, columns in TABLES.items()
}


def _merging(table: str, kind: Kind, where: dict[str, str]) -> tuple[str, Callable[[Any], Any]]:
    """A statement that merges a row with an incomplete one, and what gets its values. `where`: column of the old row,
    by that of the new row which it has to equal."""
    changes = [f"{name} = ?" for name in kind.latest]
    changes += [f"{name} = min({name} + ?, {LARGEST})" for name in kind.sums]
    changes += [f"{name} = max({name}, ?)" for name in kind.maxima]
    same = " AND ".join(f"{old} = ?" for old in where.values())
    given = attrgetter(*kind.latest, *kind.sums, *kind.maxima, *where)
    return f"UPDATE {table} SET {', '.join(changes)} WHERE seq IS NULL AND {same}", given


MERGE = {
    "periods": _merging("periods", PERIODS, {name: name for name in PERIODS.texts} | {"from_ns": "to_ns"}),
    # There is none for seconds in which nothing moved.
    "moves": _merging("moves", MOVES, {name: name for name in MOVES.texts}),
}


def by_tenant(table: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[object, ...]]:
    """Rows of KINDS without their grants: one for each tenant, device and whatever else they tell apart."""
    if table == "periods":
        return _merged(replace(Period(*row), grant_id=REST) for row in rows)
    return _merged(replace(Move(*row), grant_id=REST, holder="") for row in rows)


def _merged(rows: Iterable[Row]) -> list[tuple[object, ...]]:
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(getattr(row, name) for name in kind_of(row).texts)
        found[key] = joined(found[key], row) if key in found else row
    return [kind_of(row).values(row) for row in found.values()]
