"""What moving memory costs: bytes by cause, and stalls by whose memory stood in the way. The clock is an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.policy.residency.costs import (
    NOBODY,
    Account,
    Cause,
    Copies,
    Holder,
    Loan,
    Stall,
    Way,
    cause,
    in_the_way,
)
from gpushare.policy.residency.lent import NAMED, Away, borrower, borrowers, lender, meanwhile
from gpushare.policy.residency.residency import By, Residency, Where

GIB = 1 << 30
S = 10**9
TRAINER = Holder("g-2", "b")
ONE, TWO = (0, 1), (1, 1)


@pytest.mark.parametrize("by", By)
def test_bytes_that_leave_have_the_cause_of_whoever_wanted_it(by):
    """Fails for a new By without a Cause."""
    assert cause(Residency(Where.SUSPENDING, by=by)) == (Way.OUT, Cause(by.value))
    assert cause(Residency(Where.SUSPENDED, by=by)) == (Way.OUT, Cause(by.value))


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (Residency(ahead=True), (Way.OUT, Cause.AHEAD)),
        (Residency(Where.RESUMING, by=By.RUNG, woken=True), (Way.IN, Cause.WAKE)),
        (Residency(Where.RESUMING, by=By.RUNG), (Way.IN, Cause.PERSON)),
        (Residency(Where.RESUMING, by=By.RUNG, why="work is waiting"), (Way.IN, Cause.RECLAIM)),
    ],
)
def test_and_the_others_have_that_of_their_state(state, expected):
    assert cause(state) == expected


def test_a_stall_is_split_by_whose_memory_was_in_the_way():
    one = Account()
    one.wait(10 * S, waits=True)
    one.blocked(11 * S, TRAINER)
    one.blocked(15 * S, NOBODY)  # there is room: now it is the copy
    one.wait(16 * S, waits=False)
    assert one.cut(20 * S).stalled == {NOBODY: Stall(2 * S, 1, 6 * S), TRAINER: Stall(4 * S)}
    assert one.cut(30 * S).stalled == {}


def test_a_stall_that_is_not_over_is_in_every_cut_once():
    one = Account()
    one.wait(10, waits=True)
    one.wait(12, waits=True)
    found = [one.cut(at).stalled[NOBODY] for at in (15, 18, 30)]
    assert found == [Stall(5), Stall(3), Stall(12)]
    one.wait(31, waits=False)
    assert one.cut(40).stalled == {NOBODY: Stall(1, 1, 21)}


def test_a_stall_goes_on_after_a_restart_with_what_nobody_counted():
    one = Account()
    one.waited_before(100 * S, 7 * S, TRAINER)
    assert one.waits
    one.wait(101 * S, waits=True)
    one.wait(102 * S, waits=False)
    assert one.cut(110 * S).stalled == {TRAINER: Stall(9 * S, 1, 9 * S)}


def test_who_waits_for_nothing_has_no_stall_whoever_is_in_the_way():
    one = Account()
    one.blocked(5, TRAINER)
    assert one.cut(50).stalled == {}


TIMES = st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["wait", "stop", "b", "c", "free", "cut"])), max_size=40)


@given(TIMES)
def test_stalls_add_up_to_the_time_waited_however_they_are_cut(steps):
    one, now, waits, waited, found = Account(), 0, False, 0, 0
    for passed, what in steps:
        now, waited = now + passed, waited + (passed if waits else 0)
        if what in ("wait", "stop"):
            waits = what == "wait"
            one.wait(now, waits=waits)
        elif what == "cut":
            found += sum(stall.ns for stall in one.cut(now).stalled.values())
        else:
            one.blocked(now, NOBODY if what == "free" else Holder(what, what))
    found += sum(stall.ns for stall in one.cut(now).stalled.values())
    assert found == waited


def test_copies_count_what_is_new_of_each_process():
    copies = Copies()
    assert copies.look({ONE: 5}, GIB) == 5
    assert copies.look({ONE: 7, TWO: 4}, GIB) == 6
    assert copies.look({TWO: 4}, GIB) == 0, "one has ended"
    assert copies.look({(0, 2): 3, TWO: 4}, GIB) == 3, "and another has its slot"


@pytest.mark.parametrize("said", [[1 << 63], [1 << 63, 0, 1 << 63], [9, 3, 9], list(range(0, 900, 9))])
def test_a_liar_counts_what_it_may_have_at_a_look_and_never_less_than_nothing(said):
    copies = Copies()
    found = [copies.look({ONE: number}, 100) for number in said]
    assert all(0 <= one <= 100 for one in found)


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=30))
def test_bytes_are_counted_once_over_any_restarts(steps):
    """`counted` is what the ledger has; a restart loses what was not cut."""
    copies, total, ledger, uncut = Copies(), 0, 0, 0
    for size, restart in steps:
        total += size
        if restart:
            copies, uncut = Copies(), 0
            uncut += copies.carry({ONE: total}, ledger)
        else:
            uncut += copies.look({ONE: total}, GIB)
        if size % 2:
            ledger, uncut = ledger + uncut, 0
    assert ledger + uncut == total


def test_nothing_is_counted_after_a_restart_of_which_the_ledger_says_nothing():
    copies = Copies()
    assert copies.carry({ONE: 50}, None) == 0
    assert copies.look({ONE: 53}, GIB) == 3
    assert Copies().carry({ONE: 50}, 80) == 0, "of a process that has ended, too"


def test_bytes_are_cut_by_way_and_cause():
    one = Account()
    one.copied(Residency(Where.SUSPENDING), 5)
    one.copied(Residency(Where.SUSPENDED), 2)
    one.copied(Residency(Where.RESUMING, woken=True), 7)
    one.copied(Residency(), 0)
    assert one.cut(1).copied == {(Way.OUT, Cause.PERSON): 7, (Way.IN, Cause.WAKE): 7}
    assert one.cut(2).copied == {}


def loan(grant, on_loan, here=None, tenant=None):
    return Loan(grant, tenant or grant, on_loan if here is None else here, on_loan)


def test_who_has_most_on_loan_is_in_the_way_and_else_who_has_most():
    assert in_the_way([loan("a", 1, 90), loan("b", 5), loan("c", 0, 99)]) == Holder("b", "b")
    assert in_the_way([loan("a", 0, 90), loan("b", 0, 91)]) == Holder("b", "b")
    assert in_the_way([loan("a", 0, 0)]) == in_the_way([]) == NOBODY


def test_borrowers_are_those_that_took_something_meanwhile_the_largest_first():
    most = [loan("a1", 3, tenant="a"), loan("a2", 4, tenant="a"), loan("b1", 6, tenant="b"), loan("c1", 5, tenant="c")]
    assert borrowers({}, most, 8) == [("a", 7), ("b", 6), ("c", 5)]
    assert borrowers({"c1": 5, "a1": 3, "b1": 9}, most, 8) == [("a", 4)], "the others had it before"
    assert borrowers({}, most, 2) == [("a", 2), ("b", 2), ("c", 2)], "nobody has more of it than there is"
    assert borrowers({}, most, 0) == borrowers({}, [], 8) == []
    many = [loan(f"t{number}", number) for number in range(10)]
    assert borrowers({}, many, 99) == [("t9", 9), ("t8", 8), ("t7", 7)] and NAMED == 3


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9)),
    st.lists(st.builds(loan, st.sampled_from("abcdef"), st.integers(0, 9)), unique_by=lambda one: one.grant),
    st.integers(0, 9),
)
def test_borrowers_are_few_in_order_and_within_the_room(before, most, room):
    found = borrowers(before, most, room)
    assert len(found) <= NAMED and found == sorted(found, key=lambda one: (-one[1], one[0]))
    assert all(0 < size <= room for _, size in found)


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    import time

    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


DAY = 1_800_000_000 // 86400 * 86400 * S
LEFT, TAKEN, BACK = (DAY + (14 * 3600 + minute * 60) * S for minute in (0, 2, 31))


def test_the_receipts_of_both_sides():
    away = Away(LEFT, 8 * GIB, {"g-0": GIB})
    away.look(LEFT, [loan("g-0", GIB, tenant="z")])
    away.look(TAKEN, [loan("g-0", GIB, tenant="z"), loan("g-2", 8 * GIB, tenant="b")])
    away.back_ns = BACK
    away.look(BACK + S, [loan("g-3", 8 * GIB, tenant="late")])
    assert lender(away, BACK + S, 190_000_000) == "8GiB lent 14:02-14:31 to tenant b; back in 0.19 s"
    assert lender(away, BACK + S, None) == "8GiB lent 14:02-14:31 to tenant b; back"
    assert borrower(8 * GIB, BACK, 170_000_000) == "had 8GiB on loan; moved out 14:31 in 0.17 s"
    assert borrower(8 * GIB, BACK, None) == "had 8GiB on loan; moved out 14:31"


def test_what_is_said_meanwhile():
    away = Away(LEFT, 8 * GIB, {})
    assert meanwhile(away) == " since 14:00"
    away.look(TAKEN, [loan("g-2", GIB, tenant="b")])
    assert meanwhile(away) == " since 14:00, its room lent to tenant b,"
    assert meanwhile(Away(None, 8 * GIB, {})) == "", "it left before the daemon was started"


def test_the_most_that_a_borrower_had_counts_and_those_that_have_ended_too():
    away = Away(LEFT, 8 * GIB, {})
    for size in (GIB, 3 * GIB, 2 * GIB):
        away.look(TAKEN, [loan("g-2", size, tenant="b")])
    away.look(BACK, [loan("g-3", GIB, tenant="c")])
    assert away.lent_to == [("b", 3 * GIB), ("c", GIB)]
    assert lender(away, BACK, 0) == "4GiB lent 14:02-14:31 to tenants b and c; back in 0.00 s"


def test_room_that_nobody_had_makes_no_receipt():
    away = Away(LEFT, 8 * GIB, {})
    away.look(TAKEN, [loan("g-2", 0, GIB)])
    assert (away.lent_to, lender(away, BACK, 1)) == ([], "")
