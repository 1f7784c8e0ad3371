"""The ledger's disk is in any condition: the node goes on and says so, and the sums are right once the disk is back."""

import contextlib
import resource
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from run.waiting import until
from values.ledgerrows import in_file, period, row, used

from gpushare.ledger import entries, salvage
from gpushare.ledger import keeper as keepers
from gpushare.ledger import ledger as ledgers
from gpushare.ledger.entries import LARGEST, REST, Entries, Totals, sound
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.schema import SCHEMA_VERSION

HUGE = 1 << 63


@pytest.fixture
def small_disk(path, opened):
    """Makes the ledger's directory a disk of 400 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=400k,mode=755", "none", path.parent]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield path.parent
    subprocess.run(["umount", "-l", path.parent], check=True)


def fill(directory):
    ballast = directory / "ballast"
    with open(ballast, "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(256))
    return ballast


# Numbers.


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
    second = Ledger(copy / path.name, tmp_path / "run")
    assert second.open_grants() == [("g-1", '"99"')]
    assert second.ended_grant("g-2", str) == "x" * 1000
    assert used(second) == 100
    second.close()
    assert list((tmp_path / "run").iterdir()) == []
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


def test_a_disk_that_does_not_answer_holds_nobody_up(path, opened, monkeypatch):
    ledger = opened()
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 0.01)
    gate = threading.Event()
    write = keepers.LedgerFile.write
    monkeypatch.setattr(keepers.LedgerFile, "write", lambda *given: gate.wait() and write(*given))
    try:
        for at in range(1000):  # 10 s if each call waited
            ledger.add([period(at=at)])
            ledger.save(row("g-1"))
            assert ledger.totals("g-1") == {}
        assert "answer" in ledger.health.reason
        until(lambda: ledger.open_grants() == [("g-1", "{}")], "known without the disk")
    finally:
        gate.set()
    until(lambda: not ledger.health.reason, "answers again")
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 20)
    assert used(ledger) == 1000


def test_a_start_does_not_wait_for_a_disk_that_does_not_answer(path, opened, monkeypatch, tmp_path):
    for name in ("g-1", "g-2", "g-3"):
        (tmp_path / "run" / name).mkdir(parents=True)
    first = opened()
    for name in ("g-0", "g-1", "g-2"):
        first.save(row(name, state=f'"{name}"'))
    assert used(first) == 0  # so the thread has written the rows
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 0.01)
    gate = threading.Event()
    write, open_ledger = keepers.LedgerFile.write, salvage.open_ledger
    monkeypatch.setattr(keepers.LedgerFile, "write", lambda *given: gate.wait() and write(*given))
    first.save(row("g-2", state='"later"'))  # while nothing is written
    first.save(row("g-3", state='"new"'))
    # As if the first ledger were killed now.
    monkeypatch.setattr(ledgers, "_START_SECONDS", 0.01)
    monkeypatch.setattr(salvage, "open_ledger", lambda *given: gate.wait() and open_ledger(*given))
    second = opened()
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
    assert (second.run, len(second.open_grants())) == (run, 4)
    second.close()
    assert (run,) in in_file(path, "SELECT run FROM runs")


def test_what_waits_is_bounded_and_reported(monkeypatch):
    monkeypatch.setattr(entries, "KEPT_MAX", 10)
    kept = Entries()
    for number in range(100):
        kept.save(row(f"g-{number}", ended=None if number % 20 == 0 else number))
        kept.add(period(grant=f"g-{number}", used=number))
    assert len(kept.grants) == 10
    assert {f"g-{number}" for number in range(0, 100, 20)} <= set(kept.grants)
    assert kept.lost == 90
    assert len(kept.periods) == 11
    assert kept.tenant_totals(frozenset())["t"].used_ns == sum(range(100))
    assert kept.totals(REST)["GPU-1"].used_ns == sum(range(10, 100))


# Everything at once.


class Flaky:
    """Makes writes fail with the errors that a test puts into `errors`."""

    def __init__(self, monkeypatch):
        self.errors = []
        self.write = keepers.LedgerFile.write
        monkeypatch.setattr(keepers.LedgerFile, "write", lambda *given: self(*given))

    def __call__(self, file, run, batch):
        if self.errors and (error := self.errors.pop()):
            raise error
        self.write(file, run, batch)


FAULTS = [None, None, ledgers.FailedError("full"), keepers.DamagedError("torn"), OverflowError("bug")]


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]), st.integers(0, 100), st.sampled_from(FAULTS), st.sampled_from("aaaseek")
        ),
        max_size=40,
    ),
    period_s=st.sampled_from([0, 3600]),
)
def test_the_ledger_adds_up_whatever_fails(tmp_path_factory, steps, period_s):
    """With a long `period_s`, usage of living grants waits on tmpfs while that of ended ones is written."""
    top = tmp_path_factory.mktemp("sums")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keepers, "RETRY_SECONDS", 0.0)
        patch.setattr(keepers, "_RETRY_FACTOR", 0)
        flaky = Flaky(patch)

        def start():
            keeper = keepers.Keeper(top / "ledger.db", top / "run", None, period_s)
            keeper.start()
            # An earlier keeper's check would run in another process, and end with that.
            until(lambda: not [one for one in threading.enumerate() if one.name == "ledger-check"], "checked")
            return keeper

        keeper = start()
        answer, open_grants, states = {}, {}, {}
        for at, (grant, ns, fault, act) in enumerate(steps):
            flaky.errors = [fault]
            batch = Entries()
            batch.add(period(grant, used=ns, at=at))
            answer[grant] = answer.get(grant, 0) + ns
            if act == "s":
                open_grants[grant] = states[grant] = str(at)
                batch.save(row(grant, state=str(at)))
            if act == "e":
                open_grants.pop(grant, None)
                states[grant] = str(at)
                batch.save(row(grant, state=str(at), ended=at))
            keeper.take(batch)
            if act == "k":  # killed: another one begins with what is there
                keeper._file and keeper._file.close()
                keeper = start()
            assert {name: keeper.totals(name).get("GPU-1", Totals()).used_ns for name in answer} == answer
            assert {name: kept.state for name, kept in keeper.open.items()} == open_grants
        flaky.errors = []
        keeper.take(Entries(), pressing=True)
        keeper.take(Entries(), pressing=True)
        keeper.stop()
        assert keeper.waiting == 0
    assert dict(in_file(top / "ledger.db", "SELECT grant_id, SUM(used_ns) FROM periods GROUP BY 1")) == answer
    assert dict(in_file(top / "ledger.db", "SELECT id, state FROM grants")) == states
    assert in_file(top / "ledger.db", "SELECT COUNT(*) FROM quarantine") == [(0,)]
    assert in_file(top / "ledger.db", "PRAGMA user_version") == [(SCHEMA_VERSION,)]
