"""The ledger's file is damaged in any way: what can be read is kept, and the ledger goes on with the living grants."""

import os
import random
import shutil
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from run.waiting import until
from values.ledgerrows import in_file, period, row, used

from gpushare.ledger import mover as movers
from gpushare.ledger import salvage
from gpushare.ledger.ledger import Ledger


def filled(opened):
    ledger = opened()
    for number in range(30):
        ledger.save(row(f"g-{number}", ended=None if number < 3 else number, state=f'"{number}" ' + "x" * 300))
        ledger.add([period(f"g-{number}", at=at) for at in range(number)])
        ledger.totals("g-1")
    checked()  # a check whose connection closes last would leave the rows in the write-ahead log
    ledger.close()


def checked():
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "ledger-check"], "checked")


def usable(ledger, path):
    """Asserts that the ledger takes and returns rows, whatever was there before."""
    assert not ledger.health.reason
    ledger.save(row("g-new"))
    ledger.add([period("g-new", used=7, at=time.time_ns())])  # too recent to be rolled up
    assert used(ledger, "g-new") == 7
    assert ("g-new", "{}") in ledger.open_grants()
    ledger.ended_grants(10, str)
    ledger.tenant_totals([])
    checked()
    ledger.save(row("g-new"))
    ledger.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("SELECT used_ns FROM periods WHERE grant_id = 'g-new'").fetchall() == [(7,)]
        assert database.execute("SELECT 1 FROM grants WHERE id = 'g-new'").fetchall() == [(1,)]


def test_rubbish_in_its_place_is_moved_aside(path, opened):
    path.write_bytes(b"this is not a database, but it is long enough to look at" * 40)
    ledger = opened()
    assert [Path(name).read_bytes()[:7] for name in ledger.health.damaged] == [b"this is"]
    assert ledger.run > 1_000_000_000
    usable(ledger, path)


def test_one_of_another_version_is_moved_aside(path, opened):
    filled(opened)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 99")
    ledger = opened()
    assert ledger.health.damaged
    assert [name for name, _ in ledger.open_grants()] == ["g-0", "g-1", "g-2"]
    assert used(ledger, "g-29") == 29
    usable(ledger, path)


def test_one_of_which_sqlite_states_what_is_no_text(path, opened):
    filled(opened)
    content = path.read_bytes()
    assert content.count(b"CREATE TABLE runs") == 1
    path.write_bytes(content.replace(b"CREATE TABLE runs", b"CREAT\xc5 TABLE runs"))
    ledger = opened()
    assert ledger.health.damaged
    usable(ledger, path)


def test_who_lives_comes_before_a_long_history(path, opened, monkeypatch):
    filled(opened)
    with closing(sqlite3.connect(path)) as database:
        database.executemany(
            "INSERT INTO grants VALUES (?, NULL, 't', 0, 'released', '{}', 1, 1)", ((f"e-{n}",) for n in range(9000))
        )
        database.execute("PRAGMA user_version = 99")
        database.commit()
    monkeypatch.setattr(movers, "_SALVAGE_SECONDS", 0)
    ledger = opened()
    assert [name for name, _ in ledger.open_grants()] == ["g-0", "g-1", "g-2"]
    assert (used(ledger, "g-1"), used(ledger, "g-2")) == (1, 2)
    usable(ledger, path)


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "nowhere"])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_something_else_in_its_place(path, opened, kind, suffix):
    filled(opened)
    there = Path(f"{path}{suffix}")
    there.unlink(missing_ok=True)
    if kind == "directory":
        there.mkdir()
        (there / "inside").touch()
    elif kind == "pipe":
        os.mkfifo(there)
    elif kind == "device":
        os.mknod(there, 0o600 | 0o020000, os.makedev(1, 5))
    else:
        there.symlink_to(path.parent / "away" / "nowhere")
    ledger = opened()
    if suffix:
        assert [name for name, _ in ledger.open_grants()] == ["g-0", "g-1", "g-2"]
    elif kind == "nowhere":  # like a disk that is not mounted yet
        assert ledger.health.reason
        (path.parent / "away").mkdir()
        until(lambda: not ledger.health.reason, "written")
    usable(ledger, path)


def test_three_damaged_ones_are_kept(path, opened):
    opened().close()
    for _ in range(5):
        # If a check closed last, there is a WAL, from which SQLite would restore the whole file.
        for log in ("ledger.db-wal", "ledger.db-shm"):
            path.with_name(log).unlink(missing_ok=True)
        path.write_bytes(os.urandom(5000))
        ledger = opened()
        until(lambda ledger=ledger: ledger.health.damaged, "it is replaced")  # a slow disk does not delay the start
        ledger.close()
    assert len(salvage.damaged(path)) == salvage.DAMAGED_KEPT
    left = {name.name for name in path.parent.iterdir() if "damaged" not in name.name}
    assert left <= {"ledger.db", "ledger.db-wal", "ledger.db-shm"}  # a check may be under way


def test_a_bad_row_is_set_aside_and_the_rest_lives(path, opened):
    filled(opened)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE grants SET state = CAST(X'ff00fe' AS TEXT) WHERE id IN ('g-1', 'g-20')")
        database.commit()

    def decode(text):
        if text[:1] != '"':
            raise ValueError("not a state")
        return text

    ledger = opened()
    assert len(ledger.ended_grants(100, decode)) == 26
    assert ledger.ended_grant("g-20", decode) is None
    ledger.set_aside("g-1", "bad")
    assert [name for name, _ in ledger.open_grants()] == ["g-0", "g-2"]
    assert ledger.health.set_aside == 2
    ledger.close()
    found = in_file(path, "SELECT source, content, reason FROM quarantine ORDER BY reason")
    assert found == [("grants", b"\xff\x00\xfe", "bad"), ("grants", b"\xff\x00\xfe", "not a state")]
    again = opened()
    assert [name for name, _ in again.open_grants()] == ["g-0", "g-2"]
    assert again.health.set_aside == 2


def test_damage_that_is_found_while_it_runs(path, opened):
    filled(opened)
    ledger = opened()
    checked()
    ledger.save(row("g-live", state='"live"'))
    rubbish = path.with_name("rubbish")
    rubbish.write_bytes(os.urandom(9000))
    rubbish.replace(path)
    ledger.add([period("g-live", used=5)])
    ledger.save(row("g-live", state='"later"'))
    until(lambda: not ledger.health.reason, "written")
    assert used(ledger, "g-live") == 5
    ledger.close()
    assert ("g-live", '"later"') in in_file(path, "SELECT id, state FROM grants")


def test_a_file_that_is_taken_away_is_begun_again_with_what_lives(path, opened):
    filled(opened)
    ledger = opened()
    for name in path.parent.iterdir():
        name.unlink()
    ledger.save(row("g-2", ended=5))
    until(lambda: not ledger.health.reason, "written")
    ledger.close()
    assert in_file(path, "SELECT id, ended_ns FROM grants ORDER BY id") == [("g-0", None), ("g-1", None), ("g-2", 5)]


@pytest.mark.parametrize("change", ["log taken", "log cut", "file cut"])
def test_what_somebody_does_to_the_file_or_its_log_does_not_cost_who_lives(path, opened, tmp_path, change):
    """SQLite keeps using an unlinked log, and everything written to it would be lost at a kill."""
    filled(opened)
    ledger = opened()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(RESTART)")  # no row of the run is in the log
    ledger.save(row("g-live"))
    ledger.totals("g-live")
    log = path.with_name(f"{path.name}-wal")
    if change == "log taken":
        log.unlink()
    else:
        os.truncate(log if change == "log cut" else path, 0)
    ledger.save(row("g-later"))
    ledger.totals("g-later")

    def left_by_a_kill() -> set[str]:
        killed = tmp_path / f"killed{time.monotonic_ns()}"
        shutil.copytree(path.parent, killed)
        return {name for (name,) in in_file(killed / path.name, "SELECT id FROM grants")}

    until(lambda: {"g-live", "g-later"} <= left_by_a_kill(), "written")


def test_damage_that_a_question_finds(path, opened):
    """A reader of the file outside the ledger's thread reports the damage that it finds."""
    filled(opened)
    ledger = opened()
    checked()
    with open(path, "r+b") as file:
        file.write(bytes(100))
    ledger.tenant_totals([])
    ledger.save(row("g-live"))
    until(lambda: ledger.health.damaged and not ledger.health.reason, "replaced")


def test_a_swap_that_was_cut_short_is_finished(path, opened):
    filled(opened)
    whole = path.read_bytes()
    path.with_name("ledger.db.new").write_bytes(whole)
    path.write_bytes(os.urandom(100))
    Path(f"{path}-wal").write_bytes(os.urandom(100))
    ledger = opened()
    assert used(ledger, "g-29") == 29
    usable(ledger, path)


def spoil(path, rng, kind):
    content = bytearray(path.read_bytes())
    if kind == "cut":
        del content[rng.randrange(len(content) + 1) :]
    elif kind == "flip":
        for _ in range(rng.choice((1, 1, 10, 300))):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "page":
        page = rng.randrange(len(content) // 4096 or 1) * 4096
        content[page : page + 4096] = rng.choice((bytes(4096), rng.randbytes(4096)))
    elif kind == "grow":
        content += rng.randbytes(5000)
    path.write_bytes(content)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The files of a ledger whose daemon was killed: the log has rows that the file does not."""
    top = tmp_path_factory.mktemp("killed")
    ledger = Ledger(top / "ledger.db")
    for number in range(60):
        ledger.save(row(f"g-{number}", ended=None if number < 3 else number, state=f'"{number}" ' + "x" * 300))
        ledger.add([period(f"g-{number}", at=number)])
        if number == 30:
            with closing(sqlite3.connect(top / "ledger.db")) as database:
                database.execute("PRAGMA wal_checkpoint(RESTART)")
    ledger.totals("g-1")
    files = {name.name: name.read_bytes() for name in top.iterdir()}
    ledger.close()
    assert set(files) == {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
    return files


@pytest.mark.drawn(150)
@pytest.mark.promise("ledger-survives")
@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal", "ledger.db-shm"])
@pytest.mark.parametrize("kind", ["cut", "flip", "page", "grow", "missing"])
@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_any_damage_to_any_file(path, opened, killed, name, kind, seed):
    open_one = opened
    for file, content in killed.items():
        path.with_name(file).write_bytes(content)
    if kind == "missing":
        path.with_name(name).unlink()
    else:
        spoil(path.with_name(name), random.Random(f"{name} {kind} {seed}"), kind)
    usable(open_one(), path)
