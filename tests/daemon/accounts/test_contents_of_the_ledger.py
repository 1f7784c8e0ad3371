"""The ledger's contents: every grant, its usage, every run and the gaps between runs."""

import sqlite3
from contextlib import closing

import pytest
from msgspec.structs import replace
from run.waiting import until
from values.ledgerrows import attachment, move

from gpushare import paths
from gpushare.ledger import queries
from gpushare.ledger.entries import GrantRow, Period, Totals
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.ledger import Ledger
from gpushare.ledger.recent import Recent
from gpushare.ledger.schema import ATTACHED, CHAINED, MOVING
from gpushare.ledger.usage import Span
from gpushare.ledger.verify import verify


def period(grant_id, to_ns, **numbers):
    fields = dict.fromkeys(
        (
            "granted_ns",
            "used_ns",
            "busy_ns",
            "borrowed_ns",
            "lent_ns",
            "waited_ns",
            "memory_bytes",
            "memory_peak_bytes",
        ),
        0,
    )
    return Period(grant_id=grant_id, tenant="t", device="GPU-1", from_ns=0, to_ns=to_ns, **(fields | numbers))


def test_sums_over_periods(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.add([period("g", 1, used_ns=5, memory_peak_bytes=7)])
    assert ledger.totals("g")["GPU-1"].used_ns == 5
    ledger.add([period("g", 2, used_ns=6, memory_peak_bytes=3)])
    total = ledger.totals("g")["GPU-1"]
    assert (total.used_ns, total.memory_peak_bytes) == (11, 7)
    ledger.close()
    file = LedgerFile(tmp_path / "ledger.db")
    assert not file.forget(2)
    assert file.ask(queries.totals, queries.ALL, "g")["GPU-1"].used_ns == 6
    file.close()


def test_sums_of_many_grants_are_one_question(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.db")
    grants = [f"g-{number}" for number in range(100)]
    ledger.add([period(grant, 1, used_ns=number) for number, grant in enumerate(grants)])
    asked, ask = [], Ledger._ask
    monkeypatch.setattr(Ledger, "_ask", lambda *given: asked.append(1) or ask(*given))
    found = ledger.totals_of([*grants, "g-unknown"])
    assert [found[grant]["GPU-1"].used_ns for grant in grants] == list(range(100))
    assert found["g-unknown"] == ledger.totals_of([]).get("g-unknown", {}) == {}
    assert asked == [1]
    ledger.close()


def test_open_grants_survive_and_closed_ones_stay_readable(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.save(("g-1", None, "t", 0, "active", '{"a":1}', 1, None))
    ledger.save(("g-2", None, "t", 0, "active", '{"a":2}', 2, None))
    ledger.save(("g-2", None, "t", 0, "released", '{"a":3}', 2, 9))
    ledger.close()
    again = Ledger(tmp_path / "ledger.db")
    assert again.run == ledger.run + 1
    assert again.open_grants() == [("g-1", '{"a":1}')]
    assert again.ended_grant("g-2", str) == '{"a":3}'
    again.close()


def test_a_grant_that_was_answered_is_there_after_a_kill(make_daemon):
    slow = (
        "import time; from gpushare.ledger.file import LedgerFile as F; write = F.write; "
        "F.write = lambda *a: (time.sleep(0.1), write(*a)); import gpushare.ledger.ledger as l; l.WAIT_SECONDS = 60"
    )
    daemon = make_daemon().patch(slow).start()
    grant = daemon.client.create(memory="1GiB", time="10%")
    daemon.kill()
    daemon.start()
    assert [row["id"] for row in daemon.client.grants()] == [grant["id"]]


def test_gap_of_a_killed_run(tmp_path):
    first = Ledger(tmp_path / "ledger.db")
    assert first.gap_ns == 0
    first.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:  # as after a kill: the run has no end
        database.execute("UPDATE runs SET seen_ns = seen_ns - 5000000000, ended_ns = NULL")
        database.commit()
    second = Ledger(tmp_path / "ledger.db")
    assert 5_000_000_000 <= second.gap_ns < 60_000_000_000
    second.close()


@pytest.mark.parametrize(
    ("version", "changes"),
    [
        (10, ""),
        (9, ""),
        (8, ""),
        (7, "ALTER TABLE runs DROP COLUMN moved;"),
        (
            5,
            "ALTER TABLE runs DROP COLUMN moved; ALTER TABLE periods DROP COLUMN launches; DROP TABLE contexts;"
            " DROP TABLE parts;",
        ),
    ],
)
def test_a_ledger_of_an_earlier_version_is_taken_over(tmp_path, version, changes):
    path = tmp_path / "ledger.db"
    first = Ledger(path)
    first.save(("g-1", None, "t", 0, "active", "{}", 1, None))
    row = Period("g-1", "t", "GPU-0", 0, 9, 1, 2, 3, 4, 5, 6, 7, 8, waits=2, wait_max_ns=5)
    first.add([row, *([replace(row, grant_id="g-0", extra_ns=2)] if version >= 10 else [])])
    first.close()
    with closing(sqlite3.connect(path)) as old:
        for table in CHAINED:
            changes += f"ALTER TABLE {table} DROP COLUMN origin;"
            changes += f"ALTER TABLE {table} DROP COLUMN extra_ns;" if version < 10 else ""
        changes += "DROP TABLE attached;"
        for table in (ATTACHED, *(MOVING if version < 9 else ())):
            changes += f"DROP TABLE {table}; DELETE FROM chains WHERE name = '{table}';"
        old.executescript(f"{changes} PRAGMA user_version = {version};")
    found = Ledger(path)
    assert bool(found.health.damaged) == (version == 5)  # which is replaced: its rows are from before the chain
    assert (found.open_grants(), found.run) == ([("g-1", "{}")], 2)
    assert found.totals("g-1") == {"GPU-0": Totals(2, 3, 4, 6, 8, waits=2, wait_max_ns=5)}
    found.add([], [move("g-1", stall_ns=3)])
    found.add(
        [
            replace(row, from_ns=9, to_ns=10, launches=1, extra_ns=1, origin="lab2"),
            replace(row, grant_id="g-2", waits=3, wait_max_ns=9),
        ]
    )
    assert (found.totals("g-1")["GPU-0"].waits, found.totals("g-1")["GPU-0"].wait_max_ns) == (4, 5)
    without = ["g-0"]
    assert [(t.waits, t.wait_max_ns) for t in found.tenant_totals(without).values()] == [(7, 9)]
    assert [(t.waits, t.used_ns) for t in found.tenant_totals([*without, "g-2"]).values()] == [(4, 4)]
    used = found.usage("grant", Span(0, 20))["g-1", "t"]
    assert (used.stall_ns, used.extra_ns) == (3, 1)
    assert found.usage("origin", Span(0, 20))["lab2", "t"].used_ns == 2
    found.attachment(attachment("x", "lost"))
    assert [one.attachment for one in found.ended_attachments(9)] == ["x"]
    found.close()
    told = verify(path)
    assert told["ok"] and told["tables"]["periods"]["before"] == 0, "rows keep the hashes that they had"
    assert told["tables"][ATTACHED]["rows"] == 1


def test_what_waits_for_the_disk_is_taken_over_from_an_earlier_version(tmp_path):
    """A daemon that was killed leaves it on tmpfs, and the next one may be of another version."""
    (tmp_path / "run").mkdir()
    recent = Recent(tmp_path / "run")
    recent.save(GrantRow("g-1", None, "t", 0, "active", "{}", 1, None))
    recent.add([period("g-1", 5, used_ns=4, launches=2, extra_ns=3)])
    del recent
    with closing(sqlite3.connect(tmp_path / "run/ledger.recent")) as old:
        old.execute("ALTER TABLE periods DROP COLUMN extra_ns")
        old.execute("ALTER TABLE periods DROP COLUMN origin")
        old.execute("DROP TABLE attachments")
    recent = Recent(tmp_path / "run")
    assert recent.on_tmpfs and [one.id for one in recent.open()] == ["g-1"]
    recent.add([period("g-1", 9, used_ns=1, launches=1, extra_ns=1)])
    assert [(one.used_ns, one.launches, one.extra_ns) for one in recent.periods()] == [(4, 2, 0), (1, 1, 1)]
    recent.close()


def test_daemon_writes_runs_grants_and_periods(fresh):
    daemon, client = fresh, fresh.client
    child, grant_id = daemon.join()
    child.kill()
    child.wait()
    until(lambda: client.grants() == [], "released")
    [(tenant, device, begin, end, granted)] = daemon.rows(
        f"SELECT tenant, device, from_ns, to_ns, granted_ns FROM periods WHERE grant_id = '{grant_id}'"
    )
    assert tenant == "default"
    assert device == client.devices()[0]["id"]
    assert 0 < granted <= end - begin
    daemon.kill()
    daemon.start()
    found = daemon.rows("SELECT ended_ns, gap_ns FROM runs ORDER BY run")
    assert found[0] == (None, 0)
    assert found[1][1] > 0
    assert daemon.terminate() == 0
    assert daemon.rows("SELECT ended_ns FROM runs ORDER BY run")[1][0] is not None
    assert daemon.rows("SELECT phase FROM grants") == [("released",)]


def test_busy_time_agrees_with_the_simulators_books(daemon, client, exact):
    child = daemon.tenant(str(paths.LIB_DIR / "gpushare-spin"), "--alloc", "100M", "--seconds", "1.5")
    assert child.wait(30) == 0
    until(lambda: client.grants() == [], "released")
    [grant] = [grant for grant in client.grants(ended=True) if grant["pid"] == child.pid]
    [book] = [row for row in client.sim_stats()["devices"][0]["processes"] if row["pid"] == grant["pid"]]
    [device] = grant["devices"]
    assert book["busy_ns"] > (1_000_000_000 if exact else 500_000_000)  # of 1.5 s
    assert abs(device["busy_ns"] - book["busy_ns"]) < 0.1 * book["busy_ns"]
    assert device["memory_peak_bytes"] == book["peak_bytes"]


def test_ledger_is_private(daemon):
    assert daemon.layout.ledger.stat().st_mode & 0o077 == 0
