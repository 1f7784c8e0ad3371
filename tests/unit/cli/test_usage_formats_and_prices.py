"""`gpushare usage` as text, CSV, JSON and FOCUS, and prices."""

import csv
import io
import itertools
import json
from datetime import datetime
from decimal import Decimal
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from gpushare.cli import prices
from gpushare.cli.usage import focus, usage
from gpushare.errors import UsageError
from gpushare.policy.usage.billing import Prices, charges, cost

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600 * 10**9
GIBH = 3600 << 30
DAY = 1_792_800_000 // 86400 * 86400 * 10**9
ROWS = [
    {"tenant": "ml/bob", "grant": "g-1", "device": "GPU-0", "begins_ns": DAY, "guaranteed_ns": 10 * HOUR,
     "extra_ns": 2 * HOUR, "borrowed_ns": 5 * HOUR, "lent_ns": HOUR // 2, "waited_ns": 90 * 10**9,
     "memory_byte_s": 24 * GIBH, "waits": 7},
    {"tenant": "scav", "grant": "g-2", "device": "GPU-1", "begins_ns": DAY, "scavenged_ns": 4 * HOUR, "reclaims": 3},
]  # fmt: skip
SPENT = {
    "wall_ns": 40 * HOUR, "used_ns": 19 * HOUR, "idle_ns": 19 * HOUR, "switching_ns": HOUR, "missed_ns": HOUR,
    "idle_with_waiters_ns": 0,
}  # fmt: skip
PRICES = "currency = 'EUR'\nguaranteed = 2.50\nborrowed = 0.5\nscavenged = 0.1\nmemory_gib = 0.01\n"


@pytest.fixture
def message(monkeypatch, capsys, tmp_path):
    def run(*arguments, priced=True):
        asked = {}

        def answer(**query):
            asked.update(query)
            return {
                "since_ns": 1,
                "until_ns": 1 << 61,
                "by": query["by"],
                "rows": [dict(row) for row in ROWS],
                "devices": SPENT,
            }

        monkeypatch.setattr(usage, "client", lambda args: SimpleNamespace(usage=answer))
        monkeypatch.setattr("os.uname", lambda: SimpleNamespace(nodename="node-1"))
        file = tmp_path / "p.toml"
        file.write_text(PRICES)
        from gpushare.cli.main import main

        assert main(["usage", *arguments, *(("--prices", str(file)) if priced else ())]) == 0
        return capsys.readouterr().out, asked

    return run


def test_as_a_table(message):
    text, asked = message("--since", "2026-11-01", "--tenant", "ml", "--tz", "UTC")
    assert text.splitlines() == [
        "TENANT    USED  GUARANTEED  EXTRA  BORROWED  LEFT OVER   LENT  WAITED     MEMORY  COST EUR",
        "ml/bob  17.00h      10.00h  2.00h     5.00h          -  0.50h   0.03h  24.00GiBh     32.74",
        "scav     4.00h           -      -         -      4.00h      -       -          -      0.40",
        "total   21.00h      10.00h  2.00h     5.00h      4.00h  0.50h   0.03h  24.00GiBh     33.14",
        "devices: 47.5 % used, 47.5 % idle (19.00h, 47.50 EUR at the price of guaranteed time), 2.5 % switching, "
        "2.5 % without a daemon; of 40.00h",
    ]
    assert asked == {"by": "tenant", "since": 1793491200 * 10**9, "until": None, "tenant": "ml"}
    text, _ = message(priced=False)
    assert text.splitlines()[-1].startswith("there are no prices: ") and "/etc/gpushare/prices.toml" in text


def test_by_day_in_a_time_zone(message, monkeypatch):
    """Days have the length that they have there, and each row the two moments between which it is."""
    summer, winter = (int(datetime(2026, 10, day, tzinfo=BERLIN).timestamp()) * 10**9 for day in (25, 26))
    monkeypatch.setitem(ROWS[0], "begins_ns", summer)
    monkeypatch.setitem(ROWS[1], "begins_ns", winter)
    options = ("--by", "day", "--tz", "Europe/Berlin", "--since", "2026-10-24", "--until", "2026-10-27")
    text, asked = message(*options)
    assert [line.split()[:2] for line in text.splitlines()[:4]] == [
        ["DAY", "TENANT"],
        ["2026-10-25", "ml/bob"],
        ["2026-10-26", "scav"],
        ["total", "21.00h"],
    ]
    cuts = [int(cut) for cut in asked["cuts"].split(",")]
    assert asked["by"] == "period" and [(b - a) // HOUR for a, b in itertools.pairwise(cuts)] == [24, 25]
    first, _ = csv.DictReader(io.StringIO(message(*options, "--format", "csv")[0]))
    assert (first["begins"], first["day"], first["gpu_hours"]) == (
        "2026-10-25T00:00:00+02:00",
        "2026-10-25",
        "17.000000",
    )


def test_as_csv_and_json(message):
    text, _ = message("--format", "csv", "--by", "grant")
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["grant"], first["guaranteed_ns"], first["cost"], first["currency"]) == (
        "g-1",
        str(10 * HOUR),
        "32.740000",
        "EUR",
    )
    assert (second["tenant"], second["scavenged_ns"], second["borrowed_ns"], second["reclaims"]) == (
        "scav",
        str(4 * HOUR),
        "0",
        "3",
    )
    value = json.loads(message("--json")[0])
    assert value["rows"][1]["cost"] == "0.400000" and value["currency"] == "EUR" and value["devices"] == SPENT
    assert "cost" not in json.loads(message("--format", "json", priced=False)[0])["rows"][0]


def test_as_focus(message):
    text, asked = message("--format", "focus")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert asked["by"] == "charge" and set(rows[0]) == set(focus.COLUMNS)
    assert [(row["SkuId"], row["ConsumedQuantity"], row["ConsumedUnit"], row["BilledCost"]) for row in rows] == [
        ("gpu-guaranteed", "10", "GPU hours", "25"),
        ("gpu-extra", "2", "GPU hours", "5"),
        ("gpu-borrowed", "5", "GPU hours", "2.5"),
        ("gpu-memory", "24", "GiB hours", "0.24"),
        ("gpu-scavenged", "4", "GPU hours", "0.4"),
    ]
    one = rows[0]
    assert (one["ChargePeriodStart"], one["ChargePeriodEnd"]) == ("2026-10-24T00:00:00Z", "2026-10-25T00:00:00Z")
    assert (one["BillingPeriodStart"], one["BillingPeriodEnd"]) == ("2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z")
    assert (one["BillingAccountId"], one["SubAccountId"], one["ResourceId"]) == ("node-1", "ml/bob", "g-1/GPU-0")
    assert one["BilledCost"] == one["EffectiveCost"] == one["ListCost"] == one["ContractedCost"]


def test_a_bill_adds_up_to_the_last_digit():
    tenth = Prices("EUR", *[Decimal("0.1")] * 4)
    kinds = ["guaranteed", "extra", "borrowed", "scavenged"]
    row = {"memory_byte_s": 0, **{f"{kind}_ns": HOUR for kind in kinds}}
    assert cost(row, tenth) == Decimal("0.4")
    assert [charge.what for charge in charges(row, tenth)] == kinds


def test_nobody_pays_for_a_copy_or_a_stall():
    """Memory that was away costs what host memory costs, and no compute."""
    row = {"guaranteed_ns": HOUR, "memory_byte_s": GIBH}
    moved = {**row, "moved_out_bytes": 8 << 30, "moved_in_bytes": 8 << 30, "stalled_ns": HOUR, "stalls": 9}
    every = Prices("EUR", *[Decimal(1)] * 6)
    assert cost(moved, every) == cost(row, every) == 2
    away = {**moved, "hosted_byte_s": 3 * GIBH}
    assert [(one.what, one.quantity, one.unit) for one in charges(away, every)][1:] == [
        ("memory", 1, "GiB hours"),
        ("hosted", 3, "GiB hours"),
    ]
    assert cost(away, every) - cost(row, every) == 3


MOVED = {"hosted_byte_s": 6 * GIBH, "moved_out_bytes": 8 << 30, "moved_in_bytes": 7 << 30, "stalled_ns": 90 * 10**9}


def test_columns_of_moves_are_there_where_something_was_moved(message, monkeypatch):
    for name, number in MOVED.items():
        monkeypatch.setitem(ROWS[0], name, number)
    lines = message("--by", "tenant", priced=False)[0].splitlines()
    assert lines[0].split()[-4:] == ["MEMORY", "HOSTED", "MOVED", "STALLED"]
    assert lines[1].split()[-3:] == ["6.00GiBh", "15GiB", "0.03h"] and lines[2].split()[-3:] == ["-", "-", "-"]
    [first, _] = csv.DictReader(io.StringIO(message("--format", "csv")[0]))
    assert {name: int(first[name]) for name in MOVED} == MOVED
    priced = list(csv.DictReader(io.StringIO(message("--format", "focus")[0])))
    assert ("gpu-hosted", "6") in [(row["SkuId"], row["ConsumedQuantity"]) for row in priced]


def test_who_waited_for_whom(message, monkeypatch):
    held = [
        {"tenant": "ml/bob", "stalled_ns": 90 * 10**9, "stalls": 3},
        {"tenant": "ml/bob", "holder_tenant": "scav", "holder": "g-2", "stalled_ns": 600 * 10**9, "stalls": 1},
    ]
    monkeypatch.setitem(globals(), "ROWS", held)
    text, asked = message("--by", "holder")
    assert asked["by"] == "holder"
    assert [line.split() for line in text.splitlines()] == [
        ["TENANT", "WAITED", "FOR", "GRANT", "STALLED", "TIMES"],
        ["ml/bob", "scav", "g-2", "10.0min", "1"],
        ["ml/bob", "(copy)", "-", "1.5min", "3"],
    ]
    rows = list(csv.reader(io.StringIO(message("--by", "holder", "--format", "csv")[0])))
    assert rows[0] == ["begins", "ends", "tenant", "holder_tenant", "holder", "stalled_ns", "stalls"]
    assert rows[2][2:] == ["ml/bob", "scav", "g-2", str(600 * 10**9), "1"]


def test_prices_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_bytes(b'\xef\xbb\xbfcurrency = "EUR"\nguaranteed = 2\n')
    assert prices.load(path).currency == "EUR"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("currency = 'EUR'\nguaranteed = -1\n", 2, "guaranteed is '-1'"),
        ("currency = 'EUR'\n\nborrowed = 'much'\n", 3, "borrowed is 'much'"),
        ("currency = 'euro'\n", 1, "give three letters"),
        ("guaranteed = 1\n", None, "currency is 'None'"),
        ("currency = 'EUR'\nguarantee = 1\n", 2, "unknown 'guarantee'"),
        ("currency = 'EUR'\nguaranteed = inf\n", 2, "guaranteed is"),
        ("currency = 'EUR'\nguaranteed = nan\n", 2, "guaranteed is"),
        ("currency = 'EUR'\nguaranteed = 1e99\n", 2, "guaranteed is"),
        ("currency = 'EUR'\nguaranteed = true\n", 2, "guaranteed is"),
        ("currency = 'EUR'\nx = = 1\n", 2, "Invalid"),
    ],
)
def test_prices_that_make_no_sense_are_reported_with_their_line(tmp_path, text, line, message):
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        prices.load(path)
    assert str(caught.value).startswith(f"{path}:{line}: " if line else f"{path}: ") and message in str(caught.value)
