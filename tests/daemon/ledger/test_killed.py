"""What is saved survives a kill at any moment, is in the file exactly once, and no caller waits for the disk."""

import os
import shutil
import sqlite3
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.fulldisk import fill
from run.waiting import until
from values.ledgerrows import attachment, in_file, move, period, row, used

from gpushare.errors import FailedError
from gpushare.ledger import ledger as ledgers
from gpushare.ledger import mover as movers
from gpushare.ledger import recent as recents
from gpushare.ledger import salvage
from gpushare.ledger.entries import REST
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.recent import Recent
from gpushare.ledger.schema import SCHEMA_VERSION
from gpushare.ledger.sqlite_file import DamagedError


def test_saving_waits_for_no_disk_and_a_kill_loses_nothing(opened, answering, tmp_path, monkeypatch):
    ledger = opened()
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 10**6)
    for number in range(100):
        ledger.save(row("g-1", state=f'"{number}"'))
        ledger.save(row(f"h-{number}", ended=number + 1))
    ledger.save_part("p", '"one"')
    ledger.save_part("q", '"two"')
    ledger.save_part("q", "")
    ledger.save_devices({"GPU-1": '"a"'})
    ledger.add([period()])
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    answering.set()
    second = Ledger(tmp_path / "empty.db", tmp_path / "killed")
    assert (second.open_grants(), second.parts()) == ([("g-1", '"99"')], {"p": '"one"'})
    assert len(second.ended_grants(1000, str)) == 100
    assert (second.devices(str), used(second)) == (['"a"'], 1)
    second.save(row("g-1", ended=1))
    second.save_part("p", "")
    second.close()
    assert list((tmp_path / "killed").iterdir()) == []


def test_rows_reach_the_file_without_a_question(path, opened):
    ledger = opened()
    ledger.save(row("g-1"))
    until(lambda: in_file(path, "SELECT id FROM grants") == [("g-1",)], "written")
    until(lambda: not ledger._recent.waiting(), "nothing waits")


def test_without_tmpfs_saving_waits_for_the_disk(path, opened):
    ledger = opened(tmpfs=False)
    ledger.save(row("g-1"))
    assert in_file(path, "SELECT id FROM grants") == [("g-1",)]


def test_no_caller_waits_long_for_a_disk_that_does_not_answer(path, opened, answering, monkeypatch):
    ledger = opened(tmpfs=False)
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 0.01)
    for _ in range(1000):  # 10 s if each call waited
        ledger.save(row("g-1"))
    assert "answer" in ledger.health.reason
    answering.set()
    until(lambda: not ledger.health.reason, "answers again")


def test_a_disk_that_does_not_answer_is_noticed_without_a_question(opened, answering, monkeypatch):
    monkeypatch.setattr(ledgers, "_SLOW_SECONDS", 0.01)
    ledger = opened()
    ledger.save(row("g-1"))
    until(lambda: "answer" in ledger.health.reason, "noticed")
    answering.set()
    until(lambda: not ledger.health.reason, "answers again")


def test_what_is_saved_together_is_written_together(path, opened):
    """Even if another caller makes the thread write in between, and if the ledger is damaged later."""
    ledger = opened()
    with ledger.together():
        ledger.save(row("g-1"))
        other = threading.Thread(target=ledger.totals, args=("g-1",))
        other.start()
        other.join(0.05)
        with closing(sqlite3.connect(path)) as file:
            assert file.execute("SELECT COUNT(*) FROM grants").fetchone() == (0,)
        ledger.save_part("p", '"one"')
    other.join()
    ledger.save_part("q", '"two"')
    ledger.save_part("q", "")
    ledger.close()
    ledger = opened()
    assert ([name for name, _ in ledger.open_grants()], ledger.parts()) == (["g-1"], {"p": '"one"'})
    ledger.close()
    salvage.replace(path, "damaged for a test", 20).close()
    ledger = opened()
    assert ledger.parts() == {"p": '"one"'}


def test_a_nested_together_is_part_of_the_outer_one(tmp_path):
    recent = Recent(tmp_path)
    with recent.together():
        recent.save(row("g-1"))
        with recent.together():
            recent.save(row("g-2"))
        recent.save(row("g-3"))
        assert recent.open() == []
    assert [name for name, *_ in recent.batch(1).grants] == ["g-1", "g-2", "g-3"]


def test_the_last_periods_of_a_grant_are_written_with_its_end(path, opened, tmp_path):
    ledger = Ledger(path, tmp_path / "run", None, 3600)
    ledger.totals("g-1")  # the first turn writes all
    ledger.add([period(at=time.time_ns(), used=7), period("g-2", at=time.time_ns())])
    ledger.save(row("g-1", ended=9))
    ledger.totals("g-1")
    assert in_file(path, "SELECT used_ns FROM periods") == [(7,)]
    assert used(ledger, "g-2") == 1
    ledger.close()
    assert in_file(path) == [(8,)]


def test_periods_that_meet_are_one_row(tmp_path):
    recent = Recent(tmp_path)
    for at in (1, 2, 3, 10):
        recent.add([period(at=at, used=at, memory_bytes=at, wait_max_ns=10 - at)])
    first, second = recent.periods()
    assert (first.from_ns, first.to_ns, first.used_ns, first.memory_bytes, first.wait_max_ns) == (1, 4, 6, 3, 9)
    assert (second.from_ns, second.used_ns) == (10, 10)


def test_of_a_change_that_a_kill_cut_short_nothing_is_there(tmp_path):
    """The log of the database on tmpfs ends at any byte."""
    recent = Recent(tmp_path / "run")
    log = tmp_path / "run" / "ledger.recent-wal"
    recent.save(row("a"))
    begin = log.stat().st_size
    with recent.together():
        for name in "bcd":
            recent.save(row(name, state="x" * 3000))
    whole = log.stat().st_size
    for length in (*range(begin, whole, 777), whole - 1, whole):
        killed = tmp_path / f"killed{length}"
        shutil.copytree(tmp_path / "run", killed)
        os.truncate(killed / log.name, length)
        assert [one.id for one in Recent(killed).open()] == (["a", "b", "c", "d"] if length == whole else ["a"])


def test_it_stays_small_whatever_is_saved_again(tmp_path):
    recent = Recent(tmp_path)
    for number in range(3000):
        recent.save(row(f"g-{number % 3}", state="x" * 1000))
        recent.add([period(at=number)])
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 << 20
    assert recent.waiting() == 4


def test_a_mark_of_the_future_hides_no_row(path, opened):
    """A damaged file claims to have what is recorded later."""
    ledger = opened()
    ledger.save(row("g-1"))
    ledger.close()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE runs SET moved = ?", (1 << 62,))
    ledger = opened()
    ledger.save(row("g-2"))
    ledger.close()
    assert in_file(path, "SELECT id FROM grants ORDER BY id") == [("g-1",), ("g-2",)]


def test_rows_of_an_earlier_boot_are_moved_too(tmp_path):
    """Where the directory is on a disk."""
    recent = Recent(tmp_path / "run")
    recent.save(row("g-1"))
    recent.ask(lambda db: db.execute("UPDATE grants SET seq = ?", (1 << 62,)))
    recent.close()
    recent = Recent(tmp_path / "run")
    recent.moved(0)
    batch = recent.batch(10)
    assert [name for name, *_ in batch.grants] == ["g-1"]
    recent.moved(batch.last)
    recent.save(row("g-2"))
    assert [name for name, *_ in recent.batch(10).grants] == ["g-2"]


@pytest.fixture
def tmpfs(tmp_path):
    """A tmpfs of 480 KiB."""
    (tmp_path / "tmpfs").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=480k,mode=755", "none", tmp_path / "tmpfs"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield tmp_path / "tmpfs"
    subprocess.run(["umount", "-l", tmp_path / "tmpfs"], check=True)


@pytest.mark.parametrize("pages", range(4, 60, 4))
def test_it_returns_to_tmpfs_whole_or_not_at_all(tmpfs, pages):
    """However much room there is: enough for the log of SQLite and not for the database, too."""
    recent = Recent(tmpfs)
    for number in range(10):
        recent.save(row(f"g-{number}", state="x" * 300))
    ballast = fill(tmpfs)
    for number in range(10, 20):
        recent.save(row(f"g-{number}", state="x" * 300))
    assert not recent.on_tmpfs
    os.truncate(ballast, max(0, ballast.stat().st_size - pages * 4096))
    recent.return_to_tmpfs()
    shutil.copytree(tmpfs, tmpfs.parent / "killed")
    (tmpfs.parent / "killed" / "ballast").unlink()
    left = {row.id for row in Recent(tmpfs.parent / "killed").open()}
    assert left >= {f"g-{number}" for number in range(20 if recent.on_tmpfs else 10)}


@pytest.mark.parametrize("opens", [True, False])
def test_what_a_full_tmpfs_has_is_read_at_the_next_start(tmpfs, monkeypatch, opens):
    """Grants that run are in there, and nowhere else. `opens`: whether SQLite can open it for changes."""
    recent = Recent(tmpfs / "run")
    for number in range(10):
        recent.save(row(f"g-{number}", state="x" * 300))
    shutil.copytree(tmpfs / "run", tmpfs / "killed")
    fill(tmpfs)
    if not opens:
        monkeypatch.setattr(recents, "_FULL", -1)
    again = Recent(tmpfs / "killed")
    assert again.on_tmpfs == opens
    assert len(again.open()) == 10


def test_one_killed_as_it_replaces_the_old_one_loses_nothing(tmp_path):
    recent = Recent(tmp_path)
    recent.save(row("g-1"))
    recent._db.close()
    (tmp_path / "ledger.recent").rename(tmp_path / "ledger.new")
    (tmp_path / "ledger.recent-wal").write_bytes(b"of the old one")
    assert [one.id for one in Recent(tmp_path).open()] == ["g-1"]


def test_while_tmpfs_is_full_rows_are_in_memory(tmpfs):
    recent = Recent(tmpfs)
    for number in range(200):
        recent.save(row(f"g-{number}", state="x" * 3000))
        recent.add([period(at=number)])
    assert not recent.on_tmpfs
    assert (len(recent.open()), recent.periods()[0].used_ns) == (200, 200)
    recent.return_to_tmpfs()
    assert not recent.on_tmpfs
    # A kill leaves what was there before; what the file has had meanwhile is then dropped.
    shutil.copytree(tmpfs, tmpfs.parent / "killed")
    killed = Recent(tmpfs.parent / "killed")
    assert 10 < len(killed.open()) < 200
    killed.moved(killed._seq)
    assert killed.periods() == []
    for number in range(190):
        recent.remove("grants", f"g-{number}")
    recent.return_to_tmpfs()  # there is no room for both
    assert not recent.on_tmpfs
    recent.complete()
    recent.moved(recent.batch(1000).last)
    until(lambda: recent.return_to_tmpfs() or recent.on_tmpfs, "all was written, so that the old one can be removed")
    shutil.copytree(tmpfs, tmpfs.parent / "later")
    assert len(Recent(tmpfs.parent / "later").open()) == 10


@pytest.mark.parametrize("kind", ["rubbish", "torn page", "directory", "no directory"])
def test_a_damaged_database_on_tmpfs_is_replaced(tmp_path, kind):
    recent, place = Recent(tmp_path / "run"), tmp_path / "run" / "ledger.recent"
    for number in range(50):
        recent.save(row(f"g-{number}", state="x" * 2000))
    recent.put("parts", [("p", "one")])
    recent._db.close()
    content = place.read_bytes()
    match kind:
        case "rubbish":
            place.write_bytes(os.urandom(9000))
        case "torn page":
            place.write_bytes(content[: -(len(content) // 8192) * 4096] + bytes(len(content) // 8192 * 4096))
        case "directory":
            place.unlink()
            place.mkdir()
        case "no directory":
            shutil.rmtree(place.parent)
            place.parent.write_text("")
    again = Recent(tmp_path / "run")
    again.save(row("g-new"))
    again.return_to_tmpfs()
    assert again.on_tmpfs == (kind in ("rubbish", "torn page"))
    assert "g-new" in [one.id for one in again.open()]


def test_what_waits_is_bounded_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(recents, "KEPT_MAX", 10)
    monkeypatch.setattr(recents, "_CHECK_EVERY", 1)
    recent = Recent(tmp_path)
    for number in range(100):
        recent.add([period(f"g-{number}", used=number)])
        recent.save(row(f"g-{number}", ended=None if number % 20 == 0 else number))
    recent.complete()
    assert {one.id for one in recent.open()} == {f"g-{number}" for number in range(0, 100, 20)}
    assert (recent.lost, len(recent.batch(1000).grants)) == (85, 15)
    periods = recent.periods()
    assert len(periods) <= 11
    assert sum(one.used_ns for one in periods) == sum(range(100))
    assert [one.used_ns > 3000 for one in periods if one.grant_id == REST] == [True]


class Kill(BaseException):
    """Ends a turn as a kill would."""


class Faults:
    """Makes the next write to the file, or one of the steps around it, fail in the way that a test chooses."""

    def __init__(self, patch):
        self.next = None
        write, moved = movers.LedgerFile.write, Recent.moved

        def failing_write(file, run, batch):
            fault, self.next = self.next, None
            if isinstance(fault, BaseException):
                raise fault
            write(file, run, batch)
            if fault == "killed after the commit":
                raise Kill
            if fault == "failed after the commit":
                raise FailedError("the disk failed")

        def failing_moved(recent, last):
            moved(recent, last)
            if self.next == "killed at the end":
                self.next = None
                raise Kill

        patch.setattr(movers.LedgerFile, "write", failing_write)
        patch.setattr(Recent, "moved", failing_moved)


FAULTS = [
    *(None, None, FailedError("full"), DamagedError("torn"), OverflowError("bug"), Kill()),
    *("killed after the commit", "failed after the commit", "killed at the end"),
]
STEP = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 100),
    st.sampled_from(FAULTS),
    st.sampled_from(["add", "save", "end", "wait"]),
)


class Node:
    """A ledger without its thread."""

    def __init__(self, top, period_s):
        self.top, self.period_s, self.number = top, period_s, 0
        self.path, self.run = top / "ledger.db", top / "run"
        self.begin()

    def begin(self):
        self.recent = Recent(self.run)
        self.mover = movers.Mover(self.path, self.recent, None, self.period_s)
        self.mover.start()
        until(lambda: not [one for one in threading.enumerate() if one.name == "ledger-check"], "checked")

    def kill(self):
        self.number += 1
        before, self.run = self.run, self.top / f"run{self.number}"
        shutil.copytree(before, self.run)  # the killed one's database is never closed
        self.mover._file and self.mover._file.close()
        self.begin()


@pytest.mark.promise("ledger-survives")
@given(steps=st.lists(STEP, max_size=40), period_s=st.sampled_from([0, 3600]))
def test_rows_are_in_the_file_exactly_once_whatever_fails(tmp_path_factory, steps, period_s):
    """Each step is a turn of the thread, in which a write may fail before or after its commit, or a kill come."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(movers, "RETRY_SECONDS", 0.0)
        patch.setattr(movers, "_RETRY_FACTOR", 0)
        faults = Faults(patch)
        node = Node(tmp_path_factory.mktemp("sums"), period_s)
        sums, living, states, attached, detached = {}, {}, {}, {}, {}
        for at, (grant, ns, fault, act) in enumerate(steps, 1):
            if act != "wait":
                node.recent.add([period(grant, used=ns, at=at)], [move(grant, at=at, stall_ns=ns)])
                sums[grant] = sums.get(grant, 0) + ns
            if act == "add":
                attached[grant] = attached.get(grant, (f"{grant}{at}",))[0], at
                node.recent.attach(attachment(attached[grant][0], to=at))
            if act == "end" and grant in attached:
                detached[name := attached.pop(grant)[0]] = at
                for _ in range(1 + at % 2):  # the relay tells it again if it does not hear that it is recorded
                    node.recent.attach(attachment(name, "lost", to=at))
            if act == "save":
                living[grant] = states[grant] = str(at)
                node.recent.save(row(grant, state=str(at)))
            if act == "end":
                living.pop(grant, None)
                states[grant] = str(at)
                node.recent.save(row(grant, state=str(at), ended=at))
            faults.next = fault
            try:
                node.mover.turn()
            except Kill:
                faults.next = None
                node.kill()
            faults.next = None
            if fault == "failed after the commit":  # the next turn finds that it did not
                node.mover.turn()
            assert {name: total(node, name) for name in sums} == sums
            assert {name: stalled(node, name) for name in sums} == sums
            assert {one.id: one.state for one in node.recent.open()} == living
            assert {(one.attachment, one.to_ns) for one in node.recent.attached()} == {*attached.values()}
        node.mover.turn(last=True)
        assert node.recent.waiting() == 0
        node.mover.stop()
    path = node.path
    assert dict(in_file(path, "SELECT grant_id, SUM(used_ns) FROM periods GROUP BY 1")) == sums
    assert dict(in_file(path, "SELECT grant_id, SUM(stall_ns) FROM moves GROUP BY 1")) == sums
    assert dict(in_file(path, "SELECT id, state FROM grants")) == states
    assert in_file(path, "SELECT attachment, to_ns FROM attachments ORDER BY 1") == sorted(detached.items())
    assert in_file(path, "SELECT attachment, to_ns FROM attached ORDER BY 1") == sorted(attached.values())
    assert in_file(path, "SELECT COUNT(*) FROM quarantine") == [(0,)]
    assert in_file(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
    assert bool(living) == Path(node.run / "ledger.recent").exists()


def stalled(node, grant):
    waiting = sum(one.stall_ns for one in node.recent.moves() if one.grant_id == grant)
    query = f"SELECT COALESCE(SUM(stall_ns), 0) FROM moves WHERE grant_id = '{grant}'"
    return waiting + (in_file(node.path, query)[0][0] if node.path.exists() else 0)


def total(node, grant):
    waiting = sum(one.used_ns for one in node.recent.periods() if one.grant_id == grant)
    query = f"SELECT COALESCE(SUM(used_ns), 0) FROM periods WHERE grant_id = '{grant}'"
    return waiting + (in_file(node.path, query)[0][0] if node.path.exists() else 0)
