"""Who used grants from other machines, in the ledger: kept over kills, written once, chained, and forgotten in time."""

import shutil
import sqlite3
import time
from contextlib import closing

import pytest
from msgspec.structs import replace
from run.waiting import until
from values.ledgerrows import attachment, batch, in_file, period, row

from gpushare.ledger import recent as recents
from gpushare.ledger.entries import ATTACHMENTS, IDLE, LARGEST, origins
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.recent import Recent
from gpushare.ledger.usage import Span, added_up, snapshot
from gpushare.ledger.verify import verify

HOUR = 3600 * 10**9
ALL = Span(0, LARGEST)


def test_a_kill_loses_nothing_and_the_next_run_knows_which_had_not_ended(opened, answering, tmp_path):
    ledger = opened()
    for size in range(100):
        ledger.attachment(attachment("x", at=1, bytes_in=size))
    ledger.attachment(attachment("y", at=2))
    ledger.attachment(attachment("y", "lost", at=2, to=9, bytes_in=7))
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    answering.set()
    second = Ledger(tmp_path / "empty.db", tmp_path / "killed")
    assert [(one.attachment, one.bytes_in) for one in second.attached()] == [("x", 99)]
    assert [(one.attachment, one.ending, one.bytes_in) for one in second.ended_attachments(9)] == [("y", "lost", 7)]
    second.attachment(replace(second.attached()[0], ending="relay"))  # the relay does not know it
    assert second.attached() == []
    second.close()
    assert verify(tmp_path / "empty.db")["tables"]["attachments"]["rows"] == 2


def test_one_that_lives_outlives_the_machine_too(path, opened):
    """tmpfs is empty after a reboot; the file has what was known a minute before."""
    ledger = opened()
    ledger.attachment(attachment("x", bytes_in=5))
    until(lambda: path.exists() and in_file(path, "SELECT bytes_in FROM attached") == [(5,)], "it is in the file")
    ledger.attachment(attachment("x", bytes_in=6))
    ledger.close()
    again = Ledger(path)
    assert [(one.attachment, one.bytes_in) for one in again.attached()] == [("x", 6)]
    again.close()


def test_the_disk_gets_it_at_the_pace_of_periods(path, tmp_path):
    ledger = Ledger(path := tmp_path / "ledger.db", tmp_path / "run", None, 3600)
    ledger.totals("g-1")  # the first turn writes all
    for size in range(50):
        ledger.attachment(attachment("x", bytes_in=size))
        ledger.totals("g-1")
    assert in_file(path, "SELECT COUNT(*) FROM attached") == [(0,)]
    assert ledger.attached()[0].bytes_in == 49
    ledger.attachment(attachment("x", "detached"))
    ledger.totals("g-1")
    assert in_file(path, "SELECT attachment, ending, hash IS NULL FROM attachments") == [("x", "detached", 0)]
    ledger.close()


def test_an_end_is_recorded_once_however_often_it_is_told(path, opened):
    for _ in range(3):
        ledger = opened()
        for at in (5, 6):
            ledger.attachment(attachment("x", "lost", to=at))
            ledger.totals("g-1")
        assert [one.to_ns for one in ledger.ended_attachments(9)] == [5]
        ledger.close()
    assert in_file(path, "SELECT COUNT(*), MAX(to_ns) FROM attachments") == [(1, 5)]
    assert verify(path)["ok"]


def test_questions_of_those_that_have_ended(opened):
    ledger = opened()
    for number in range(6):
        ledger.attachment(attachment(f"x{number}", "detached", to=10 + number, grant=f"g-{number % 2}"))
        if number == 3:
            ledger.totals("g-1")
    ledger.attachment(attachment("y"))

    def found(*asked, **more):
        return [one.attachment for one in ledger.ended_attachments(*asked, **more)]

    assert found(9) == ["x5", "x4", "x3", "x2", "x1", "x0"]
    assert found(2) == ["x5", "x4"]
    assert found(9, 14) == ["x5", "x4"]
    assert found(9, grant="g-1") == ["x5", "x3", "x1"]
    assert found(1, 12, "g-0") == ["x4"]
    assert found(9, 1 << 70) == []


@pytest.mark.promise("ledger-changes-found")
@pytest.mark.parametrize("column", [*ATTACHMENTS.columns, "", "hash"])
def test_a_changed_or_removed_one_is_found(tmp_path, column):
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    file.write(1, batch(*(attachment(f"x{number}", "lost", to=number + 5) for number in range(3))))
    file.close()
    assert verify(path)["ok"]
    number = column in ATTACHMENTS.numbers
    with closing(sqlite3.connect(path)) as db, db:
        change = f"UPDATE attachments SET {column} = {'9999' if number else 'CAST(9999 AS TEXT)'}"
        change = change.replace("CAST(9999 AS TEXT)", "zeroblob(32)") if column == "hash" else change
        db.execute(f"{change if column else 'DELETE FROM attachments'} WHERE id = 2")
    assert verify(path)["fault"].startswith(f"attachments: row {2 if column else 3} is not what was written")


def test_who_used_a_device_from_where_is_exact_when_rows_are_rolled_up(tmp_path):
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    day = 24 * HOUR
    for number, at in enumerate(range(10 * day, 12 * day, HOUR // 4)):
        hosts = ("", "lab2", "lab3", "lab2, lab3")[number % 4]
        lasts = replace(period("g-1", used=number, at=at, origin=hosts), to_ns=at + HOUR // 4)
        idle = replace(lasts, grant_id=IDLE, tenant=IDLE, origin="", used_ns=HOUR // 4 - number)
        file.write(1, batch(lasts, idle))
    exact = {by: added_up(snapshot(path), by, ALL) for by in ("origin", "tenant")}
    assert exact["origin"]["lab2", "t"].used_ns == sum(range(1, 192, 4))
    assert {hosts for hosts, tenant in exact["origin"] if tenant == "t"} == {"", "lab2", "lab3", "lab2, lab3"}
    for now in (12 * day + 4 * HOUR, 60 * day):
        while file.roll(now):
            pass
        assert {by: added_up(snapshot(path), by, ALL) for by in ("origin", "tenant")} == exact
    assert in_file(path, "SELECT COUNT(*) FROM days WHERE tenant = 't'") == [(8,)]
    file.close()
    assert verify(path)["ok"]
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE days SET origin = 'lab9' WHERE id = 3")
    assert "days: row 3 is not what was written" in verify(path)["fault"]


def test_periods_of_other_machines_stay_apart_on_tmpfs(tmp_path):
    recent = Recent(tmp_path)
    for at, hosts in enumerate(("", "", "lab2", "lab2", "")):
        recent.add([period(at=at, origin=hosts)])
    assert [(one.origin, one.from_ns, one.to_ns) for one in recent.periods()] == [
        ("", 0, 2),
        ("lab2", 2, 4),
        ("", 4, 5),
    ]


def test_many_machines_are_a_number():
    assert [origins(names) for names in ([], ["b"], ["b", "a", "b"], "abc", "abcd")] == [
        *("", "b", "a, b", "a, b, c", "4 hosts")
    ]


def test_old_ones_are_forgotten_and_the_chain_holds(tmp_path):
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    file.write(1, batch(attachment("living", to=1), *(attachment(f"x{n}", "lost", to=n + 5) for n in range(10))))
    file.forget(10)
    assert in_file(path, "SELECT MIN(to_ns), COUNT(*) FROM attachments") == [(10, 5)]
    assert in_file(path, "SELECT attachment FROM attached") == [("living",)]
    file.close()
    assert verify(path)["ok"]


def test_they_are_kept_when_a_damaged_ledger_is_replaced(path, opened):
    ledger = opened()
    ledger.save(row("g-1"))
    ledger.attachment(attachment("x", bytes_in=3))
    ledger.attachment(attachment("y", "lost"))
    ledger.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")
    again = opened()
    assert [one.bytes_in for one in again.attached()] == [3]
    assert [one.attachment for one in again.ended_attachments(9)] == ["y"]


def test_what_waits_is_bounded_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(recents, "KEPT_MAX", 10)
    monkeypatch.setattr(recents, "_CHECK_EVERY", 1)
    recent = Recent(tmp_path)
    recent.attach(attachment("living"))
    for number in range(100):
        recent.attach(attachment(f"x{number}", "lost", to=number + 5))
    assert (recent.lost, len(recent.batch(1000).attachments)) == (90, 10)
    assert [one.attachment for one in recent.attached()] == ["living"]


@pytest.mark.parametrize("name", ATTACHMENTS.numbers)
@pytest.mark.parametrize("value", [-1, 1 << 80])
def test_no_number_is_out_of_range(path, opened, name, value):
    ledger = opened()
    ledger.attachment(replace(attachment("x", "lost", at=time.time_ns()), **{name: value}))
    [found] = ledger.ended_attachments(9)
    assert all(0 <= getattr(found, one) <= LARGEST for one in ATTACHMENTS.numbers)
    ledger.close()
    assert in_file(path, "SELECT COUNT(*) FROM quarantine") == [(0,)]
