"""The reclaim ladder: who is a victim, in which order, and how rungs follow each other."""

from collections.abc import Collection
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.loans import reclaim
from gpushare.policy.loans.reclaim import Clock, Event, Failed, Loan, Need, Reclaim, Rule, Rung, Standing

RUNGS = (Rung.EVICT, Rung.KILL)


def loan(grant: str, tenant: str, amount: int = 10, **more: int) -> Loan:
    return Loan(grant, tenant, amount, more.pop("since_ns", 0), RUNGS, **more)


def tenants(*rows: tuple[str, int, int, int, int]) -> dict[str, Standing]:
    return {row[0]: Standing(*row) for row in rows}


def order(loans: list[Loan], standings: dict[str, Standing], rule: Rule = Rule.GUARANTEE, now: int = 100) -> list[str]:
    left, found = list(loans), []
    while (first := reclaim.victim(left, standings, rule, now)) is not None:
        found.append(first.grant)
        left.remove(first)
    return found


def test_scavengers_then_lower_tiers_then_who_borrowed_more_for_its_weight() -> None:
    standings = tenants(
        ("heavy", 50, 10, 4, 0), ("light", 50, 10, 1, 0), ("high", 99, 0, 1, 1), ("scavenger", 11, 10, 0, 5)
    )
    loans = [loan("h", "high"), loan("a", "heavy"), loan("b", "light"), loan("s", "scavenger")]
    assert order(loans, standings) == ["s", "b", "a", "h"]


def test_in_a_tenant_lower_priority_then_not_held_then_the_cheaper_rung_then_fewer_bytes() -> None:
    standings = tenants(("a", 90, 10, 1, 0))
    loans = [
        loan("high", "a", priority=1),
        loan("held", "a", since_ns=90, min_hold_ns=50),
        loan("large", "a", 20),
        loan("small", "a", 5),
        Loan("parked", "a", 30, 0, (Rung.SUSPEND,)),
    ]
    assert order(loans, standings) == ["parked", "small", "large", "held", "high"]


def test_min_hold_protects_from_fair_share_and_from_no_guarantee() -> None:
    standings = tenants(("a", 90, 10, 1, 0))
    loans = [loan("held", "a", since_ns=90, min_hold_ns=50)]
    assert order(loans, standings, Rule.FAIR_SHARE) == []
    assert order(loans, standings, Rule.FAIR_SHARE, now=140) == ["held"]
    assert order(loans, standings, Rule.GUARANTEE) == ["held"]


def test_time_is_freed_by_throttling_alone_and_memory_never_by_it() -> None:
    assert reclaim.rungs(Need.TIME, Rung.KILL) == (Rung.THROTTLE,)
    assert reclaim.rungs(Need.MEMORY, Rung.EVICT, {Rung.DEMOTE, Rung.SUSPEND}) == (Rung.EVICT,)
    assert reclaim.rungs(Need.MEMORY, Rung.THROTTLE) == ()
    assert reclaim.rungs(Need.DEVICE, Rung.KILL) == (Rung.SUSPEND, Rung.EVICT, Rung.KILL)


NAMES = "abc"
LOANS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 30), st.integers(0, 99), st.integers(0, 3), st.integers(0, 50)),
    max_size=8,
)
STANDINGS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3), st.integers(-1, 1)), min_size=3, max_size=3)


@given(LOANS, STANDINGS, st.integers(1, 120), st.sampled_from(Rule), st.integers(0, 150))
def test_victims_are_enough_and_needed_and_never_of_a_tenant_within_its_guarantee(
    rows: list[tuple[str, int, int, int, int]],
    policies: list[tuple[int, int, int]],
    needed: int,
    rule: Rule,
    now: int,
) -> None:
    loans = [
        loan(f"g{at}", name, amount, since_ns=since, priority=priority, min_hold_ns=hold)
        for at, (name, amount, since, priority, hold) in enumerate(rows)
    ]
    amounts = {one.grant: one.amount for one in loans}
    standings = {
        name: Standing(name, sum(one.amount for one in loans if one.tenant == name), guarantee, weight, tier)
        for name, (guarantee, weight, tier) in zip(NAMES, policies, strict=True)
    }

    def enough(grants: Collection[str]) -> bool:
        return sum(amounts[grant] for grant in grants) >= needed

    def left(gone: Collection[str]) -> dict[str, Standing]:
        given = {name: sum(one.amount for one in loans if one.tenant == name and one.grant in gone) for name in NAMES}
        return {name: replace(row, allocated=row.allocated - given[name]) for name, row in standings.items()}

    chosen = reclaim.choose(loans, left, rule, now, enough)
    ids = {one.grant for one in chosen}
    if chosen:
        assert enough(ids)
        assert all(not enough(ids - {grant}) for grant in ids)
    for name, standing in standings.items():
        own = sorted((one.amount for one in chosen if one.tenant == name), reverse=True)
        # Each was chosen while the tenant had more than its entitlement: keeping any one of them leaves it above that.
        assert not own or standing.allocated - sum(own) + own[0] > standing.entitlement
    assert rule is Rule.GUARANTEE or not any(one.held(now) for one in chosen)
    assert chosen == reclaim.choose(loans[::-1], left, rule, now, enough)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("clock"), st.integers(0, 20)), st.tuples(st.just("failed"), st.sampled_from(list(Rung)))
    ),
    max_size=12,
)
CLOCKS = {Rung.DEMOTE: 3, Rung.SUSPEND: 5, Rung.EVICT: 10, Rung.KILL: 1}


@given(EVENTS, st.sampled_from([Rung.SUSPEND, Rung.EVICT, Rung.KILL]), st.booleans())
def test_a_rung_follows_only_a_milder_one_that_failed_or_whose_time_was_over(
    events: list[tuple[str, int]], most: Rung, engine: bool
) -> None:
    rungs = reclaim.rungs(Need.MEMORY, most, () if engine else (Rung.DEMOTE, Rung.SUSPEND))
    now, replayed = 0, []
    state = reclaim.begin("g", "owner", rungs, now, CLOCKS)
    for what, value in events:
        before = state
        event: Event
        if what == "clock":
            now += value
            event = Clock(now)
        else:
            event = Failed(now, Rung(value), "cannot")
        replayed.append(event)
        state = reclaim.advance(state, event)
        if state.rung is not before.rung:
            assert state.over or state.rung > before.rung
            due = isinstance(event, Clock) and now >= before.deadline_ns
            assert due or (what == "failed" and value == before.rung)
    tried = [receipt.rung for receipt in state.receipts]
    assert tried == list(rungs[: len(tried)])
    again: Reclaim = reclaim.begin("g", "owner", rungs, 0, CLOCKS)
    for event in replayed:
        again = reclaim.advance(again, event)
    assert again == state


def test_a_reclaim_without_a_rung_is_over_at_once() -> None:
    assert reclaim.begin("g", "owner", (), 5, CLOCKS).over
    assert reclaim.rung_of("evict") is Rung.EVICT
    assert reclaim.rung_of("other") is None
