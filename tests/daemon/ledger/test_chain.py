"""Rows of the ledger are chained: any change to its file is found; forgotten old rows are not a fault."""

import hashlib
import json
import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from values.ledgerrows import batch, in_file, period

from gpushare.ledger import chain
from gpushare.ledger.entries import PERIODS
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.schema import CHAINED

ROWS = 12
NUMBERS = [name for name in chain.COLUMNS if name.endswith(("_ns", "_bytes", "_ms", "waits", "reclaims"))]


def written(path, rows=ROWS, first=0):
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    for number in range(first, first + rows):
        file.write(1, batch(period(f"g-{number}", used=number, at=10 * number)))
    return file


def fault(path, table="periods"):
    with closing(sqlite3.connect(path)) as db:
        return chain.fault(db, table)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("chain") / "ledger.db"
    written(path).close()
    assert fault(path) == ("", ROWS, 0)
    return path.read_bytes()


KINDS = ("text", "delete", "swap", "insert", "hash", "cut", *NUMBERS)


@pytest.mark.promise("ledger-changes-found")
@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(KINDS), st.integers(1, ROWS), st.integers(1, ROWS - 1))
def test_any_one_change_is_found(template, tmp_path_factory, kind, row, away):
    path = tmp_path_factory.mktemp("change") / "ledger.db"
    path.write_bytes(template)
    other = (row + away - 1) % ROWS + 1
    # The row that is reported, and the number of right rows before it.
    named, right = row, row - 1
    with closing(sqlite3.connect(path)) as db, db:
        match kind:
            case "text":
                name = ("grant_id", "tenant", "device", "origin")[away % 4]
                db.execute(f"UPDATE periods SET {name} = 'other' WHERE id = ?", (row,))
            case "delete":
                db.execute("DELETE FROM periods WHERE id = ?", (row,))
                named = row + 1 if row < ROWS else row - 1
            case "swap":
                db.execute("UPDATE periods SET id = -1 WHERE id = ?", (row,))
                db.execute("UPDATE periods SET id = ? WHERE id = ?", (row, other))
                db.execute("UPDATE periods SET id = ? WHERE id = -1", (other,))
                named, right = min(row, other), min(row, other) - 1
            case "insert":
                names = ", ".join(chain.COLUMNS)
                copy = f"SELECT {ROWS + 1}, {names}, hash FROM periods WHERE id = ?"
                db.execute(f"INSERT INTO periods (id, {names}, hash) {copy}", (row,))
                named, right = ROWS + 1, ROWS
            case "hash":
                db.execute("UPDATE periods SET hash = zeroblob(32) WHERE id = ?", (row,))
            case "cut":
                db.execute("DELETE FROM periods WHERE id >= ?", (row,))
                named = row - 1
            case _:
                db.execute(f"UPDATE periods SET {kind} = 77 + {kind} WHERE id = ?", (row,))
    answer, before, _ = fault(path)
    assert (f"row {named} " in answer or f"rows after {named} " in answer) and before == right, answer


def test_rows_that_others_put_there_lose_none_of_ours(tmp_path):
    path = tmp_path / "ledger.db"
    written(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        names = ", ".join(chain.COLUMNS)
        db.execute(f"INSERT INTO periods ({names}) SELECT {names} FROM periods LIMIT 3")
    file = written(path, 4, ROWS)
    assert file.aside == 0
    file.close()
    assert in_file(path, "SELECT COUNT(*), MAX(id) FROM periods WHERE hash IS NOT NULL") == [(ROWS + 4, ROWS + 7)]
    assert f"row {ROWS + 1} is not what was written" in fault(path)[0]


def test_what_is_forgotten_is_no_fault_and_what_is_in_between_is(tmp_path):
    path = tmp_path / "ledger.db"
    file = written(path)
    file.forget(45)  # rows 1 to 5 end before 45
    assert in_file(path, "SELECT MIN(id), MAX(id) FROM periods") == [(6, ROWS)]
    assert fault(path) == ("", ROWS - 5, 0)
    file.close()
    written(path, 3, ROWS).close()
    assert fault(path) == ("", ROWS - 2, 0)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM periods WHERE id = 6")
    assert "row 7 is not what was written, or a row between 5 and it is gone" in fault(path)[0]


def test_all_may_be_forgotten(tmp_path):
    path = tmp_path / "ledger.db"
    file = written(path)
    file.forget(1 << 60)
    assert fault(path) == ("", 0, 0)
    file.close()
    written(path, 2).close()
    assert fault(path) == ("", 2, 0)
    assert [fault(path, table) for table in CHAINED[1:]] == [("", 0, 0)] * 2


def test_a_clock_that_was_ahead_holds_nothing_up(tmp_path):
    path = tmp_path / "ledger.db"
    file = written(path, 3)
    file.write(1, batch(period("g-future", at=1 << 61)))
    file.close()
    file = written(path, 3, 4)
    file.forget(45)
    assert [name for (name,) in in_file(path, "SELECT grant_id FROM periods")] == ["g-5", "g-6"]
    assert fault(path)[0] == ""


@pytest.mark.parametrize(
    ("extra", "origin", "hashed"),
    [(0, "", ()), (5, "", (5,)), (0, "lab2", (0, "lab2")), (5, "lab2", (5, "lab2"))],
    ids=["before extra_ns", "before origin", "origin alone", "both"],
)
def test_a_row_has_the_hash_that_the_version_gave_it_which_wrote_it(extra, origin, hashed):
    one = period("g-1", used=3, at=10, extra_ns=extra, origin=origin)
    before, first = b"\x07" * 32, PERIODS.values(one)[: PERIODS.columns.index("extra_ns")]
    text = json.dumps([9, 4, *first, *hashed], separators=(",", ":"))
    found = chain.following("periods", before, 9, (4, *PERIODS.values(one)))
    assert found == hashlib.sha256(before + text.encode()).digest()
