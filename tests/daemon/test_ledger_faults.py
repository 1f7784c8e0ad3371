"""The ledger's disk and file in any condition: the node goes on, says so, and the sums are right when it is back."""

import contextlib
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from gpushare.ledger import entries, salvage
from gpushare.ledger import keeper as keepers
from gpushare.ledger import ledger as ledgers
from gpushare.ledger.entries import LARGEST, REST, Entries, GrantRow, Period, Totals, sound
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.schema import SCHEMA_VERSION

HUGE = 1 << 63


def period(grant="g-1", used=1, at=1, **more):
    values = {"granted_ns": 0, "busy_ns": 0, "borrowed_ns": 0, "lent_ns": 0, "waited_ns": 0}
    values |= {"memory_bytes": 0, "memory_peak_bytes": 0, **more}
    return Period(grant_id=grant, tenant="t", device="GPU-1", from_ns=at, to_ns=at + 1, used_ns=used, **values)


def row(name, ended=None, state="{}"):
    return GrantRow(name, None, "t", 0, "released" if ended else "active", state, 1, ended)


def used(ledger, grant="g-1"):
    return ledger.totals(grant).get("GPU-1", Totals()).used_ns


def in_file(path, query="SELECT SUM(used_ns) FROM periods"):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def opened(path, tmp_path, monkeypatch):
    """Opens the ledger, which tries a disk in trouble often."""
    monkeypatch.setattr(ledgers, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(keepers, "RETRY_SECONDS", 0.02)
    # What a slow machine does to these is not what is tested.
    monkeypatch.setattr(keepers, "_SALVAGE_SECONDS", 20)
    path.parent.mkdir()
    made = []

    def open_one(spill=True):
        made.append(Ledger(path, tmp_path / "run" if spill else None))
        return made[-1]

    yield open_one
    for ledger in made:
        ledger.close()


@pytest.fixture
def small_disk(path, opened):
    """The ledger's directory is a disk of 400 KiB."""
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
    with closing(sqlite3.connect(path)) as database:  # as a version that wrote them wrote them
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
    health = ledger.health
    assert "full" in health.reason
    assert health.waiting >= 8
    assert used(ledger) == 400
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
    assert ledger.ended_grant("g-2", str) == "x" * 1000  # so its thread has all of it
    assert ledger.health.reason
    # A kill: nothing more is written. What was, is another's now.
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
        for at in range(1000):  # 10 s, did each wait
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
    monkeypatch.setattr(ledgers, "WAIT_SECONDS", 0.01)
    gate = threading.Event()
    write, open_ledger = keepers.LedgerFile.write, salvage.open_ledger
    monkeypatch.setattr(keepers.LedgerFile, "write", lambda *given: gate.wait() and write(*given))
    first.save(row("g-2", state='"later"'))  # while nothing is written
    first.save(row("g-3", state='"new"'))
    # Killed now.
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


def test_what_waits_is_bounded_and_told(monkeypatch):
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


# Damaged.


def filled(opened):
    ledger = opened()
    for number in range(30):
        ledger.save(row(f"g-{number}", ended=None if number < 3 else number, state=f'"{number}" ' + "x" * 300))
        ledger.add([period(f"g-{number}", at=at) for at in range(number)])
        ledger.totals("g-1")
    ledger.close()


def usable(ledger, path):
    """It takes and gives rows, whatever was there before."""
    assert not ledger.health.reason
    ledger.save(row("g-new"))
    ledger.add([period("g-new", used=7)])
    assert used(ledger, "g-new") == 7
    assert ("g-new", "{}") in ledger.open_grants()
    ledger.ended_grants(10, str)
    ledger.tenant_totals([])
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "ledger-check"], "checked")
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


def test_one_of_which_sqlite_says_what_is_no_text(path, opened):
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
    monkeypatch.setattr(keepers, "_SALVAGE_SECONDS", 0)
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
    elif kind == "nowhere":  # as of a disk that is not mounted yet
        assert ledger.health.reason
        (path.parent / "away").mkdir()
        until(lambda: not ledger.health.reason, "written")
    usable(ledger, path)


def test_three_damaged_ones_are_kept(path, opened):
    opened().close()
    for _ in range(5):
        # Where a check ended last there is a WAL, from which SQLite would have the whole file again.
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
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "ledger-check"], "checked")
    ledger.save(row("g-live", state='"live"'))
    path.unlink()
    path.write_bytes(os.urandom(9000))
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
    """SQLite goes on with a log that has no name any more, and whatever it is told is gone when it is killed."""
    filled(opened)
    ledger = opened()
    ledger.save(row("g-live"))
    log = path.with_name(f"{path.name}-wal")
    if change == "log taken":
        log.unlink()
    else:
        os.truncate(log if change == "log cut" else path, 0)
    ledger.save(row("g-later"))
    until(lambda: not ledger.health.reason and not ledger.health.waiting, "written")
    # As a kill would leave them.
    killed = tmp_path / "killed"
    shutil.copytree(path.parent, killed)
    assert {"g-live", "g-later"} <= {name for (name,) in in_file(killed / path.name, "SELECT id FROM grants")}


def test_damage_that_a_question_finds(path, opened):
    """Who reads the file beside the ledger's thread says what is wrong with it."""
    filled(opened)
    ledger = opened()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "ledger-check"], "checked")
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
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ledger.totals("g-1")
    files = {name.name: name.read_bytes() for name in top.iterdir()}
    ledger.close()
    assert set(files) == {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
    return files


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


# Everything at once.


class Flaky:
    """Writes fail as often as a test says, with any error of SQLite."""

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
            st.sampled_from(["a", "b", "c"]), st.integers(0, 100), st.sampled_from(FAULTS), st.sampled_from("aaask")
        ),
        max_size=40,
    )
)
def test_the_ledger_adds_up_whatever_fails(tmp_path_factory, steps):
    top = tmp_path_factory.mktemp("sums")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keepers, "RETRY_SECONDS", 0.0)
        patch.setattr(keepers, "_RETRY_FACTOR", 0)
        flaky = Flaky(patch)

        def start():
            keeper = keepers.Keeper(top / "ledger.db", top / "run", None)
            keeper.start()
            # Of an earlier keeper it would be one of another process, which ended with it.
            until(lambda: not [one for one in threading.enumerate() if one.name == "ledger-check"], "checked")
            return keeper

        keeper = start()
        said, open_grants = {}, {}
        for at, (grant, ns, fault, act) in enumerate(steps):
            flaky.errors = [fault]
            batch = Entries()
            batch.add(period(grant, used=ns, at=at))
            said[grant] = said.get(grant, 0) + ns
            if act == "s":
                open_grants[grant] = str(at)
                batch.save(row(grant, state=str(at)))
            keeper.take(batch)
            if act == "k":  # killed: another one begins with what is there
                keeper._file and keeper._file.close()
                keeper = start()
            assert {name: keeper.totals(name).get("GPU-1", Totals()).used_ns for name in said} == said
            assert {name: kept.state for name, kept in keeper.open.items()} == open_grants
        flaky.errors = []
        keeper.take(Entries(), pressing=True)
        keeper.take(Entries(), pressing=True)
        keeper.stop()
        assert keeper.waiting == 0
    assert dict(in_file(top / "ledger.db", "SELECT grant_id, SUM(used_ns) FROM periods GROUP BY 1")) == said
    assert dict(in_file(top / "ledger.db", "SELECT id, state FROM grants")) == open_grants
    assert in_file(top / "ledger.db", "PRAGMA user_version") == [(SCHEMA_VERSION,)]
