"""What moving memory cost, in the ledger: merged while it waits, rolled up, chained, and the same over kills."""

import sqlite3
import time
from contextlib import closing

import pytest
from msgspec.structs import replace
from run.waiting import until
from values.ledgerrows import batch, in_file, move, period, row

from gpushare.ledger import chain, recent_rows
from gpushare.ledger import recent as recents
from gpushare.ledger.entries import HELD, LARGEST, MOVES, REST, joined
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.queries import MovedBefore, moved
from gpushare.ledger.recent import Recent
from gpushare.ledger.schema import MOVING
from gpushare.ledger.usage import Span, Sums, added_up, snapshot
from gpushare.ledger.verify import verify

HOUR = 3600 * 10**9
DAY = 24 * HOUR
ALL = Span(0, LARGEST)


def test_seconds_of_one_cause_become_one_row_whatever_is_between_them(tmp_path):
    recent = Recent(tmp_path)
    for at in (1, 2, 50):
        recent.add([], [move(at=at, cause="ahead", out_bytes=5), move(at=at, hosted_mib_ms=2)])
    recent.add([], [move(at=60, holder="g-2", holder_tenant="b", stall_ns=7, stalls=1, stall_max_ns=7)])
    recent.add([], [move(at=3, holder="g-2", holder_tenant="b", stall_ns=2, stalls=1, stall_max_ns=2)])  # set back
    assert [(one.cause, one.from_ns, one.to_ns, one.out_bytes) for one in recent.moves()] == [
        ("ahead", 1, 51, 15),
        ("", 1, 51, 0),
        ("", 60, 61, 0),
    ]
    assert [(one.stall_ns, one.stalls, one.stall_max_ns) for one in recent.moves()][-1] == (9, 2, 7)
    recent.complete()
    recent.add([], [move(at=70, cause="ahead", out_bytes=1)])  # the first of the next period
    assert [one.out_bytes for one in recent.moves() if one.cause] == [15, 1]


def test_the_end_of_a_grant_completes_its_rows(tmp_path):
    recent = Recent(tmp_path)
    recent.add([], [move("a", out_bytes=1), move("b", out_bytes=1)])
    recent.save(row("a", ended=9))
    assert [one[0] for one in recent.batch(10).moves] == ["a"]


def test_too_many_are_merged_by_tenant(tmp_path, monkeypatch):
    monkeypatch.setattr(recents, "KEPT_MAX", 4)
    monkeypatch.setattr(recents, "_CHECK_EVERY", 1)
    recent = Recent(tmp_path)
    for number in range(20):
        recent.add([], [move(f"g-{number}", holder=f"h-{number}", holder_tenant="b", at=number, stall_ns=1)])
        recent.complete()
    found = recent.moves()
    assert sum(one.stall_ns for one in found) == 20
    assert [(one.holder, one.holder_tenant, one.stall_ns > 10) for one in found if one.grant_id == REST] == [
        ("", "b", True)
    ]
    assert len(found) <= 6


def test_they_reach_the_file_once_and_are_chained(path, opened):
    ledger = opened()
    ledger.save(row("g-1"))
    now = time.time_ns()
    for at in range(now, now + 5):
        ledger.add([period(at=at)], [move(at=at, cause="wake", in_bytes=10), move(at=at, hosted_mib_ms=3)])
    ledger.save(row("g-1", ended=9))
    until(lambda: path.exists() and in_file(path, "SELECT COUNT(*) FROM moves") == [(2,)], "they are in the file")
    assert in_file(path, "SELECT SUM(in_bytes), SUM(hosted_mib_ms), MIN(from_ns), MAX(to_ns) FROM moves") == [
        (50, 15, now, now + 5)
    ]
    sums = ledger.usage("tenant", ALL)["t",]
    assert (sums.in_bytes, sums.hosted_mib_ms, sums.wall_ns) == (50, 15, 5)
    ledger.close()
    found = verify(path)
    assert found["ok"] and found["tables"]["moves"]["rows"] == 2
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE moves SET in_bytes = 1 WHERE in_bytes > 0")
    assert "moves: row 1 is not what was written" in verify(path)["fault"]


def test_what_moved_before_is_known_after_a_restart(path, opened):
    ledger = opened()
    ledger.save(row("g-1"))
    ledger.add([], [move(cause="person", out_bytes=7, at=1), move(cause="wake", in_bytes=5, at=20)])
    ledger.add([], [move(stall_ns=3, at=4), move(holder="g-2", holder_tenant="b", stall_ns=4, at=8)])
    expected = MovedBefore(12, 9, "g-2", "b")
    assert ledger.moved(["g-1", "g-3"]) == {"g-1": expected, "g-3": MovedBefore()}
    ledger.close()
    again = opened()
    assert again.moved(["g-1"]) == {"g-1": expected}
    again.add([], [move(stall_ns=1, at=30), move(cause="wake", in_bytes=1, at=30)])
    assert again.moved(["g-1"]) == {"g-1": MovedBefore(13, 31, "", "")}


def test_who_waited_for_whom(tmp_path):
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    rows = [
        move("a1", tenant="a", hosted_mib_ms=9),
        move("a1", tenant="a", cause="wake", in_bytes=9),
        move("a1", tenant="a", stall_ns=1),
        move("a1", tenant="a", holder_tenant=HELD, stall_ns=2, stalls=1),
        move("a1", tenant="a", holder="b1", holder_tenant="b", stall_ns=3),
        move("a2", tenant="a", holder="b1", holder_tenant="b", stall_ns=4, at=9),
        move("b1", tenant="b", holder="a1", holder_tenant="a", stall_ns=5),
    ]
    file.write(1, batch(replace(period("a1"), tenant="a"), *rows[:-2]))

    def found(by, span=ALL):
        return {key: sums.stall_ns for key, sums in added_up(snapshot(path, [], rows[-2:]), by, span).items()}

    assert found("holder") == {
        ("a", "", ""): 1,
        ("a", HELD, ""): 2,
        ("a", "b", "b1"): 7,
        ("b", "a", "a1"): 5,
    }
    assert found("holder", Span(0, LARGEST, "b")) == {("b", "a", "a1"): 5}
    assert found("holder", Span(0, 9)) == {
        ("a", "", ""): 1,
        ("a", HELD, ""): 2,
        ("a", "b", "b1"): 3,
        ("b", "a", "a1"): 5,
    }
    assert found("grant") == {("a1", "a"): 6, ("a2", "a"): 4, ("b1", "b"): 5}
    assert added_up(snapshot(path), "tenant", ALL)["a",] == Sums(
        wall_ns=1, used_ns=1, hosted_mib_ms=9, in_bytes=9, stall_ns=6, stalls=1
    )


def test_they_become_hours_and_days_with_the_same_sums(tmp_path):
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    for at in range(10 * DAY, 12 * DAY, HOUR // 4):
        file.write(
            1,
            batch(
                move("a", cause="wake", at=at, in_bytes=3, tenant="a"),
                move("a", holder="b", holder_tenant="b", at=at, stall_ns=at % 7, stalls=1, stall_max_ns=at, tenant="a"),
                replace(move("a", at=at, hosted_mib_ms=11, tenant="a"), to_ns=at + HOUR // 4),
            ),
        )
    ways = ("tenant", "grant", "device", "charge", "holder")
    exact = {by: added_up(snapshot(path), by, ALL) for by in ways}
    while file.roll(11 * DAY + 4 * HOUR):
        pass
    counts = "SELECT (SELECT COUNT(*) FROM moves), (SELECT COUNT(*) FROM move_hours), (SELECT COUNT(*) FROM move_days)"
    assert in_file(path, counts) == [(3 * 4 * 23, 3 * 25, 0)]
    assert {by: added_up(snapshot(path), by, ALL) for by in ways} == exact
    while file.roll(60 * DAY):
        pass
    assert in_file(path, counts) == [(0, 0, 3 * 2)]
    assert {by: added_up(snapshot(path), by, ALL) for by in ways} == exact
    assert in_file(path, "SELECT MAX(stall_max_ns) FROM move_days") == [(12 * DAY - HOUR // 4,)]
    file.close()
    with closing(sqlite3.connect(path)) as db:
        assert [chain.fault(db, table)[0] for table in MOVING] == [""] * 3
        assert moved(db, MOVING, "a").copied_bytes == 3 * 8 * 24


def test_old_ones_are_forgotten(tmp_path):
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    for at in range(10):
        file.write(1, batch(move(at=at, out_bytes=1)))
    file.forget(5)
    assert in_file(path, "SELECT COUNT(*) FROM moves") == [(6,)]
    file.close()
    assert verify(path)["ok"]


def test_they_are_kept_when_a_damaged_ledger_is_replaced(path, opened):
    ledger = opened()
    ledger.save(row("g-1"))
    ledger.add([period()], [move(cause="person", out_bytes=7)])
    ledger.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")
    again = opened()
    assert again.usage("tenant", ALL)["t",].out_bytes == 7


def test_a_database_on_tmpfs_without_moves_is_gone_on_with(tmp_path):
    """It was made by an earlier version."""
    recent = Recent(tmp_path)
    recent.add([period(used=3)])
    recent.ask(lambda db: db.execute("DROP TABLE moves"))
    recent._db.close()
    again = Recent(tmp_path)
    assert again.on_tmpfs
    again.add([], [move(out_bytes=2)])
    assert ([one.used_ns for one in again.periods()], [one.out_bytes for one in again.moves()]) == ([3], [2])


@pytest.mark.parametrize("name", MOVES.numbers)
@pytest.mark.parametrize("value", [-1, 1 << 80])
def test_no_number_is_out_of_range(tmp_path, name, value):
    recent = Recent(tmp_path)
    recent.add([], [replace(move(), **{name: value})])
    [found] = recent.moves()
    assert all(0 <= getattr(found, one) <= LARGEST for one in MOVES.numbers)
    assert found.from_ns <= found.to_ns


def test_joined_rows_have_the_sums_and_the_longest():
    one = joined(move(at=5, stall_ns=3, stall_max_ns=3), move(at=2, stall_ns=9, stall_max_ns=2))
    assert (one.from_ns, one.to_ns, one.stall_ns, one.stall_max_ns) == (2, 6, 12, 3)
    assert set(recent_rows.KINDS) == {"periods", "moves"}
