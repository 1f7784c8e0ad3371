"""Hashes that chain rows: each covers the row and the hash before it, so that a row that is changed, added, removed or
moved shows at the next one. Pure.

Whoever may write the file may also write another chain: it shows mistakes and edits, and anybody who has noted a hash
can show that what was before it is unchanged.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_encoded = json.JSONEncoder(separators=(",", ":")).encode
START = bytes(32)
"""The hash before the first row, also after rows from before the chain."""


@dataclass(frozen=True, slots=True)
class Link:
    """The last row of a part of a chain, and its hash."""

    row: int = 0
    hash: bytes = START


@dataclass(frozen=True, slots=True)
class Row:
    """A row as it was found. `values`: all that its hash covers, besides its id."""

    id: int
    values: Sequence[object]
    hash: object


def following(before: bytes, row: int, values: Sequence[object]) -> bytes:
    """The hash of a row."""
    return hashlib.sha256(before + _encoded([row, *values]).encode()).digest()


def first_fault(anchor: Link, rows: Iterable[Row], head: Link) -> tuple[str, int]:
    """(the first fault, how many rows were right before it); the fault is empty where there is none. `anchor`: what the
    chain begins after. `head`: the last row that was written."""
    last, count = anchor, 0
    for row in rows:
        if row.id <= last.row:
            return f"row {row.id} is before the beginning of the chain", count
        hash_ = following(last.hash, row.id, row.values)
        if row.hash != hash_:
            return f"row {row.id} is not what was written, or a row between {last.row} and it is gone", count
        last, count = Link(row.id, hash_), count + 1
    if last.row != head.row:
        return f"rows after {last.row} are gone: the last one was {head.row}", count
    if last.hash != head.hash:
        return f"the end of the chain is not that of row {head.row}", count
    return "", count
