"""The ledger's tables, and how a file of an earlier version gets them."""

SCHEMA_VERSION = 7
_SCHEMA = """
CREATE TABLE runs (
  run INTEGER PRIMARY KEY, pid INTEGER NOT NULL, boot_id TEXT NOT NULL, started_ns INTEGER NOT NULL,
  seen_ns INTEGER NOT NULL, ended_ns INTEGER, gap_ns INTEGER NOT NULL
) STRICT;
CREATE TABLE grants (
  id TEXT PRIMARY KEY, key TEXT, tenant TEXT NOT NULL, uid INTEGER NOT NULL, phase TEXT NOT NULL, state TEXT NOT NULL,
  created_ns INTEGER NOT NULL, ended_ns INTEGER
) STRICT;
CREATE INDEX grants_open ON grants (id) WHERE ended_ns IS NULL;
CREATE TABLE periods (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs, grant_id TEXT NOT NULL, tenant TEXT NOT NULL,
  device TEXT NOT NULL, from_ns INTEGER NOT NULL, to_ns INTEGER NOT NULL, granted_ns INTEGER NOT NULL,
  used_ns INTEGER NOT NULL, busy_ns INTEGER NOT NULL, borrowed_ns INTEGER NOT NULL, lent_ns INTEGER NOT NULL,
  waited_ns INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, memory_peak_bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX periods_time ON periods (to_ns);
CREATE INDEX periods_grant ON periods (grant_id);
CREATE TABLE contexts (
  device TEXT NOT NULL, driver TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (device, driver)
) STRICT;
"""
_DEVICES = "CREATE TABLE devices (id TEXT PRIMARY KEY, state TEXT NOT NULL, seen_ns INTEGER NOT NULL) STRICT;"
_RECEIPTS = " ".join(
    f"ALTER TABLE periods ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0;"
    for name in ("waits", "wait_max_ns", "reclaims", "reclaim_ns", "reclaim_max_ns")
)
# `source`: the table. `row_id`: its rowid there. `content`: the part that could not be used.
_QUARANTINE = """
CREATE TABLE quarantine (
  id INTEGER PRIMARY KEY, source TEXT NOT NULL, row_id INTEGER, content BLOB, reason TEXT NOT NULL,
  at_ns INTEGER NOT NULL
) STRICT;
CREATE INDEX grants_ended ON grants (ended_ns) WHERE ended_ns IS NOT NULL;
"""
CHAINED = ("periods", "hours", "days")
"""Tables whose rows are chained (gpushare/ledger/chain.py). Rows of each are later rolled up into the next one."""
_ROLLED = "".join(
    f"""
CREATE TABLE {name} (
  id INTEGER PRIMARY KEY, run INTEGER NOT NULL, grant_id TEXT NOT NULL, tenant TEXT NOT NULL,
  device TEXT NOT NULL, from_ns INTEGER NOT NULL, to_ns INTEGER NOT NULL, granted_ns INTEGER NOT NULL,
  used_ns INTEGER NOT NULL, busy_ns INTEGER NOT NULL, borrowed_ns INTEGER NOT NULL, lent_ns INTEGER NOT NULL,
  waited_ns INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, memory_peak_bytes INTEGER NOT NULL,
  waits INTEGER NOT NULL, wait_max_ns INTEGER NOT NULL, reclaims INTEGER NOT NULL, reclaim_ns INTEGER NOT NULL,
  reclaim_max_ns INTEGER NOT NULL, scavenged_ns INTEGER NOT NULL, memory_mib_ms INTEGER NOT NULL,
  waited_owed_ns INTEGER NOT NULL, waited_limit_ns INTEGER NOT NULL, launches INTEGER NOT NULL, hash BLOB
) STRICT;
CREATE INDEX {name}_time ON {name} (to_ns);
CREATE INDEX {name}_grant ON {name} (grant_id);
"""
    for name in CHAINED[1:]
)
# `anchor_id`, `anchor_hash`: of the last row that is not in the table any more, or was there before the chain.
_LINKS = """
ALTER TABLE periods ADD COLUMN scavenged_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE periods ADD COLUMN memory_mib_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE periods ADD COLUMN waited_owed_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE periods ADD COLUMN waited_limit_ns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE periods ADD COLUMN launches INTEGER NOT NULL DEFAULT 0;
ALTER TABLE periods ADD COLUMN hash BLOB;
CREATE TABLE chains (
  name TEXT PRIMARY KEY, anchor_id INTEGER NOT NULL, anchor_hash BLOB NOT NULL, head_id INTEGER NOT NULL,
  head_hash BLOB NOT NULL
) STRICT;
"""
_BEGIN = "".join(
    f"INSERT INTO chains SELECT '{name}', n, zeroblob(32), n, zeroblob(32) "  # noqa: S608 - names of our own
    f"FROM (SELECT COALESCE(MAX(id), 0) AS n FROM {name});"
    for name in CHAINED
)
# `id`: whose, of which gang, which part. `state`: gpushare.daemon.grants.preparing.PartRecord as JSON.
_PARTS = "CREATE TABLE parts (id TEXT PRIMARY KEY, state TEXT NOT NULL, at_ns INTEGER NOT NULL) STRICT;"
# Costs of contexts are measured again: it is not known which part of the old ones the driver lists.
_LISTED = """
DROP TABLE contexts;
CREATE TABLE contexts (
  device TEXT NOT NULL, driver TEXT NOT NULL, bytes INTEGER NOT NULL, listed_bytes INTEGER NOT NULL,
  PRIMARY KEY (device, driver)
) STRICT;
"""
# Migrations, by the version of the file that is found: that step and all later ones run.
STEPS = {0: _SCHEMA, 1: _DEVICES, 2: _RECEIPTS, 3: _QUARANTINE, 4: f"{_LINKS}{_ROLLED}{_BEGIN}", 5: _PARTS, 6: _LISTED}
