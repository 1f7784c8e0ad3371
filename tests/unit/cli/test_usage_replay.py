"""`gpushare usage replay`: what it prints, and what it refuses."""

import json
from types import SimpleNamespace

import pytest

from gpushare.cli.main import main
from gpushare.cli.usage import replay

HOUR = 3600 * 10**9
AT = 1_792_800_000 // 3600 * HOUR
GIB = 1 << 30


def slot(at, used, waited, hours=1):
    def ns(of):
        return {name: int(number * HOUR) for name, number in of.items()}

    return {
        "begins_ns": AT + at * HOUR,
        "length_ns": hours * HOUR,
        "capacity_ns": hours * 8 * HOUR,
        "used_ns": ns(used),
        "waited_ns": ns(waited),
        "later": "of another version",
    }


# Eight devices: a is guaranteed 2 and b 6; in the second hour b is idle.
SLOTS = [slot(0, {"a": 2, "b": 6}, {"a": 6, "b": 2}), slot(1, {"a": 5, "c/x": 0.5}, {})]


@pytest.fixture
def reply(monkeypatch, capsys, tmp_path):
    def run(quotas, *arguments, status=0, slots=SLOTS):
        asked = {}

        def answer(**query):
            asked.update(query)
            return {"since_ns": 1, "until_ns": 2, "slots": slots}

        node = {"capacity": {"time": 8000, "memory": 64 * GIB}}
        monkeypatch.setattr(replay, "client", lambda args: SimpleNamespace(usage_slots=answer, node=lambda: node))
        file = tmp_path / "other.toml"
        if quotas is not None:
            file.write_text(quotas)
        assert main(["usage", "replay", "--tenants", str(file), *arguments]) == status
        out, err = capsys.readouterr()
        return (out, asked) if status == 0 else err.replace(str(tmp_path), "")

    return run


OTHER = "[tenants.a]\ntime = '600%'\n\n[tenants.b]\ntime = '200%'\ntime_limit = '400%'\n"


def test_as_a_table(reply):
    text, asked = reply(OTHER, "--since", "2026-10-01", "--until", "2026-11-01")
    assert text.splitlines() == [
        "TENANT     USED  WAITED  WOULD USE  BORROWED   WAIT  UNUSED  SHORT  LONGEST               WHEN",
        "a         7.00h   6.00h     11.00h         -  2.00h   1.00h  1.00h    2.00h  2026-10-24T00:00Z",
        "b         6.00h   2.00h      2.00h         -  6.00h   2.00h  1.00h    6.00h  2026-10-24T00:00Z",
        "c/x     30.0min       -    30.0min   30.0min      -       -      -        -                  -",
        "idle would have been 2.50h (15.6 %), and was 2.50h (15.6 %); of 16.00h",
        "without a quota in the file, and so without a guarantee: c/x",
    ]
    assert (asked["since"], asked["until"]) == (1790812800 * 10**9, 1793491200 * 10**9)


def test_as_json(reply):
    text, _ = reply("[tenants.a]\ntime_limit = '300%'\n", "--json")
    found = json.loads(text)
    tenants = {one["name"]: one for one in found["tenants"]}
    assert tenants["a"]["used_ns"] == 6 * HOUR and tenants["a"]["waited_ns"] == 7 * HOUR
    assert tenants["default"]["unused_ns"] == 16 * HOUR
    assert (found["slots"], found["capacity_ns"], found["unknown"]) == (2, 16 * HOUR, ["b", "c/x"])


def test_devices_are_counted_whole(reply):
    late = slot(0, {"a": 8}, {}) | {"capacity_ns": 8 * HOUR - 5_000_000_000}
    assert reply("[tenants.a]\ntime = '800%'\n", slots=[late])[0].startswith("TENANT")


def test_nothing_is_recorded(reply):
    assert reply(OTHER, slots=[])[0] == "nothing is recorded\n"


@pytest.mark.parametrize(
    ("quotas", "status", "words"),
    [
        (None, 2, "/other.toml: there is no such file"),
        ("[tenants.a\n", 2, "/other.toml:1: "),
        ("# x\n[tenants.a]\ntimes = 5\n", 2, "/other.toml:3: tenant a: "),
        ("[tenants.a]\ntime = '500%'\n[tenants.b]\ntime = '400%'\n", 3, "/other.toml:4: tenant b: with it tenants"),
        ("[tenants.a]\nparent = 'b'\n[tenants.b]\nparent = 'a'\n", 2, "/other.toml:2: tenant a: parent 'b' is below"),
        ("[tenants.a]\ntime = -5\n", 2, "/other.toml:2: tenant a: "),
    ],
)
def test_what_is_refused(reply, quotas, status, words):
    text = reply(quotas, status=status)
    assert words in text and len(text.splitlines()) == 1
