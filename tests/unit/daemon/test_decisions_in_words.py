"""Leases in words for the loser and the winner, the record of other decisions, and who waits while others have too
much."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.api.events import LeaseEvent
from gpushare.daemon.accounts import lease_story
from gpushare.daemon.state import decisions
from gpushare.daemon.state.decisions import Decisions
from gpushare.policy.grants.admission import Choice, Place
from gpushare.policy.grants.spread import Chosen
from gpushare.policy.quota.tenant import TenantPolicy
from gpushare.policy.usage.unfair import SLACK_MILLI, Use, behind, standings_of

MS = 1_000_000


def event(seq: int, kind: str, grant: str, other: str | None, **more: Any) -> LeaseEvent:
    base: dict[str, Any] = {
        **{"seq": seq, "t_ns": seq, "at_ns": seq, "kind": kind, "device": 3, "device_id": "GPU-3"},
        **{"grant": grant, "tenant": f"team-{grant[-1]}", "other": other},
        **{"other_tenant": f"team-{other[-1]}" if other else None, "value_ns": 0, "wait_ns": 0, "reclaim_ns": 0},
        **{"rule": "none", "level": "none", "woke": False, "running": False, "guarantee_milli": 0, "had_milli": 0},
    }
    return LeaseEvent(**{**base, **more})


RECLAIM = [
    event(1, "wake", "g-b", None),
    event(2, "revoke", "g-a", "g-b", rule="guarantee", level="surplus", guarantee_milli=750, had_milli=620),
    event(3, "handover", "g-a", "g-b", reclaim_ns=6_600_000),
    event(4, "lease", "g-b", "g-a", wait_ns=6_600_000, reclaim_ns=4 * MS, rule="guarantee", level="guarantee",
          guarantee_milli=750, extra_milli=100, had_milli=620),
    event(5, "drained", "g-a", "g-b", reclaim_ns=7 * MS),
    event(6, "revoke", "g-b", None, rule="idle", level="guarantee"),
    event(7, "left", "g-a", None, wait_ns=9 * MS),
]  # fmt: skip


def test_the_one_who_lost_is_notified_who_took_it_and_by_which_rule():
    taken, left = lease_story.decisions("g-a", RECLAIM)
    assert taken.text == (
        "borrowed time on device 3 taken after 6.6 ms: g-b of team-b was below its guarantee"
        " (guaranteed 75%, had 62%; rule guarantee)"
    )
    assert (taken.what, taken.rule, taken.other, taken.device, taken.at_ns) == ("taken", "guarantee", "g-b", 3, 2)
    assert taken.numbers == {"guarantee_milli": 750, "had_milli": 620, "reclaim_ns": 6_600_000}
    assert (left.what, left.text) == ("waited", "stopped waiting for device 3 after 9.0 ms")


def test_the_one_who_won_is_notified_how_long_it_waited_and_for_whom():
    took, served, gave = lease_story.decisions("g-b", RECLAIM)
    assert took.text == (
        "device 3 taken from g-a of team-a after 6.6 ms: this grant was below its guarantee"
        " (guaranteed 75%, had 62%; rule guarantee)"
    )
    assert (took.other, took.other_tenant) == ("g-a", "team-a")
    assert served.text == (
        "served on device 3 after 6.6 ms, 4.0 ms of them for what g-a of team-a still ran"
        " (out of its guarantee, guaranteed 75% and 10% extra, had 62%)"
    )
    assert gave.text == "gave device 3 back: it had nothing to run"


def place(device: int = 0, time: int = 250, guaranteed: int = 250) -> Place:
    return Place(f"GPU-{device}", device, 1 << 30, time, guaranteed, 1000)


def test_why_a_device_was_chosen():
    record = Decisions()
    for fits, time in (({0: 40}, 250), ({0: 40, 1: 900}, 250), ({0: 1900, 1: 900}, 0)):
        record.admitted("g-1", "team-a", [Choice(place(time=time, guaranteed=time), fits, ("device 1: full",), 400)])
    for way, passed in (("spread", ()), ("spread", (1,)), ("spread", (2, 3)), ("pack", ()), ("pack", (0,))):
        chosen, fits = (
            Chosen(place(), way, passed if way == "spread" else (), ("train",) if passed else ()),
            {0: 40, 1: 9, 2: 90, 3: 90},
        )
        record.admitted("g-1", "team-a", [Choice(place(), fits, (), 400, None, chosen)])
    only, best, most, spread, one, two, packed, forced = record.of("g-1")
    assert [one.rule for one in (only, best, most)] == ["only fit", "best fit", "most free"]
    assert [one.rule for one in (spread, one, two, packed)] == [
        "most free",
        "whole devices",
        "whole devices",
        "best fit",
    ]
    assert packed.text.endswith("; of 4 devices that fit it leaves no more free than the others")
    assert forced.text.endswith("than the others; train may ask for each of them as a whole")
    assert one.text.endswith("; train may ask for device 1 as a whole, of the other 3 it has most free")
    assert two.text.endswith("; train may ask for devices 2, 3 as a whole, of the other 2 it has most free")
    assert only.text == (
        "admitted on device 0: 1GiB of memory and 25% of its time, all of it out of the guarantee of team-a;"
        " it fits on no other (device 1: full)"
    )
    assert best.numbers["guarantee_left_milli"] == 400
    assert most.text.endswith("and the time that others leave idle; of 2 devices that fit it has most free")


def test_a_guarantee_that_shrinks_and_is_whole_again_is_reported_once_each():
    record, places = Decisions(), {"g-1": [place()], "g-2": [place(1, 500, 0)]}
    for missing in ({}, {("g-1", "GPU-0"): 150}, {("g-1", "GPU-0"): 150}, {}, {}):
        record.follow(missing, lambda grant: places.get(grant, []))
    assert [(one.rule, one.numbers["guaranteed_milli"]) for one in record.of("g-1")] == [
        ("degraded", 100),
        ("restored", 250),
    ]
    assert record.of("g-2") == []
    record.follow({("g-3", "GPU-0"): 5}, lambda _: [])  # ended meanwhile
    assert record.of("g-3") == []


@pytest.mark.promise("plans-change-nothing")
def test_the_record_is_bounded():
    record = Decisions()
    for number in range(3 * decisions.ENDED_KEPT):
        for _ in range(decisions.PER_GRANT + 5 if number % 100 == 0 else 1):
            record.add(f"g-{number}", "resized", "admission", "text", memory_bytes=number)
        if number:
            record.ends(f"g-{number}")
    assert len(record._of) == decisions.ENDED_KEPT + 1
    assert len(record.of("g-0")) == decisions.PER_GRANT
    assert record.of("g-1") == []


POLICIES = {name: TenantPolicy(name, guarantee) for name, guarantee in (("a", 250), ("b", 750), ("c", 0))}


def test_who_waits_while_who_has_more_than_is_due():
    uses = [Use("g-a", "a", "d0", 900, 90), Use("g-b", "b", "d0", 90, 900), Use("g-c", "c", "d1", 1000, 0)]
    [found] = behind({**POLICIES, "c": TenantPolicy("c", 1000)}, uses, devices=2)
    assert (found.who.tenant, found.who.entitled_milli, found.below_guarantee) == ("b", 750, True)
    assert [(one.tenant, one.used_milli, one.entitled_milli, one.grants) for one in found.over] == [
        ("a", 900, 250, ("g-a",))
    ]
    fair = [Use("g-a", "a", "d0", 250, 750), Use("g-b", "b", "d0", 745, 255), Use("g-c", "c", "d0", 5, 995)]
    assert behind(POLICIES, fair, devices=1) == []
    assert behind(POLICIES, [Use("g", "removed", "d0", 500, 500)], devices=1) == []


def test_what_could_be_had_on_other_devices_only_is_not_waited_for():
    policies = {name: TenantPolicy(name, 2000) for name in ("a", "b")}
    beside = [Use("g-a", "a", "d0", 490, 500, 1000, 500), Use("g-b", "b", "d0", 490, 500, 1000, 500)]
    assert behind(policies, beside, devices=4) == []
    uneven = [Use("g-a", "a", "d0", 300, 700, 1000, 500), Use("g-b", "b", "d0", 690, 300, 1000, 500)]
    [found] = behind(policies, uneven, devices=4)
    assert (found.who.tenant, found.who.entitled_milli) == ("a", 500)


def test_a_family_is_entitled_before_others():
    nested = {
        "org": TenantPolicy("org", 0),
        "org/x": TenantPolicy("org/x", 400, parent="org"),
        "org/y": TenantPolicy("org/y", 400, parent="org"),
        "other": TenantPolicy("other", 200),
    }
    uses = [Use("g-x", "org/x", "d0", 400, 600), Use("g-o", "other", "d0", 600, 400)]
    [found] = behind(nested, uses, devices=1)
    assert (found.who.tenant, found.who.entitled_milli, found.below_guarantee) == ("org/x", 800, False)
    assert found.over[0].tenant == "other"


milli = st.integers(0, 1000)
rows = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["d0", "d1"]), milli, milli), max_size=6)


@given(rows)
def test_nobody_is_named_who_has_what_is_due(found):
    uses = [Use(f"g-{number}", *row) for number, row in enumerate(found)]
    standing = standings_of(POLICIES, uses, devices=2)
    assert sum(one.entitled_milli for one in standing.values()) <= 2000
    for one in behind(POLICIES, uses, devices=2):
        assert one.who.used_milli < one.who.entitled_milli - SLACK_MILLI
        assert one.who.waited_milli
        for other in one.over:
            assert other.used_milli > other.entitled_milli + SLACK_MILLI
            assert other.tenant != one.who.tenant
