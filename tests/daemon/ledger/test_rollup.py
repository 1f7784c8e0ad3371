"""Rows of minutes are rolled up into hours and days: fewer rows, with the same sums, and chained."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from values.ledgerrows import batch, in_file, period

from gpushare.ledger import chain, rollup
from gpushare.ledger.entries import GAP, IDLE, LARGEST, REST, SUMS
from gpushare.ledger.file import LedgerFile
from gpushare.ledger.schema import CHAINED
from gpushare.ledger.slots import Cut, slots
from gpushare.ledger.usage import Span, added_up, snapshot
from gpushare.ledger.verify import verify

MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MONTH = 32 * DAY
AGE = rollup.STEPS[0].age_ns


def fault(path, table):
    with closing(sqlite3.connect(path)) as db:
        return chain.fault(db, table)[0]


def rolled(path, rows, now):
    """A file whose rows were written one by one, as minutes are, and rolled up at time `now`."""
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    for row in rows:
        file.write(1, batch(row))
    while file.roll(now):
        pass
    return file


def minute(grant, at, length=MINUTE, **numbers):
    return replace(period(grant), from_ns=at, to_ns=at + length, **numbers)


def test_minutes_become_hours_and_then_days(tmp_path):
    path = tmp_path / "ledger.db"
    rows = [minute(grant, 10 * DAY + i * 20 * MINUTE, used_ns=i, memory_bytes=i) for i in range(144) for grant in "ab"]
    file = rolled(path, rows, 11 * DAY + AGE)
    assert in_file(path, "SELECT COUNT(*), MIN(from_ns) FROM periods") == [(144, 11 * DAY)]
    query = "SELECT COUNT(*), MIN(from_ns), MAX(to_ns - from_ns), SUM(used_ns) FROM "
    assert in_file(path, f"{query} hours") == [(48, 10 * DAY, 3 * MINUTE, sum(range(72)) * 2)]
    assert in_file(path, "SELECT memory_bytes FROM hours WHERE grant_id = 'a' ORDER BY id LIMIT 2") == [(2,), (5,)]
    while file.roll(10 * DAY + MONTH + 2 * DAY):
        pass
    assert in_file(path, "SELECT COUNT(*) FROM periods") == [(0,)]
    assert in_file(path, f"{query} days") == [(4, 10 * DAY, 72 * MINUTE, sum(range(144)) * 2)]
    assert [fault(path, table) for table in CHAINED] == [""] * 3


def test_usage_is_the_same_over_minutes_hours_and_days(tmp_path):
    """Usage is the same as from rows of minutes, except that by hour a day older than a month is one row."""
    path = tmp_path / "ledger.db"
    rows = [
        minute(grant, 10 * DAY + i * 30 * MINUTE, tenant=f"t/{grant}", device=device, used_ns=i, borrowed_ns=i // 2)
        for i in range(48 * 40)
        if i % 48 >= 6  # nothing is used before 03:00
        for grant, device in (("a", "GPU-1"), ("b", "GPU-2"))
    ]
    rows[84:84] = [minute(GAP, 11 * DAY, 20 * 10**9, tenant=GAP, device=device, used_ns=20 * 10**9) for device in "xy"]
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    file.write(1, batch(*rows))
    spans = [Span(0, LARGEST), Span(48 * DAY, 49 * DAY + 12 * HOUR), Span(0, LARGEST, "t/b")]
    ways = ("tenant", "grant", "device", "hour", "charge")

    def read():
        return {(by, span): added_up(snapshot(path), by, span) for by in ways for span in spans}

    exact = read()
    while file.roll(50 * DAY):
        pass
    found = read()
    for by, span in found:
        if by == "hour" and span.since_ns == 0:
            hours = sorted({begin for begin, _ in found[by, span]})
            whole_days = [DAY * day for day in range(10, 18)]
            assert hours == [*whole_days, *(at for at in range(18 * DAY, 50 * DAY, HOUR) if at % DAY >= 3 * HOUR)]
            assert sum(sums.used_ns for sums in found[by, span].values()) == sum(
                sums.used_ns for sums in exact[by, span].values()
            )
        else:
            assert found[by, span] == exact[by, span], (by, span)
    checked = verify(path)
    assert checked["ok"] and "no daemon for 20.0 s of the day of 1970-01-12T00:00:00Z" in checked["lines"]


def test_days_of_a_time_zone_over_minutes_hours_and_days(tmp_path):
    """Minutes begin at any second, so the last one of a day, and with it the row of its hour or day, ends in the next.
    Rolled up, it still counts in its own; a day (UTC) counts in the local one of its noon; nothing is lost or twice."""
    path = tmp_path / "ledger.db"
    rows = [minute("a", at + 20 * 10**9, used_ns=1) for at in range(10 * DAY, 50 * DAY, 10 * MINUTE)]
    rows += [minute("a", at - 40 * 10**9, used_ns=1000) for at in range(11 * DAY, 50 * DAY + 1, DAY)]
    rows += [minute(GAP, 12 * DAY, 10 * DAY, tenant=GAP, used_ns=10 * DAY)]
    rows.sort(key=lambda row: row.from_ns)
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    file.write(1, batch(*rows))
    while file.roll(50 * DAY + 4 * HOUR):
        pass
    assert in_file(path, "SELECT COUNT(*) FROM periods WHERE tenant = 't'") == [(0,)]
    for zone_hours in (0, 2, -7):
        cuts = tuple(range(10 * DAY - zone_hours * HOUR, 51 * DAY, DAY))
        found = added_up(snapshot(path), "period", Span(cuts[0], LARGEST, cuts=cuts))
        used = [found[at, "t"].used_ns if (at, "t") in found else 0 for at in cuts]
        assert sum(used) == 40 * 144 + 40 * 1000
        assert used[1:7] == [1144] * 6  # rolled up to whole days
        assert sum(sums.used_ns for (_, tenant), sums in found.items() if tenant == GAP) == 10 * DAY
        # A day by itself has what it has among others.
        for at in (cuts[3], cuts[7], cuts[20]):
            alone = added_up(snapshot(path), "tenant", Span(at, at + DAY))
            assert alone["t",].used_ns == found[at, "t"].used_ns


def test_hours_for_a_replay_are_the_same_after_the_roll_up(tmp_path):
    """The first day is then one slot. Nothing is known about demand while no daemon ran."""
    path = tmp_path / "ledger.db"
    rows = []
    for at in range(10 * DAY, 43 * DAY, HOUR // 2):
        missed = at % DAY == 2 * HOUR
        for device in ("x", "y"):
            what = GAP if missed else IDLE
            rows.append(minute(what, at, HOUR // 2, tenant=what, device=device, used_ns=5))
        if not missed:
            rows += [
                minute(name, at, HOUR // 2, tenant=name, used_ns=3, waited_ns=2) for name in "ab" if at // HOUR % 3
            ]
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    file.write(1, batch(*rows))
    exact = slots(snapshot(path), Span(0, LARGEST))
    assert len(exact) == 33 * 24
    assert (exact[2].length_ns, exact[3].length_ns, exact[3].capacity_ns) == (HOUR // 2, HOUR, 2 * HOUR)
    while file.roll(43 * DAY):
        pass
    found = slots(snapshot(path), Span(0, LARGEST))
    assert found[1:] == exact[24:]
    assert (found[0].begins_ns, found[0].length_ns, found[0].capacity_ns) == (10 * DAY, 47 * HOUR // 2, 47 * HOUR)
    for name in ("used_ns", "waited_ns"):
        assert getattr(found[0], name) == {
            tenant: sum(getattr(slot, name).get(tenant, 0) for slot in exact[:24]) for tenant in getattr(found[0], name)
        }
    assert slots(snapshot(path, rows[-2:]), Span(50 * DAY, LARGEST)) == []
    waiting = [replace(row, to_ns=51 * DAY) for row in rows[-4:]]
    assert [slot.length_ns for slot in slots(snapshot(path, waiting), Span(50 * DAY, LARGEST))] == [
        51 * DAY - rows[-1].from_ns
    ]


def test_minutes_of_each_device(tmp_path):
    """Use of a device counts in the minute in which its row begins; rows of hours count in their first minute."""
    path = tmp_path / "ledger.db"
    rows = [
        replace(minute(name, 10 * DAY + at * MINUTE, used_ns=used), device=device, tenant=name)
        for at in range(90)
        for device in ("GPU-1", "GPU-2")
        for name, used in ((IDLE, 0), ("a", at + (device == "GPU-2")))
    ]
    file = rolled(path, rows[:-2], 0)
    each, span = Cut("minute", "device"), Span(10 * DAY, LARGEST)

    def found(cut, waiting=()):
        return [
            (slot.begins_ns // MINUTE - 10 * 24 * 60, slot.device, slot.length_ns // MINUTE, slot.used_ns)
            for slot in slots(snapshot(path, waiting), span, cut)
        ]

    whole = [(at, device, 1, {"a": at + more}) for at in range(90) for device, more in (("GPU-1", 0), ("GPU-2", 1))]
    assert found(each, rows[-2:]) == whole  # the last row waits to be written
    assert found(each) == whole[:-1]
    assert found(Cut("minute"))[7] == (7, "", 1, {"a": 15})
    assert [one[:3] for one in found(Cut("hour", "device"))] == [
        *((0, "GPU-1", 60), (0, "GPU-2", 60)),
        *((60, "GPU-1", 30), (60, "GPU-2", 29)),
    ]
    while file.roll(10 * DAY + AGE + HOUR):
        pass
    file.close()
    assert found(each)[:3] == [
        (0, "GPU-1", 60, {"a": sum(range(60))}),
        (0, "GPU-2", 60, {"a": sum(range(60)) + 60}),
        (60, "GPU-1", 1, {"a": 60}),
    ]


def test_numbers_beyond_64_bits_add_up(tmp_path):
    path = tmp_path / "ledger.db"
    rows = [minute("a", at, used_ns=LARGEST) for at in range(3)]
    rolled(path, rows, 0).close()
    for by in ("tenant", "hour"):
        assert [sums.used_ns for sums in added_up(snapshot(path), by, Span(0, LARGEST)).values()] == [3 * LARGEST]


def test_rows_across_an_hour_make_no_second_row_of_it(tmp_path):
    path = tmp_path / "ledger.db"
    file = LedgerFile(path)
    file.begin(1, "boot", 0)
    for day in range(3):
        rows = [minute(name, day * DAY + at * MINUTE + MINUTE // 2) for at in range(24 * 60) for name in "ab"]
        file.write(1, batch(*rows))
        for hour in range(24):
            while file.roll(day * DAY + hour * HOUR + HOUR // 2 + AGE):
                pass
    query = "SELECT COUNT(*), COUNT(DISTINCT (from_ns / 3600000000000) || grant_id) FROM hours"
    assert in_file(path, query) == [(2 * 71, 2 * 71)]


def test_a_gap_in_an_hour_is_not_filled(tmp_path):
    path = tmp_path / "ledger.db"
    rows = [minute(IDLE, at * MINUTE, tenant=IDLE, used_ns=MINUTE) for at in (0, 1, 50)]
    rolled(path, rows, 3 * DAY)
    assert in_file(path, "SELECT from_ns, to_ns, used_ns FROM hours") == [(0, 3 * MINUTE, 3 * MINUTE)]


def test_what_was_edited_is_not_rolled_up(tmp_path):
    path = tmp_path / "ledger.db"
    file = rolled(path, [minute("a", at * MINUTE, used_ns=at) for at in range(5)], HOUR)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE periods SET used_ns = 0 WHERE id = 3")
    assert not file.roll(3 * DAY)
    assert in_file(path, "SELECT COUNT(*) FROM periods") == [(5,)]
    assert "row 3 is not what was written" in fault(path, "periods")


def test_more_rows_than_go_at_once_end_at_an_hour(tmp_path, monkeypatch):
    monkeypatch.setattr(rollup, "_ROWS", 100)
    path = tmp_path / "ledger.db"
    rolled(path, [minute("a", at * MINUTE, used_ns=1) for at in range(300)], 3 * DAY)
    assert in_file(path, "SELECT COUNT(*), SUM(used_ns), COUNT(DISTINCT from_ns) FROM hours") == [(5, 300, 5)]


def test_rows_from_before_the_chain_are_rolled_up_too(tmp_path):
    path = tmp_path / "ledger.db"
    rolled(path, [minute("a", at * MINUTE, used_ns=1) for at in range(90)], HOUR).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE periods SET hash = NULL")
        chain.begin(db)
    rolled(path, [], 3 * DAY).close()
    assert in_file(path, "SELECT COUNT(*), SUM(used_ns) FROM hours") == [(2, 90)]
    assert [fault(path, table) for table in CHAINED] == [""] * 3


NUMBER = st.integers(0, 10**12) | st.just(LARGEST)


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", IDLE, REST]), st.integers(0, 3 * DAY), NUMBER), max_size=20),
    st.integers(0, 80 * DAY),
)
def test_sums_stay(tmp_path_factory, rows, now):
    """Each tenant's sums stay the same, whatever the clock did, up to the largest number of the ledger."""
    path = tmp_path_factory.mktemp("sums") / "ledger.db"
    made = [minute(name, at, tenant=name, **dict.fromkeys(SUMS, number)) for name, at, number in rows]
    file = rolled(path, made, now)
    names = ", ".join((*chain.COLUMNS,))
    found = {}
    for table in CHAINED:
        for row in in_file(path, f"SELECT {names} FROM {table}"):
            row = dict(zip(chain.COLUMNS, row, strict=True))
            assert row["to_ns"] >= row["from_ns"]
            found.setdefault(row["tenant"], []).append(row)
    for tenant in {name for name, *_ in rows}:
        for name in SUMS:
            exact = sum(number for one, _, number in rows if one == tenant)
            assert min(exact, LARGEST) == pytest.approx(min(LARGEST, sum(row[name] for row in found[tenant])), abs=0)
    lengths = sum(row["to_ns"] - row["from_ns"] for row in found.get(IDLE, []))
    assert lengths == MINUTE * sum(name == IDLE for name, *_ in rows)
    assert [fault(path, table) for table in CHAINED] == [""] * 3
    file.close()
