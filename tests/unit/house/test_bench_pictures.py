"""Pictures of benchmarks: a row is drawn if its number and its target are comparable."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
from run.built import ROOT

BENCH = ROOT / "bench"


@pytest.fixture(scope="module")
def pictures():
    before = [*sys.path]
    loader = SourceFileLoader("bench_pictures", str(BENCH / "pictures"))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    try:
        loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before


@pytest.mark.parametrize(
    ("measured", "target", "holds", "ratio"),
    [
        ("p99 14.0 ms, p50 10.2 ms", "p99 <= 20 ms", True, 0.7),
        ("p50 0.70 ms, p99 1.00 ms, max 1.04 ms", "p99 <= 150 ms", True, 1 / 150),
        ("376 MiB", "<= 1 GiB", True, 376 / 1024),
        ("1098/s", ">= 1000/s", True, 1.098),
        ("96 % (the daemon -6.7 MiB larger)", ">= 80 %, <= 16 MiB", True, 1.2),
        ("+11.2 ms (median of 30)", "<= 5 ms", False, 2.24),
        ("-0.4 ms", "<= 1 ms", True, 0),
        ("1.014 times the clock", "<= 1.03 times", True, 1.014 / 1.03),
        ("0.24 s", "none", True, None),
        ("+3.7 ms", "within the noise", True, None),
        ("24054 of 1000 nodes", "<= 6 a quiet node", True, None),
        ("100", "<= 1 each", True, None),  # a count of four hundred, which "each" does not compare with
        ("90 %", ">= 80 %, <= 16 MiB", False, None),  # missed by a number that is not drawn
        ("12 ms", "p99 <= 20 ms", True, None),
    ],
)
def test_what_was_measured_of_the_target(pictures, measured, target, holds, ratio):
    found = pictures.ratio({"measured": measured, "target": target, "holds": holds})
    assert found == (None if ratio is None else pytest.approx(ratio))


def test_a_row_that_missed_is_marked_and_ends_beyond_its_target(pictures):
    facts = {"date": "2026-01-01", "machine": "m", "command": "c", "commit": "abc"}
    rows = [
        {"name": "good", "measured": "1 ms", "target": "<= 2 ms", "holds": True},
        {"name": "bad", "measured": "2.5 ms (of 9)", "target": "<= 2 ms", "holds": False},
        {"name": "plain", "measured": "4 ms", "target": "none", "holds": True},
    ]
    figure = pictures.drawn({**facts, "rows": rows})
    [axes] = figure.axes
    assert "1 of 3 targets missed" in figure.get_suptitle()
    assert [text.get_text() for text in axes.texts] == [
        "1 ms   (target <= 2 ms)", "2.5 ms   (target <= 2 ms): missed", "4 ms   (target none)",
    ]  # fmt: skip
    assert [label.get_text() for label in axes.get_yticklabels()] == ["good", "bad", "plain"]
    assert [bar.get_width() for bar in axes.patches] == [0.5, 1.25, 0]
    assert axes.patches[0].get_facecolor() != axes.patches[1].get_facecolor()


def test_all_stored_results_with_rows_can_be_drawn(pictures):
    stored = [pictures.record.stored(path.stem) for path in (pictures.record.RESULTS / "data").iterdir()]
    drawn = [pictures.drawn(document) for document in stored if "rows" in document]
    assert len(drawn) >= 15
