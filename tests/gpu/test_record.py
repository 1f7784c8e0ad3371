"""How `make bench` compares a run with the stored run."""

import json

import pytest
import record


def test_the_stored_run_of_a_kind_is_compared_with(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bench.json").write_text(json.dumps({"date": "2026-01-09"}))
    assert record.stored("bench", tmp_path) == {"date": "2026-01-09"}
    assert record.stored("other", tmp_path) == {}


def test_rows_stand_next_to_the_stored_ones_with_their_ratio():
    def rows(**measured: str) -> list[dict]:
        return [{"name": name, "measured": text} for name, text in measured.items()]

    old = rows(wake="p50 1.00 ms, p99 1.06 ms", loss="+0.00 %", gone="3 ms")
    new = rows(wake="p50 1.25 ms, p99 1.30 ms", loss="+0.10 %", new="5 ns")
    stored = {"date": "d", "commit": "c", "machine": "m", "rows": old}
    assert record.side_by_side(stored, new) == [
        "against d at c, m:",
        "  wake: p50 1.25 ms, p99 1.30 ms | stored p50 1.00 ms, p99 1.06 ms, ratio 1.25",
        "  loss: +0.10 % | stored +0.00 %, ratio -",
        "  new: 5 ns | not in the stored run",
        "  gone: not measured in this run | stored 3 ms",
    ]
    assert len(record.side_by_side(stored, new, whole=False)) == 4
    assert record.side_by_side({}, new) == ["no run is stored to compare with"]


@pytest.mark.parametrize(
    ("before", "now", "target", "found"),
    [
        (["2.9 ms", "3.1 ms"], ["3.4 ms", "3.3 ms (of 8)"], "<= 5 ms", "worse"),
        (["2.9 ms", "3.1 ms"], ["3.2 ms", "3.0 ms"], "<= 5 ms", "same"),
        (["+2.99 ms", "+3.0 ms"], ["+3.1 ms", "+3.01 ms"], "<= 5 ms", "same"),
        (["2.9 ms", "3.1 ms"], ["2 ms", "1 ms"], "<= 5 ms", "better"),
        (["1,100/s", "1,050/s"], ["900/s", "940/s"], ">= 1000/s", "worse"),
        (["1,100/s", "1,050/s"], ["1,900/s", "1,940/s"], ">= 1000/s", "better"),
        (["-0.1 %", "-0.2 %"], ["+0.1 %", "+0.2 %"], "<= 1 %", "worse"),
        (["1 ms"], ["2 ms"], "none", "-"),
        ([], ["2 ms"], "<= 1 ms", "-"),
        (["1 ms"], [], "<= 1 ms", "-"),
        (["flat"], ["2 ms"], "<= 1 ms", "-"),
    ],
)
def test_a_row_is_worse_only_where_all_of_its_runs_are(before, now, target, found):
    rows = ([record.Row(measured, target) for measured in some] for some in (before, now))
    assert record.verdict(*rows) == found
