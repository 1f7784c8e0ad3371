"""Rows for a ledger, and queries of what it has."""

import sqlite3
from contextlib import closing

from gpushare.ledger.entries import ATTACHMENTS, MOVES, AttachmentRow, Batch, GrantRow, Move, Period, Totals, values


def period(grant="g-1", used=1, at=1, **more):
    values = {"granted_ns": 0, "busy_ns": 0, "borrowed_ns": 0, "lent_ns": 0, "waited_ns": 0}
    values |= {"memory_bytes": 0, "memory_peak_bytes": 0, **more}
    return Period(grant_id=grant, tenant="t", device="GPU-1", from_ns=at, to_ns=at + 1, used_ns=used, **values)


def move(grant="g-1", cause="", holder="", holder_tenant="", at=1, **more):
    return Move(grant, more.pop("tenant", "t"), "GPU-1", cause, holder, holder_tenant, at, at + 1, **more)


def attachment(name="x", ending="", at=1, to=5, grant="g-1", origin="lab2", **more):
    """Living, unless it has an ending."""
    link = {"address": "192.0.2.7", "link": "tls", "checked": "good", "bytes_in": 10, "bytes_out": 20, "rtt_us": 85}
    own = {"carrier": "example", "origin": origin, "uid": 1000, "from_ns": at, "to_ns": to, "ending": ending}
    return AttachmentRow(**{"attachment": name, "grant_id": grant, "tenant": "t", **own, **link, **more})


def row(name, ended=None, state="{}"):
    return GrantRow(name, None, "t", 0, "released" if ended else "active", state, 1, ended)


def batch(*rows):
    """A batch of grants' rows, periods, moves and attachments."""
    periods = [values(one) for one in rows if isinstance(one, Period)]
    moves = [MOVES.values(one) for one in rows if isinstance(one, Move)]
    attached = [ATTACHMENTS.values(one) for one in rows if isinstance(one, AttachmentRow)]
    grants = [one for one in rows if isinstance(one, GrantRow)]
    return Batch(grants=grants, periods=periods, moves=moves, attachments=attached)


def used(ledger, grant="g-1"):
    return ledger.totals(grant).get("GPU-1", Totals()).used_ns


def in_file(path, query="SELECT SUM(used_ns) FROM periods"):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()
