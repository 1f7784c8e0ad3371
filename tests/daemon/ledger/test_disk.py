"""The ledger's disk is in any condition: the node goes on, reports it, and the sums are right in the end."""

import resource
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
from machine.fulldisk import fill
from msgspec.structs import replace
from run.waiting import until
from values.ledgerrows import in_file, period, row, used

from gpushare.ledger import entries, salvage
from gpushare.ledger import ledger as ledgers
from gpushare.ledger import mover as movers
from gpushare.ledger.entries import LARGEST, sound
from gpushare.ledger.ledger import Ledger

HUGE = 1 << 63


@pytest.fixture
def small_disk(path, opened):
    """Makes the ledger's directory a disk of 520 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=520k,mode=755", "none", path.parent]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield path.parent
    subprocess.run(["umount", "-l", path.parent], check=True)


# Numbers.


@pytest.mark.promise("ledger-survives")
@pytest.mark.parametrize("number", [HUGE, HUGE - 1, 1 << 200, -1, -HUGE])
@pytest.mark.parametrize("name", entries.NUMBERS)
def test_no_number_is_too_large_for_the_ledger(number, name):
    written = sound(replace(period(), **{name: number}))
    assert all(0 <= getattr(written, one) <= LARGEST for one in entries.NUMBERS)
    assert written.to_ns >= written.from_ns


def test_sums_that_overflow_are_read(path, opened):
    ledger = opened()
    ledger.add([period(used=HUGE, waits=HUGE)])
    assert used(ledger) == LARGEST
    ledger.add([period(used=HUGE)])
    assert used(ledger) == LARGEST
    ledger.close()
    with closing(sqlite3.connect(path)) as database:  # as an earlier version wrote them
        database.execute("UPDATE periods SET used_ns = 9223372036854775807, waited_ns = -9223372036854775808")
        database.commit()
    again = opened()
    assert (used(again), again.totals("g-1")["GPU-1"].waited_ns) == (LARGEST, 0)
    assert again.tenant_totals([])["t"].used_ns == LARGEST


# Full.


def test_a_full_disk_is_caught_up_with(small_disk, path, opened):
    ledger = opened()
    ledger.save(row("g-1"))
    ballast = fill(small_disk)
    for at in range(400):
        ledger.add([period(at=at)])
        ledger.save(row(f"g-{at % 7}", ended=at or None, state="x" * 500))
    assert used(ledger) == 400
    health = ledger.health
    assert "full" in health.reason
    assert health.waiting >= 8
    assert ledger.ended_grant("g-3", str) == "x" * 500
    ballast.unlink()
    until(lambda: not ledger.health.reason, "written again")
    assert used(ledger) == 400
    assert ledger.health.waiting == 0
    ledger.close()
    assert in_file(path) == [(400,)]


def test_what_waits_for_a_full_disk_outlives_a_kill(small_disk, path, opened, tmp_path):
    ledger = opened()
    ballast = fill(small_disk)
    for at in range(100):
        ledger.add([period(at=at)])
        ledger.save(row("g-1", state=f'"{at}"'))
        ledger.save(row("g-2", ended=at + 1, state="x" * 1000))
    assert ledger.ended_grant("g-2", str) == "x" * 1000  # so the ledger's thread has everything
    assert ledger.health.reason
    # As after a kill, nothing more is written; another ledger gets what was written.
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (path, Path(f"{path}-wal")):
        (copy / name.name).write_bytes(name.read_bytes())
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    second = Ledger(copy / path.name, tmp_path / "killed")
    assert second.open_grants() == [("g-1", '"99"')]
    assert second.ended_grant("g-2", str) == "x" * 1000
    assert used(second) == 100
    second.save(row("g-1", ended=1))
    second.close()
    assert list((tmp_path / "killed").iterdir()) == []
    ballast.unlink()


def test_a_full_disk_at_the_first_start(small_disk, path, opened):
    ballast = fill(small_disk)
    ledger = opened()
    assert ledger.run > 1_000_000_000, "a number that no other run has"
    assert not ledger.readable or ledger.open_grants() == []
    ledger.save(row("g-1"))
    ledger.add([period()])
    assert used(ledger) == 1
    assert ledger.open_grants() == [("g-1", "{}")]
    assert ledger.health.reason
    ballast.unlink()
    until(lambda: not ledger.health.reason, "written")
    ledger.close()
    assert in_file(path) == [(1,)]
    assert in_file(path, "SELECT run FROM runs") == [(ledger.run,)]


def test_a_file_that_may_not_grow(path, opened):
    """EFBIG in place of ENOSPC, without a mount."""
    ledger = opened()
    ledger.save(row("g-1"))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))
    try:
        ledger.add([period()])
        ledger.save(row("g-2"))
        assert used(ledger) == 1
        assert ledger.health.reason
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    until(lambda: not ledger.health.reason, "written")
    ledger.close()
    assert in_file(path) == [(1,)]
    assert in_file(path, "SELECT id FROM grants ORDER BY id") == [("g-1",), ("g-2",)]


def test_a_disk_that_becomes_read_only(small_disk, path, opened):
    first = opened()
    first.save(row("g-1", state='"of before"'))
    first.add([period()])
    first.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    ledger = opened()
    assert ledger.health.reason
    assert ledger.readable
    assert ledger.open_grants() == [("g-1", '"of before"')]
    ledger.save(row("g-2"))
    ledger.add([period()])
    assert used(ledger) == 2
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    until(lambda: not ledger.health.reason, "written")
    ledger.close()
    assert in_file(path) == [(2,)]


def test_a_disk_that_does_not_answer_delays_no_call(opened, answering, monkeypatch):
    ledger = opened()
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 0.01)
    for at in range(1000):  # 10 s if each call waited
        ledger.add([period(at=at)])
        ledger.save(row("g-1"))
        assert ledger.totals("g-1") == {}
    assert "answer" in ledger.health.reason
    assert ledger.open_grants() == [("g-1", "{}")]
    answering.set()
    until(lambda: not ledger.health.reason, "answers again")
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 20)
    assert used(ledger) == 1000


def test_a_start_does_not_wait_for_a_disk_that_does_not_answer(path, opened, monkeypatch, tmp_path):
    first = opened()
    for name in ("g-1", "g-2"):
        first.save(row(name, state=f'"{name}"'))
    assert used(first) == 0  # so the thread has written the rows
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 0.01)
    gate = threading.Event()
    write, open_ledger = movers.LedgerFile.write, salvage.open_ledger
    monkeypatch.setattr(movers.LedgerFile, "write", lambda *given: gate.wait() and write(*given))
    first.save(row("g-2", state='"later"'))  # while nothing is written
    first.save(row("g-3", state='"new"'))
    # As if the first ledger were killed now.
    monkeypatch.setattr(ledgers, "_START_SECONDS", 0.01)
    monkeypatch.setattr(salvage, "open_ledger", lambda *given: gate.wait() and open_ledger(*given))
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    second = Ledger(path, tmp_path / "killed")
    try:
        assert sorted(second.open_grants()) == [("g-1", '"g-1"'), ("g-2", '"later"'), ("g-3", '"new"')]
        assert not second.readable
        assert second.health.reason
        run = second.run
        assert run > first.run
    finally:
        gate.set()
    until(lambda: not second.health.reason, "answers")
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 20)
    assert second.readable
    assert (second.run, len(second.open_grants())) == (run, 3)
    second.close()
    assert (run,) in in_file(path, "SELECT run FROM runs")
