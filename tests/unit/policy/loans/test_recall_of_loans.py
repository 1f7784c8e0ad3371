"""Memory on loan is reclaimed: who is asked, who is ended, and that nobody is ended in vain."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.policy.loans import reclaim
from gpushare.policy.loans.recall import AGAIN_NS, WANT_NS, Ask, End, Over, Policy, Recalls, Step
from gpushare.policy.loans.reclaim import Loan, Need, Rung, Standing

GRACE = 30
CAPACITY = 100


@dataclass
class Grant:
    tenant: str
    size: int
    most: Rung = Rung.KILL
    loan: bool = True


@dataclass
class Node:
    """One quantity, of which tenants are guaranteed parts. `wanted`: (tenant, size) by key."""

    guaranteed: dict[str, int]
    grants: dict[str, Grant] = field(default_factory=dict)
    wanted: dict[str, tuple[str, int]] = field(default_factory=dict)
    missing: Collection[Rung] = (Rung.DEMOTE, Rung.SUSPEND)

    def used(self, gone: Collection[str] = ()) -> int:
        return sum(grant.size for name, grant in self.grants.items() if name not in gone)

    def fits(self, wants: Sequence[str], gone: Collection[str]) -> bool:
        return self.used(gone) + sum(self.wanted[key][1] for key in wants) <= CAPACITY

    def loans(self) -> Iterable[Loan]:
        for name, grant in self.grants.items():
            if grant.loan:
                rungs = reclaim.rungs(Need.MEMORY, grant.most, self.missing)
                yield Loan(name, grant.tenant, grant.size, 0, rungs, grace_ns=GRACE)

    def standings(self, wants: Sequence[str], gone: Collection[str]) -> Mapping[str, Standing]:
        owner, asked = self.wanted[wants[-1]]
        has = dict.fromkeys(self.guaranteed, 0)
        for name, grant in self.grants.items():
            has[grant.tenant] += grant.size if name not in gone else 0
        before = sum(size for key in wants[:-1] for tenant, size in [self.wanted[key]] if tenant == owner)
        if has[owner] + before + asked > self.guaranteed[owner]:
            return {}
        return {name: Standing(name, has[name], self.guaranteed[name]) for name in has if name != owner}


def node(**grants: Grant) -> Node:
    return Node({"a": 20, "b": 80, "c": 0}, dict(grants), {"w": ("b", 30)})


def asked(steps: list[Step]) -> list[str]:
    return [step.grant for step in steps if isinstance(step, Ask)]


def outcomes(steps: list[Step]) -> dict[str, str]:
    return {step.grant: step.outcome for step in steps if isinstance(step, Over)}


def ended(steps: list[Step]) -> list[str]:
    return [step.grant for step in steps if isinstance(step, End)]


def test_who_gives_it_back_within_the_grace_lives() -> None:
    world, recalls = node(one=Grant("a", 90)), Recalls()
    [step] = recalls.wanted(0, "w", "b", world)
    assert step == Ask("one", "b", Rung.EVICT, GRACE, first=True)
    world.grants["one"] = Grant("a", 70, loan=False)
    assert outcomes(recalls.gave(["one"], 5, world)) == {"one": "released"}
    assert recalls.wants["w"].fits
    assert recalls.served("w", 6, world) == []


def test_who_gives_nothing_back_is_ended_after_the_grace_where_it_allows_that() -> None:
    world, recalls = node(one=Grant("a", 90)), Recalls()
    recalls.wanted(0, "w", "b", world)
    assert recalls.next_ns(0) == GRACE
    assert recalls.look(GRACE - 1, world) == []
    steps = recalls.look(GRACE, world)
    assert (outcomes(steps), ended(steps)) == ({"one": "ended"}, ["one"])


def test_who_may_not_be_ended_stays_and_the_owner_is_notified() -> None:
    world, recalls = node(one=Grant("a", 90, Rung.EVICT)), Recalls()
    recalls.wanted(0, "w", "b", world)
    steps = recalls.look(GRACE, world)
    assert (outcomes(steps), ended(steps)) == ({"one": "refused"}, [])
    assert recalls.wants["w"].failed_ns == GRACE
    assert recalls.wanted(GRACE + 1, "w", "b", world) == []
    assert recalls.wants["w"].failed_ns == GRACE
    assert not recalls.open
    assert asked(recalls.wanted(GRACE + WANT_NS, "w", "b", world)) == ["one"]  # much later


def test_who_borrows_after_others_refused_is_asked() -> None:
    world, recalls = node(one=Grant("a", 60, Rung.EVICT), two=Grant("a", 20, loan=False)), Recalls()
    recalls.wanted(0, "w", "b", world)
    recalls.look(GRACE, world)
    del world.grants["two"]
    world.grants["new"] = Grant("c", 20)
    assert asked(recalls.wanted(GRACE + 5, "w", "b", world)) == ["new"]


@pytest.mark.promise("no-grant-is-sacrificed")
def test_nobody_is_ended_who_would_not_make_room() -> None:
    """Only both together would make room. As one may not be ended, neither is the other."""
    world = node(stays=Grant("a", 45, Rung.EVICT), goes=Grant("a", 50))
    world.wanted["w"] = ("b", 80)
    recalls = Recalls()
    assert sorted(asked(recalls.wanted(0, "w", "b", world))) == ["goes", "stays"]
    steps = recalls.look(GRACE, world)
    assert (outcomes(steps), ended(steps)) == ({"stays": "refused", "goes": "not needed"}, [])


def test_another_is_asked_where_one_refuses() -> None:
    world = node(stays=Grant("c", 40, Rung.EVICT), goes=Grant("a", 50))
    recalls = Recalls()
    assert asked(recalls.wanted(0, "w", "b", world)) == ["stays"]  # c's, as c has borrowed more
    steps = recalls.look(GRACE, world)
    assert (asked(steps), outcomes(steps)) == (["goes"], {"stays": "refused"})
    steps = recalls.look(2 * GRACE, world)
    assert (outcomes(steps), ended(steps)) == ({"goes": "ended"}, ["goes"])


def test_a_want_that_is_no_more_spares_those_that_were_asked() -> None:
    world, recalls = node(one=Grant("a", 90)), Recalls()
    recalls.wanted(0, "w", "b", world)
    recalls.running["one"] = reclaim.begin("one", "b", (Rung.EVICT, Rung.KILL), 0, {Rung.EVICT: 10 * WANT_NS})
    assert outcomes(recalls.look(WANT_NS, world)) == {"one": "not needed"}
    assert recalls.next_ns(WANT_NS) is None


def test_several_wants_at_once_ask_as_many_as_are_needed() -> None:
    world = node(**{f"g{i}": Grant("a", 15) for i in range(6)})
    world.wanted = {"w1": ("b", 25), "w2": ("b", 30), "w3": ("b", 30)}
    recalls = Recalls()
    assert len(asked(recalls.wanted(0, "w1", "b", world))) == 1
    assert len(asked(recalls.wanted(0, "w2", "b", world))) == 2
    assert recalls.wanted(0, "w3", "b", world) == []  # exceeds b's guarantee
    assert list(recalls.wants) == ["w1", "w2"]
    dead: list[str] = []
    doomed = ended(recalls.look(GRACE, world))
    while doomed:
        dead.append(doomed.pop())
        del world.grants[dead[-1]]
        doomed += ended(recalls.gave([dead[-1]], GRACE, world))
    assert len(dead) == 3
    assert all(want.fits for want in recalls.wants.values())


def test_a_milder_rung_is_tried_first_and_nobody_is_asked_where_it_frees_enough() -> None:
    world, recalls = node(one=Grant("a", 90)), Recalls({Rung.SUSPEND: 5})
    world.missing = (Rung.DEMOTE,)
    [step] = recalls.wanted(0, "w", "b", world)
    assert step == Ask("one", "b", Rung.SUSPEND, 5, first=True)
    again = Recalls({Rung.SUSPEND: 5})
    again.wanted(0, "w", "b", world)
    assert again.cannot("one", Rung.SUSPEND, "no engine", 2, world) == [Ask("one", "b", Rung.EVICT, 32, first=False)]
    assert recalls.look(5, world) == [Ask("one", "b", Rung.EVICT, 35, first=False)]
    world.grants["one"].size = 60
    assert outcomes(recalls.look(6, world)) == {"one": "not needed"}


def test_who_cannot_be_moved_now_is_left_alone_for_a_while() -> None:
    """To ask it again at once would have no end where it refuses at once; and there may be another."""
    world = node(stays=Grant("c", 40, Rung.DEMOTE), goes=Grant("a", 50))
    world.missing, recalls = (), Recalls({Rung.DEMOTE: 1000})
    assert asked(recalls.wanted(0, "w", "b", world)) == ["stays"]
    steps = recalls.cannot("stays", Rung.DEMOTE, "work is waiting", 5, world)
    assert (asked(steps), outcomes(steps)) == (["goes"], {"stays": "refused"})


def test_it_is_asked_again_then() -> None:
    world = node(one=Grant("a", 90, Rung.DEMOTE))
    world.missing, recalls = (), Recalls({Rung.DEMOTE: 1000})
    for now in (0, AGAIN_NS, 3 * AGAIN_NS):
        assert asked(recalls.wanted(now, "w", "b", world)) == ["one"]
        assert outcomes(recalls.cannot("one", Rung.DEMOTE, "work is waiting", now, world)) == {"one": "refused"}
        assert recalls.wanted(now + AGAIN_NS - 1, "w", "b", world) == []


def test_a_policy_lends_to_who_may_be_asked() -> None:
    assert [Policy().lends(rung) for rung in (Rung.THROTTLE, Rung.SUSPEND, Rung.EVICT, Rung.KILL)] == [
        False,
        False,
        True,
        True,
    ]
    assert not Policy(most=Rung.THROTTLE).lends(Rung.KILL)
    assert not Policy(lend_to=Rung.KILL).lends(Rung.EVICT)


MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.just("borrow"), st.sampled_from("abc"), st.integers(1, 40), st.sampled_from([Rung.EVICT, Rung.KILL])
        ),
        st.tuples(st.just("want"), st.sampled_from("ab"), st.integers(1, 80), st.none()),
        st.tuples(st.just("clock"), st.none(), st.integers(1, 2 * GRACE), st.none()),
        st.tuples(st.just("leave"), st.none(), st.integers(0, 9), st.none()),
        st.tuples(st.just("shrink"), st.none(), st.integers(0, 9), st.none()),
    ),
    max_size=30,
)


@pytest.mark.promise("no-grant-is-sacrificed")
@settings(max_examples=100)
@given(MOVES)
def test_never_a_tenant_within_its_guarantee_and_never_for_nothing(moves: list[tuple[str, str, int, Rung]]) -> None:
    world, recalls = Node({"a": 20, "b": 80, "c": 0}), Recalls()
    now = 0

    def carry_out(steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Ask(grant, owner, rung, deadline, first):
                    assert (rung, deadline, first) == (Rung.EVICT, now + GRACE, True)
                    assert world.grants[grant].tenant != owner
                case Over(grant):
                    assert grant not in recalls.running
                case End(grant):
                    assert world.grants[grant].most is Rung.KILL
        doomed = ended(steps)
        for grant in doomed:
            # I10 holds even without all the others that are ended at the same time.
            tenant, others = world.grants[grant].tenant, [other for other in doomed if other != grant]
            left = sum(g.size for name, g in world.grants.items() if g.tenant == tenant and name not in others)
            assert left > world.guaranteed[tenant]
        if doomed:
            open_ = [want.key for want in recalls.wants.values() if want.failed_ns is None]
            assert world.fits([key for key in open_ if recalls.wants[key].fits], doomed)
        for grant in doomed:
            del world.grants[grant]
            carry_out(recalls.gave([grant], now, world))
        waiting = {grant for want in recalls.wants.values() if want.waits for grant in want.victims}
        assert recalls.running.keys() <= waiting
        assert recalls.running.keys() <= world.grants.keys()

    for number, (what, tenant, value, most) in enumerate(moves):
        if what == "borrow" and not recalls.wants and world.used() + value <= CAPACITY:
            world.grants[f"g{number}"] = Grant(tenant, value, most)
        elif what == "want":
            key = f"w{number}"
            world.wanted[key] = (tenant, value)
            if not world.fits([key], ()):
                carry_out(recalls.wanted(now, key, tenant, world))
        elif what == "clock":
            now += value
            carry_out(recalls.look(now, world))
        elif world.grants:
            name = sorted(world.grants)[value % len(world.grants)]
            if what == "leave":
                del world.grants[name]
            else:
                world.grants[name].loan = False
                world.grants[name].size //= 2
            carry_out(recalls.gave([name], now, world))
    assert (recalls.next_ns(now) is None) == (not recalls.wants)
