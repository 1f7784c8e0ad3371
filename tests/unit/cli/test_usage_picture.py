"""`gpushare usage --format svg`: which tenants used the time, read back from the picture."""

import json
import re
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from gpushare.cli.main import main
from gpushare.cli.usage import usage
from gpushare.cli.usage.picture import picture

HOUR = 3600 * 10**9
DAY = 24 * HOUR
FIRST = 1_793_491_200 * 10**9
SVG = "{http://www.w3.org/2000/svg}"


def slot(hour, used, waited=None, length=HOUR, devices=2):
    return {
        "begins_ns": FIRST + hour * HOUR, "length_ns": length, "capacity_ns": devices * length,
        "used_ns": {name: int(part * HOUR) for name, part in used.items()},
        "waited_ns": {name: int(part * HOUR) for name, part in (waited or {}).items()},
    }  # fmt: skip


def found(*slots, hours=24):
    return {"since_ns": FIRST, "until_ns": FIRST + hours * HOUR, "slots": list(slots)}


def texts(svg):
    found = ElementTree.fromstring(svg).iter(f"{SVG}text")
    return [(element.text or "") + "".join(hint.tail for hint in element) for element in found]


def legend(svg):
    """(used, waited) by name, from the legend."""
    reply = texts(svg)
    at = reply.index("waited") + 1
    return {reply[i]: (reply[i + 1], reply[i + 2]) for i in range(at, len(reply) - 2, 3)}


def hints(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}title")][1:]


def test_what_each_used_and_waited():
    svg = picture(found(slot(0, {"a": 0.5, "b/x": 1.25}, {"a": 0.25}), slot(3, {"a": 1})), None, True)
    assert legend(svg) == {"idle, switching": ("1.25h", ""), "b/x": ("1.25h", "-"), "a": ("1.50h", "15.0min")}
    assert "2026-11-01 00:00: a used 30.0min" in hints(svg) and "2026-11-01 03:00: a used 1.00h" in hints(svg)
    assert "2026-11-01 00:00: a waited 15.0min" in hints(svg)
    desc = ElementTree.fromstring(svg).findtext(f"{SVG}desc")
    assert desc == "a used 1.50h and waited 15.0min; b/x used 1.25h and waited -; idle or switching 1.25h of 4.00h."
    assert "simulated" in texts(svg)[0] and "simulated" not in picture(found(slot(0, {"a": 1})), None, False)


def test_hours_are_gathered_as_far_as_they_can_be_drawn():
    for hours, called in ((24, "hour"), (24 * 10, "6 hours"), (24 * 60, "day"), (24 * 365, "week")):
        slots = [slot(hour, {"a": 0.5}) for hour in range(hours)]
        svg = picture(found(*slots, hours=hours), None, False)
        assert texts(svg)[1].endswith(f"by {called}")
        assert legend(svg)["a"][0] == f"{hours / 2:.2f}h"
        assert len({hint.partition(": ")[0] for hint in hints(svg) if " used " in hint}) <= 122


def test_what_is_rolled_up_to_days_is_drawn_by_days():
    svg = picture(found(slot(0, {"a": 10}, length=DAY), slot(24, {"a": 1}), slot(25, {"a": 1}), hours=48), None, False)
    assert texts(svg)[1].endswith("by day")
    assert "2026-11-01: a used 10.00h" in hints(svg) and "2026-11-02: a used 2.00h" in hints(svg)


def test_a_long_question_of_a_young_ledger_shows_what_is_known():
    asked = {
        "since_ns": FIRST - 30 * DAY,
        "until_ns": FIRST + 2 * HOUR,
        "slots": [slot(0, {"a": 1}), slot(1, {"a": 1})],
    }
    assert texts(picture(asked, None, False))[1].endswith("by hour")


def test_of_many_tenants_the_rest_is_together():
    svg = picture(found(slot(0, {f"t{n:02}": n / 100 for n in range(1, 31)}, devices=8)), None, False)
    shown = legend(svg)
    assert list(shown) == ["idle, switching", "23 others", *(f"t{n}" for n in range(24, 31))]
    assert shown["23 others"][0] == "2.76h"
    assert len(legend(picture(found(slot(0, dict.fromkeys("abcdefg", 0.1))), None, False))) == 8


def test_one_tenant_and_those_below_it():
    svg = picture(found(slot(0, {"ml": 0.1, "ml/bob": 0.2, "mlx": 0.3})), "ml", False)
    assert list(legend(svg)) == ["idle, switching", "1 other", "ml", "ml/bob"]


def test_short_times_have_short_units():
    reply = texts(picture(found(slot(0, {"a": 1 / 120}, {"a": 1 / 3600}, length=60 * 10**9, devices=1)), None, False))
    assert {"1 min", "0 min", "1 s", "0 s"} <= set(reply) and not any(one.endswith(" h") for one in reply)


def test_nothing():
    svg = picture(found(), None, False)
    assert "nothing was recorded" in texts(svg)
    assert ElementTree.fromstring(svg).findtext(f"{SVG}desc") == "Nothing was recorded."
    idle = picture(found(slot(0, {})), None, False)
    assert legend(idle) == {"idle, switching": ("2.00h", "")} and "nobody waited" in texts(idle)


@pytest.mark.promise("names-are-harmless")
@pytest.mark.parametrize(
    "name", ["<script>x</script>", "\u202egnp", "n" * 200, "\x1b]0;t\x07", "\u05d0\u05d1\u05d2"], ids=ascii
)
def test_hostile_names(name):
    svg = picture(found(slot(0, {name: 1}, {name: 1})), None, False)
    assert "script" not in {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(svg).iter()}
    assert "\x1b" not in svg and "\u202e" not in svg
    assert len(legend(svg)) == 2


def test_the_same_numbers_are_the_same_bytes():
    one, other = found(slot(0, {"a": 1, "b": 1})), found(slot(0, {"b": 1, "a": 1}))
    assert picture(one, None, False) == picture(other, None, False)


@pytest.fixture
def node(monkeypatch):
    asked = {}

    def slots(**query):
        asked.update(query)
        return found(slot(0, {"a": 1}))

    api = SimpleNamespace(usage_slots=slots, node=lambda: {"simulated": True})
    monkeypatch.setattr(usage, "client", lambda args: api)
    return asked


def test_the_command(node, capsys, tmp_path):
    assert main(["usage", "--format", "svg", "--since", "2026-11-01"]) == 0
    reply = capsys.readouterr().out
    assert node == {"since": FIRST, "until": None} and legend(reply)["a"] == ("1.00h", "-")
    assert main(["usage", "--format", "svg", "--output", str(tmp_path / "u.svg")]) == 0
    assert (tmp_path / "u.svg").read_text() == reply and capsys.readouterr().out == ""


def test_what_it_refuses(node, capsys, tmp_path):
    assert main(["usage", "--format", "svg", "--by", "grant"]) == 2
    assert "leave --by out" in capsys.readouterr().err
    assert main(["usage", "--format", "svg", "--output", str(tmp_path / "none" / "u.svg")]) == 1
    assert re.search("cannot be written: No such file", capsys.readouterr().err)


def test_any_format_goes_to_a_file(monkeypatch, tmp_path):
    answer = {"since_ns": 1, "until_ns": 2, "by": "tenant", "rows": [], "devices": {}}
    monkeypatch.setattr(usage, "client", lambda args: SimpleNamespace(usage=lambda **query: answer))
    assert main(["usage", "--json", "--output", str(tmp_path / "u.json")]) == 0
    assert json.loads((tmp_path / "u.json").read_text()) == answer
