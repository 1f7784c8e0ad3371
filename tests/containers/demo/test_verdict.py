"""The verdict: each claim holds for a good run and fails for exactly the run that breaks it."""

import json
from dataclasses import replace

import jsonschema
import pytest

from gpushare.demo import screen
from gpushare.demo.books import Page, Reading, shares_of_demand, shares_of_wall
from gpushare.demo.story import BORROWER, OWNER
from gpushare.demo.verdict import Facts, claims

GIB = 1 << 30

MILLI = {"type": "object", "additionalProperties": {"type": "integer"}, "required": ["research", "class"]}
PHASES = ["both", "owner_idle", "owner_back", "over_limit"]


def _object(**properties):
    return {"type": "object", "required": list(properties), "additionalProperties": False, "properties": properties}


BYTES = {"type": "integer", "minimum": 0}
SCHEMA = _object(
    device=_object(name={"type": "string"}, uuid={"type": "string", "pattern": "^GPU-"}, simulated={"type": "boolean"}),
    tenants={
        "type": "array",
        "items": _object(
            name={"type": "string"},
            pid={"type": "integer", "minimum": 1},
            share_asked_milli={"type": "integer"},
            share_got_milli={"type": "integer"},
            memory_limit_bytes=BYTES,
            memory_peak_bytes=BYTES,
        ),
    },
    phases={"type": "array", "items": _object(name={"enum": PHASES}, seconds={"type": "number"}, shares_milli=MILLI)},
    reclaim_ms={"type": "number", "minimum": 0},
    oom_refused_at_bytes=BYTES,
    kills={"type": "integer"},
    verdict={"enum": ["pass", "fail"]},
    claims={
        "type": "array",
        "items": _object(
            claim={"type": "string"}, ok={"type": "boolean"}, measured={"type": "string"}, why_not={"type": "string"}
        ),
    },
)


@pytest.fixture
def good() -> Facts:
    fair = {"research": 752, "class": 248}
    return Facts(
        OWNER,
        BORROWER,
        shares={"both": fair, "owner_idle": {"research": 1, "class": 996}, "owner_back": fair, "over_limit": fair},
        seconds=dict.fromkeys(PHASES, 5.0),
        pids={"research": 11, "class": 12},
        peak_bytes={"research": 6 * GIB, "class": 4 * GIB},
        reclaim_ms=1.2,
        refused_at_bytes=4 * GIB,
        refused_with=2,
        refused_with_name="CUDA_ERROR_OUT_OF_MEMORY",
        owner_bytes_before=6 * GIB,
        owner_bytes_after=6 * GIB,
        alive_after_reclaim=True,
    )


def failed(facts: Facts) -> list[str]:
    return [claim.claim for claim in claims(facts) if not claim.ok]


def test_good_run(good):
    assert failed(good) == []


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ({"reclaim_ms": 20.1}, "has the device back within"),
        ({"reclaim_ms": None}, "has the device back within"),
        ({"refused_at_bytes": None}, "is refused at its"),
        ({"refused_at_bytes": 4 * GIB - (16 << 20)}, "is refused at its"),
        ({"refused_at_bytes": 4 * GIB + 1}, "is refused at its"),
        ({"refused_with": 999}, "is refused at its"),
        ({"owner_bytes_after": 5 * GIB}, "is unharmed"),
        ({"peak_bytes": {"research": 6 * GIB, "class": 4 * GIB + 1}}, "class never held more"),
        ({"peak_bytes": {"research": 9 * GIB, "class": GIB}}, "research never held more"),
        ({"peak_bytes": {"research": GIB, "class": 0}}, "class never held more"),
        ({"alive_after_reclaim": False}, "lives on"),
        ({"kills": 1}, "nobody was killed"),
    ],
)
def test_what_breaks_a_claim(good, change, claim):
    (only,) = failed(replace(good, **change))
    assert claim in only


@pytest.mark.parametrize(
    ("phase", "shares", "expected"),
    [
        ("both", {"research": 729, "class": 271}, 2),
        ("owner_idle", {"research": 0, "class": 949}, 1),
        ("owner_back", {"research": 729, "class": 271}, 1),
        ("over_limit", {"research": 771, "class": 229}, 1),
    ],
)
def test_shares_off_by_more_than_two_points(good, phase, shares, expected):
    assert len(failed(replace(good, shares={**good.shares, phase: shares}))) == expected


def test_json_shape(good):
    device = {"name": "gpushare simulated GPU", "uuid": "GPU-1", "simulated": True}
    value = json.loads(json.dumps(screen.as_json(device, good, claims(good))))
    jsonschema.validate(value, SCHEMA)
    assert [phase["name"] for phase in value["phases"]] == PHASES
    assert value["verdict"] == "pass"
    bad = replace(good, kills=1)
    assert screen.as_json(device, bad, claims(bad))["verdict"] == "fail"


def test_shares():
    before = Page(1000, {"a": Reading(100, 0, 0), "b": Reading(50, 0, 0)})
    after = Page(2000, {"a": Reading(700, 0, 0), "b": Reading(250, 0, 0)})
    assert shares_of_demand(before, after) == {"a": 750, "b": 250}
    assert shares_of_wall(before, after) == {"a": 600, "b": 200}
    assert shares_of_demand(before, before) == {"a": 0, "b": 0}
    assert shares_of_wall(before, before) == {"a": 0, "b": 0}
