"""Pictures of benchmarks: a row is drawn if its number and its target are comparable, and stored pictures are up to
date."""

import json
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from xml.etree import ElementTree

import pytest
from run.built import ROOT

BENCH = ROOT / "bench"
SVG = "{http://www.w3.org/2000/svg}"


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
    found = pictures.picture.ratio({"measured": measured, "target": target, "holds": holds})
    assert found == (None if ratio is None else pytest.approx(ratio))


def test_a_row_that_missed_says_so(pictures):
    facts = {"date": "2026-01-01", "machine": "m", "command": "c", "commit": "abc"}
    rows = [
        {"name": "<good>", "measured": "1 ms", "target": "<= 2 ms", "holds": True},
        {"name": "bad", "measured": "3 ms (of 9)", "target": "<= 2 ms", "holds": False},
        {"name": "told", "measured": "4 ms", "target": "none", "holds": True},
    ]
    root = ElementTree.fromstring(pictures.drawn({**facts, "rows": rows}))
    said = [element.text for element in root.iter(f"{SVG}text")]
    assert said[0] == "3 numbers against their targets, 1 missed" and "simulated device" in said[1]
    assert said[-6:] == [
        *("<good>", "1 ms   (target <= 2 ms)", "bad", "3 ms   (target <= 2 ms): missed", "told", "4 ms   (target none)")
    ]
    bars = [box for box in root.iter(f"{SVG}rect") if box.get("fill") and float(box.get("height")) == 10]
    good, bad = (float(box.get("width")) for box in bars)
    goal = next(float(line.get("x1")) for line in root.iter(f"{SVG}line"))
    assert (good / bad, [box.get("fill") for box in bars]) == (pytest.approx(1 / 3, rel=0.01), ["url(#f0)", "url(#f1)"])
    assert float(bars[0].get("x")) + good < goal < float(bars[1].get("x")) + bad


def test_stored_ones_are_what_their_numbers_give(pictures):
    stored = [*pictures.newest(BENCH / "results")]
    assert len(stored) > 10
    for path in stored:
        text = pictures.drawn(json.loads(path.read_text()))
        assert path.with_suffix(".svg").read_text() == text, f"run bench/pictures: {path.stem}"
        assert "simulated device" in text
