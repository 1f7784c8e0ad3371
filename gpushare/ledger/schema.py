"""The tables of the ledger's file."""

from gpushare.ledger.entries import ATTACHMENTS, MOVES, PERIODS

SCHEMA_VERSION = 11
CHAINED = ("periods", "hours", "days")
MOVING = ("moves", "move_hours", "move_days")
"""Tables of what grants got, and of what moving their memory cost. Rows of each are later rolled up into the next."""
ATTACHED = "attachments"
"""The table of attachments that have ended."""
KINDS = dict.fromkeys(CHAINED, PERIODS) | dict.fromkeys(MOVING, MOVES) | {ATTACHED: ATTACHMENTS}
"""The tables whose rows are chained (gpushare/ledger/chain.py), and the kind of their rows."""
LATER = dict.fromkeys(CHAINED, ("extra_ns", "origin"))
"""Columns at the end of a table that its first rows did not have. A row's hash does not cover those at its end that are
0 or empty, so that the chain of a file from before them holds."""
_EMPTY = "TEXT NOT NULL DEFAULT ''"


def _made(table: str) -> str:
    kind = KINDS[table]
    text = {name: _EMPTY if name in LATER.get(table, ()) else "TEXT NOT NULL" for name in kind.texts}
    columns = ", ".join(f"{name} {text.get(name, 'INTEGER NOT NULL DEFAULT 0')}" for name in kind.columns)
    return f"""
CREATE TABLE {table} (id INTEGER PRIMARY KEY, run INTEGER NOT NULL, {columns}, hash BLOB) STRICT;
CREATE INDEX {table}_time ON {table} (to_ns);
CREATE INDEX {table}_grant ON {table} (grant_id);
INSERT INTO chains VALUES ('{table}', 0, zeroblob(32), 0, zeroblob(32));
"""


# `moved`: how many of the rows that were recorded in this boot of the machine are in the file (recent.py: `seq`).
_MOVED = "moved INTEGER NOT NULL DEFAULT 0"
# `quarantine`: rows that could not be used. `source`: the table. `row_id`: its rowid there. `content`: what it had.
# `parts`: of gangs; `id`: whose, of which gang, which part; `state`: daemon.grants.preparing.PartRecord as JSON.
# `attached`: attachments that have not ended; when they have they are in `attachments`.
# `chains`: `anchor_id`, `anchor_hash`: of the last row that is no more in the table, or was there before the chain.
_SCHEMA = f"""
CREATE TABLE runs (
  run INTEGER PRIMARY KEY, pid INTEGER NOT NULL, boot_id TEXT NOT NULL, started_ns INTEGER NOT NULL,
  seen_ns INTEGER NOT NULL, ended_ns INTEGER, gap_ns INTEGER NOT NULL, {_MOVED}
) STRICT;
CREATE TABLE grants (
  id TEXT PRIMARY KEY, key TEXT, tenant TEXT NOT NULL, uid INTEGER NOT NULL, phase TEXT NOT NULL, state TEXT NOT NULL,
  created_ns INTEGER NOT NULL, ended_ns INTEGER
) STRICT;
CREATE INDEX grants_open ON grants (id) WHERE ended_ns IS NULL;
CREATE INDEX grants_ended ON grants (ended_ns) WHERE ended_ns IS NOT NULL;
CREATE TABLE devices (id TEXT PRIMARY KEY, state TEXT NOT NULL, seen_ns INTEGER NOT NULL) STRICT;
CREATE TABLE contexts (
  device TEXT NOT NULL, driver TEXT NOT NULL, bytes INTEGER NOT NULL, listed_bytes INTEGER NOT NULL,
  PRIMARY KEY (device, driver)
) STRICT;
CREATE TABLE parts (id TEXT PRIMARY KEY, state TEXT NOT NULL, at_ns INTEGER NOT NULL) STRICT;
CREATE TABLE quarantine (
  id INTEGER PRIMARY KEY, source TEXT NOT NULL, row_id INTEGER, content BLOB, reason TEXT NOT NULL,
  at_ns INTEGER NOT NULL
) STRICT;
CREATE TABLE chains (
  name TEXT PRIMARY KEY, anchor_id INTEGER NOT NULL, anchor_hash BLOB NOT NULL, head_id INTEGER NOT NULL,
  head_hash BLOB NOT NULL
) STRICT;
""" + "".join(map(_made, (*CHAINED, *MOVING)))
_LIVING = ", ".join(
    f"{name} {'TEXT' if name in ATTACHMENTS.texts else 'INTEGER'} NOT NULL" for name in ATTACHMENTS.columns
)
_ATTACHMENTS = f"""
CREATE TABLE attached ({_LIVING}, PRIMARY KEY (attachment)) STRICT;
{_made(ATTACHED)}
CREATE INDEX {ATTACHED}_name ON {ATTACHED} (attachment);
"""
_OF_MOVES = "".join(map(_made, MOVING))
_EXTRA = "".join(f"ALTER TABLE {table} ADD COLUMN extra_ns INTEGER NOT NULL DEFAULT 0;" for table in CHAINED)
_REMOTE = "".join(f"ALTER TABLE {table} ADD COLUMN origin {_EMPTY};" for table in CHAINED) + _ATTACHMENTS
STEPS = {
    0: _SCHEMA + _ATTACHMENTS,
    7: f"ALTER TABLE runs ADD COLUMN {_MOVED};{_OF_MOVES}{_EXTRA}{_REMOTE}",
    8: f"{_OF_MOVES}{_EXTRA}{_REMOTE}",
    9: f"{_EXTRA}{_REMOTE}",
    10: _REMOTE,
}
"""What makes a file of this version, or an empty one, one of SCHEMA_VERSION. Others are replaced (salvage.py)."""
