"""What is passed to the ledger survives a kill at any moment, and no caller waits for the disk."""

import json
import shutil
import sqlite3
import threading
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.waiting import until
from values.ledgerrows import in_file, period, row, used

from gpushare.errors import FailedError
from gpushare.ledger import journal as journals
from gpushare.ledger import keeper as keepers
from gpushare.ledger import ledger as ledgers
from gpushare.ledger import salvage
from gpushare.ledger.entries import Entries
from gpushare.ledger.journal import Journal
from gpushare.ledger.ledger import Ledger


class Disk:
    """A disk that answers once a test sets `answers`."""

    def __init__(self, monkeypatch):
        self.answers, write = threading.Event(), keepers.LedgerFile.write
        monkeypatch.setattr(keepers.LedgerFile, "write", lambda *given: self.answers.wait() and write(*given))


@pytest.fixture
def disk(monkeypatch):
    found = Disk(monkeypatch)
    yield found
    found.answers.set()


def test_who_saves_waits_for_no_disk_and_a_kill_loses_nothing(path, opened, disk, tmp_path, monkeypatch):
    ledger = opened()
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 10**6)
    for number in range(100):
        ledger.save(row("g-1", state=f'"{number}"'))
        ledger.save(row(f"h-{number}", ended=number + 1))
    ledger.save_part("p", '"one"')
    ledger.save_part("q", '"two"')
    ledger.save_part("q", "")
    ledger.save_devices({"GPU-1": '"a"'})
    shutil.copytree(tmp_path / "run", tmp_path / "killed")
    disk.answers.set()
    second = Ledger(tmp_path / "empty.db", tmp_path / "killed")
    assert (second.open_grants(), second.parts()) == ([("g-1", '"99"')], {"p": '"one"'})
    assert len(second.ended_grants(1000, str)) == 100
    assert second.devices(str) == ['"a"']
    second.close()
    assert list((tmp_path / "killed").glob("ledger.*")) == []


def test_the_file_has_it_without_anybody_asking(path, opened, tmp_path):
    ledger = opened()
    ledger.save(row("g-1"))
    until(lambda: in_file(path, "SELECT id FROM grants") == [("g-1",)], "written")
    until(lambda: not list((tmp_path / "run").glob("ledger.*")), "nothing waits")


def test_without_tmpfs_the_disk_is_waited_for(path, opened):
    ledger = opened(spill=False)
    ledger.save(row("g-1"))
    assert in_file(path, "SELECT id FROM grants") == [("g-1",)]


def test_nobody_waits_for_long_for_a_disk_that_does_not_answer(path, opened, disk, monkeypatch):
    ledger = opened(spill=False)
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 0.01)
    for _ in range(1000):  # 10 s if each call waited
        ledger.save(row("g-1"))
    assert "answer" in ledger.health.reason
    disk.answers.set()
    until(lambda: not ledger.health.reason, "answers again")


def test_a_disk_that_does_not_answer_is_noticed_although_nobody_waits(opened, disk, monkeypatch):
    monkeypatch.setattr(ledgers, "_SLOW_SECONDS", 0.01)
    ledger = opened()
    ledger.save(row("g-1"))
    until(lambda: "answer" in ledger.health.reason, "noticed")
    disk.answers.set()
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


def test_what_is_saved_together_within_another_is_a_part_of_that(opened, tmp_path):
    ledger = opened()
    with ledger.together():
        ledger.save(row("g-1"))
        with ledger.together():
            ledger.save(row("g-2"))
        ledger.save(row("g-3"))
        assert list((tmp_path / "run").glob("ledger.*")) == []
    assert [len(line) for line in lines(tmp_path / "run")] == [3]


def lines(directory):
    found = sorted(directory.glob("ledger.new.*"))
    return [json.loads(line)["grants"] for file in found for line in file.read_text().splitlines()]


def test_what_one_used_last_is_written_with_its_end(path, opened, monkeypatch):
    ledger = opened()
    ledger.totals("g-1")  # so the thread has started
    monkeypatch.setattr(ledgers, "RETRY_SECONDS", 10**6)
    ledger.totals("g-1")  # and would now sleep
    ledger.add([period(at=time.time_ns(), used=7)])
    ledger.save(row("g-1", ended=9))
    until(lambda: in_file(path) == [(7,)], "written")


def test_what_an_earlier_run_left_stays_until_the_ledger_has_it(path, opened, tmp_path, monkeypatch):
    """However much comes before the disk answers. What the journal repeats has no periods, which would count twice."""
    left = Journal(tmp_path / "run")
    left.add(batch("g-left", '"left"'), Entries())
    gate, open_ledger = threading.Event(), salvage.open_ledger
    monkeypatch.setattr(salvage, "open_ledger", lambda *given: gate.wait() and open_ledger(*given))
    monkeypatch.setattr(ledgers, "_START_SECONDS", 0.01)
    monkeypatch.setattr(journals, "_BYTES_MAX", 3000)
    ledger = opened()
    try:
        ledger.add([period(used=5)])
        for number in range(100):
            ledger.save(row(f"g-{number % 3}", state=f'"{number}"'))
        assert len(list((tmp_path / "run").iterdir())) == 2
        killed = Journal(tmp_path / "run").read()
        assert states(killed) == {"g-left": '"left"', "g-0": '"99"', "g-1": '"97"', "g-2": '"98"'}
        assert killed.periods == {}
    finally:
        gate.set()
    until(lambda: not ledger.health.reason, "answers")
    assert used(ledger) == 5
    assert len(ledger.open_grants()) == 4


def batch(name, state):
    return Entries(grants={name: row(name, state=state)})


def states(found):
    return {name: kept.state for name, kept in found.grants.items()}


def test_a_line_that_a_kill_cut_short_is_not_there(tmp_path):
    journal = Journal(tmp_path)
    journal.add(batch("a", "1"), Entries())
    journal.add(batch("b", "2"), Entries())
    [file] = journal.cut()
    whole = file.read_bytes()
    for length in range(whole.index(b"\n") + 1, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert states(Journal(tmp_path).read()) == {"a": "1"}


def test_a_journal_that_nobody_cuts_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "_BYTES_MAX", 2000)
    journal, fresh = Journal(tmp_path), Entries()
    for number in range(1000):
        one = batch(f"g-{number % 3}", str(number))
        fresh.follow(one)
        assert journal.add(one, fresh)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 4000
    assert states(Journal(tmp_path).read()) == {"g-0": "999", "g-1": "997", "g-2": "998"}


def test_a_directory_that_takes_nothing_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    assert not Journal(tmp_path / "file").add(batch("a", "1"), Entries())
    assert not Journal(None).add(batch("a", "1"), Entries())


class Node:
    """The ledger without its thread; a test ends its turns at any step, as a kill would."""

    def __init__(self, top):
        self.path, self.tmpfs = top / "ledger.db", top / "run"
        self.start()

    def start(self):
        self.journal = Journal(self.tmpfs)
        self.keeper = keepers.Keeper(self.path, self.tmpfs, None, 0, self.journal.read())
        self.keeper.start()
        until(lambda: not [one for one in threading.enumerate() if one.name == "ledger-check"], "checked")
        self.fresh, self.old = Entries(), self.journal.cut()

    def save(self, name, state, ended):
        one = Entries(grants={name: row(name, state=state, ended=ended)})
        self.fresh.follow(one)
        assert self.journal.add(one, self.fresh)

    def turn(self, steps):
        """Runs a turn of the thread up to step `steps`: 1 cuts the journal, 2 gives the batch to the keeper, 3 removes
        the old journal."""
        batch, self.fresh = self.fresh, Entries()
        self.old += self.journal.cut()
        if steps > 1:
            self.keeper.take(batch)
        if steps > 2 and self.keeper.safe:
            journals.remove(self.old)
            self.old = []

    def kill(self):
        self.journal.cut()
        self.keeper._file and self.keeper._file.close()
        self.start()


SAVES = st.tuples(st.sampled_from("abc"), st.booleans())
TURNS = st.tuples(st.integers(1, 3), st.booleans())


@given(steps=st.lists(st.one_of(SAVES, TURNS), max_size=30))
def test_the_last_word_of_each_grant_outlives_kills_at_any_moment(tmp_path_factory, steps):
    """An incomplete turn ends with a kill; in any turn the disk may fail."""
    failing = [False]
    write = keepers.LedgerFile.write

    def written(*given):
        if failing[0]:
            raise FailedError("full")
        write(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keepers, "RETRY_SECONDS", 0.0)
        patch.setattr(keepers, "_RETRY_FACTOR", 0)
        patch.setattr(keepers.LedgerFile, "write", written)
        node, answer = Node(tmp_path_factory.mktemp("journal")), {}
        for at, (what, flag) in enumerate(steps, 1):
            if isinstance(what, str):
                node.save(what, str(at), at if flag else None)
                answer[what] = (str(at), flag)
                continue
            failing[0] = flag
            node.turn(what)
            failing[0] = False
            if what < 3:
                node.kill()
                assert {name: kept.state for name, kept in node.keeper.open.items()} == {
                    name: state for name, (state, ended) in answer.items() if not ended
                }
        node.turn(3)
        assert node.keeper.safe
        found = in_file(node.path, "SELECT id, state, ended_ns NOT NULL FROM grants")
        assert {name: (state, bool(ended)) for name, state, ended in found} == answer
        assert list(node.tmpfs.glob("ledger.*")) == []
        node.keeper.stop()
