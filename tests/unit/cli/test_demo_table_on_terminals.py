"""The demo's table on emulated terminals of all widths: each drawing replaces the last one, and no line wraps."""

import os
import sys

import pytest

PROGRAM = """
from gpushare.demo.live import Table, painted
table = Table((("TENANT", 10), ("GOT", 8)))
print("before")
table.head()
for got in (25, 50, 75):
    table.rows([(["research", f"{got}%"], got / 100), (["class", f"{100 - got}%"], 1 - got / 100)])
print(painted("after", 32))
"""


@pytest.mark.parametrize(("columns", "bar"), [(10, 0), (24, 0), (30, 0), (31, 8), (120, 30)])
def test_at_any_width(recorder, columns, bar):
    made = recorder.record([sys.executable, "-c", PROGRAM], columns, {**os.environ, "NO_COLOR": ""})
    answer = [one.text() for one in made.last()]
    full = round(0.75 * bar)
    bars = [f"  {'█' * full}{'░' * (bar - full)}" if bar else "", f"  {'█' * (bar - full)}{'░' * full}" if bar else ""]
    table = ["  TENANT         GOT", "  research       75%", "  class          25%"]
    cut = [line[: columns - 1].rstrip() for line in table]
    assert made.status == 0
    assert answer == ["before", cut[0], *(line + rest for line, rest in zip(cut[1:], bars, strict=True)), "after"]


@pytest.mark.parametrize(("setting", "coloured"), [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False)], ids=str)
def test_colours_only_where_they_are_wanted(recorder, setting, coloured):
    made = recorder.record([sys.executable, "-c", PROGRAM], 80, {**os.environ, **setting})
    colours = {run[2] for one in made.last() for run in one.runs}
    assert colours == ({"default", "green", "cyan", "brown"} if coloured else {"default"})
