"""The terminal recorder: the text of a program's last frame is in the picture, with or without motion."""

import importlib.util
import re
import sys
from xml.etree import ElementTree

import pytest
from run.built import ROOT

SCRIPTS = ROOT / "scripts"
SVG = "{http://www.w3.org/2000/svg}"


def lines(root, *, hidden):
    """The texts of lines that are visible (or `hidden`) without motion, by their y coordinate."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        if group.find(f"{SVG}text") is not None and (group.get("visibility") == "hidden") == hidden:
            parts = group.findall(f"{SVG}text")
            found.setdefault(int(parts[0].get("y")), []).append(" ".join(part.text for part in parts))
    return found


PROGRAM = r"""
import os, sys
print(f"{os.get_terminal_size().columns} columns <b>&amp;\x1b[32mgreen\x1b[0m end")
for step in range(9):
    print(f"row {step}")
print("\x1b[1Aover", flush=True)
sys.exit(3)
"""


def test_a_real_program(recorder):
    made = recorder.record([sys.executable, "-c", PROGRAM], columns=50)
    assert made.status == 3
    assert [one.text() for one in made.last()] == [
        "50 columns <b>&amp;green end", *(f"row {step}" for step in range(8)), "over8"
    ]  # fmt: skip
    text = recorder.svg(made, "a <title>", rows=4)
    root = ElementTree.fromstring(text)
    assert root.findtext(f"{SVG}title") == "a <title>"
    assert root.findtext(f"{SVG}desc") == "row 5\nrow 6\nrow 7\nover8"
    [first] = lines(root, hidden=False)[recorder.HEAD + recorder.SIZE]
    assert first == "50 columns <b>&amp; green end"
    assert [one.get("class") for one in root.iter(f"{SVG}text") if one.text == "green"] == ["green"]
    assert re.findall(r"url\([^#]|href|@import|https?://(?!www.w3.org/2000/svg)", text) == []


def test_what_was_there_for_a_while(recorder):
    shown = [
        recorder.Shown(0, ((0, "first", "default"),), 0.0, 2.0),
        recorder.Shown(0, ((0, "second", "default"), (7, "\u2588\u2588", "cyan")), 2.0),
        recorder.Shown(5, ((2, "last", "default"),), 3.0),
    ]
    made = recorder.Recording(20, 0, 4.0, shown, [(0.0, 1), (3.0, 6)])
    text = recorder.svg(made, "t", rows=2, speed=2)
    root = ElementTree.fromstring(text)
    assert lines(root, hidden=True) == {recorder.HEAD + recorder.SIZE: ["first"]}
    assert [*lines(root, hidden=False).values()] == [["second \u2588\u2588"], ["last"]]
    whole = 4.0 / 2 + recorder.HOLD_SECONDS
    assert f"{{0%{{visibility:hidden}}0.00%{{visibility:visible}}{100 / whole:.2f}%,100%{{visibility:hidden}}}}" in text
    assert f"{150 / whole:.2f}%{{transform:translateY({-4 * recorder.HIGH}px)}}" in text
    style = root.findtext(f"{SVG}style")
    assert style.count("animation:") == 1 and "animation:" in style.partition("prefers-reduced-motion:no-preference")[2]
    camera = next(group for group in root.iter(f"{SVG}g") if group.get("transform"))
    assert camera.get("transform") == f"translate(0 {-4 * recorder.HIGH})", "without motion it shows the end"


def test_a_program_that_writes_too_much(recorder):
    with pytest.raises(RuntimeError, match="more than 400 rows"):
        recorder.record(["seq", "1000"])


def test_the_readme_says_what_its_picture_shows():
    spec = importlib.util.spec_from_file_location("pictures", SCRIPTS / "pictures" / "__main__.py")
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    drawn = pictures.PICTURES / "demo.svg"
    block = pictures.verdict(drawn.read_text())
    assert "PASS: 11 of 11 claims hold" in block
    assert block in pictures.README.read_text(), "run scripts/pictures README"
    for path in (drawn, *(pictures.PICTURES / name for name in ("demo-teams.svg", "usage.svg", "top.svg"))):
        assert path.stat().st_size <= pictures.BYTES_MAX and "imulated" in path.read_text()
