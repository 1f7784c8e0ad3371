"""Charts as SVG, read by an XML parser: well-formed, legible, and true to their data."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpushare import charts
from gpushare.charts import Canvas, Column, Frame, Scale, plain, shortened, stacked

SVG = "{http://www.w3.org/2000/svg}"
GOLDEN = Path(__file__).with_name("golden") / "stacked.svg"


def drawn(columns, count=3):
    canvas = Canvas("Title", "What it says.", 300)
    stacked(canvas, Frame(40, 10, 240, 100), count, columns, " h")
    return canvas.svg(140)


def boxes(text):
    """(hint, fill, x, y, width, height) of each box except the background."""
    found = []
    for box in ElementTree.fromstring(text).iter(f"{SVG}rect"):
        if box.get("y"):
            numbers = [float(box.get(name)) for name in ("x", "y", "width", "height")]
            found.append((box.findtext(f"{SVG}title"), box.get("fill", "empty"), *numbers))
    return found


def test_a_small_one_is_as_it_was():
    text = drawn([Column(0, [(1, 0, "a 1 h"), (2, 1, "b 2 h")], (1, "idle")), Column(2, [(4, 1, "b 4 h")])])
    assert text == GOLDEN.read_text()


def test_heights_are_the_values_and_parts_stand_on_each_other():
    first, second, rest, other = boxes(
        drawn([Column(0, [(1, 0, ""), (3, 1, "")], (4, "idle")), Column(2, [(2, 0, "")])])
    )
    assert (second[5], rest[5], other[5]) == pytest.approx((3 * first[5], 4 * first[5], 2 * first[5]), abs=0.2)
    assert first[3] + first[5] == other[3] + other[5] == 110
    assert second[3] + second[5] == pytest.approx(first[3], abs=0.11)
    assert rest[3] + rest[5] == pytest.approx(second[3], abs=0.11)
    assert (first[1], second[1], rest[1]) == ("url(#f0)", "url(#f1)", "empty")
    assert other[2] - first[2] == pytest.approx(160), "the place between them is left empty"


@pytest.mark.parametrize(
    ("largest", "most", "step"),
    [(0, 1, 1), (1, 1, 0.5), (4, 4, 1), (7, 8, 2), (48, 60, 20), (0.03, 0.03, 0.01), (1234, 1500, 500)],
)
def test_lines_are_at_round_numbers(largest, most, step):
    scale = Scale.of(largest)
    assert (scale.most, scale.step) == pytest.approx((most, step))
    assert scale.most >= largest


HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[31mred",
    "\u202eover",
    "]]>&amp;",
    "a" * 200,
    "\ud800",
    "\u05d0\u05d1",
    "\0",
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_names_are_text(name):
    canvas = Canvas(name, name, 300)
    canvas.text(1, 1, shortened(name, 200), hint=name)
    canvas.box(1, 1, 1, 1, 0, name)
    text = canvas.svg(10)
    assert text.encode()
    root = ElementTree.fromstring(text)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        *("svg", "title", "desc", "style", "defs", "pattern", "path", "rect", "text")
    }
    assert root.findtext(f"{SVG}title") == plain(name)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_names_are_cut_with_an_ellipsis():
    assert shortened("short", 200) == "short"
    assert len(shortened("a" * 200, 200)) < 32 and shortened("a" * 200, 200).endswith("\u2026")


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("shade", [0, 1], ids=["light", "dark"])
def test_contrast(shade):
    """WCAG 2: at least 4.5:1 for text, 3:1 for graphics."""
    paper = charts._PAPER[shade]
    assert min(contrast(paper, charts._INK[name][shade]) for name in ("ink", "dim")) >= 4.5
    assert len(charts._COLOURS) == len(charts._PATTERNS) == charts.FILLS
    assert min(contrast(paper, colours[shade]) for colours in charts._COLOURS) >= 3


def test_it_needs_nothing_else_and_knows_the_dark():
    text = drawn([Column(0, [(1, 0, "")])])
    assert "prefers-color-scheme:dark" in text
    assert re.findall(r"url\([^#]|href|@import|https?://(?!www.w3.org/2000/svg)", text) == []
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img" and root.get("aria-labelledby") == "title desc"
    assert root.findtext(f"{SVG}desc") == "What it says."
