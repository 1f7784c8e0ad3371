"""What readers and the ledger get from the arbiter's counters."""

from msgspec.structs import replace

from gpushare.binding.arbiter import GrantStats, Spans
from gpushare.daemon.state.books import DeviceBook, Instant, Sample, joined, periods, shares_got
from gpushare.ledger.entries import Totals
from gpushare.policy.quota.lending import Had

ZERO = GrantStats(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, False, False, 0, False)
SECOND = 1_000_000_000
START = Instant(0, 5 * SECOND)


def after(ns, step=0):
    """The time `ns` after START on the monotonic clock; the wall clock was set by `step` meanwhile."""
    return Instant(ns + step, START.mono_ns + ns)


def sample(name, guarantee, stats, base=ZERO, carried=None, device=0):
    book = DeviceBook(carried or Totals(), base, START)
    return Sample(name, "t", f"GPU-{device}", device, guarantee, book, replace(ZERO, **stats))


def test_totals_go_on_after_a_restart():
    base = replace(ZERO, busy_ns=70, leased_ns=5)
    book = DeviceBook(Totals(used_ns=100, busy_ns=90, memory_peak_bytes=8), base, START)
    total = book.total(replace(base, busy_ns=75, leased_ns=12, memory_peak_bytes=3))
    assert (total.busy_ns, total.leased_ns, total.memory_peak_bytes) == (95, 107, 8)


def test_waits_and_reclaims_add_up_over_periods_and_restarts():
    def spans(count, total, longest):
        return Spans(count, total, longest)

    one = sample("a", 500, {"waited": spans(3, 50, 20), "wait_ns": 50, "reclaimed": spans(2, 9, 7)})
    [first] = periods([one], after(SECOND))
    later = replace(one.stats, waited=spans(5, 90, 30), wait_ns=90, reclaimed=spans(3, 13, 7))
    [second] = periods([Sample("a", "t", "GPU-0", 0, 500, one.book, later)], after(2 * SECOND))
    assert [(p.waits, p.waited_ns, p.wait_max_ns) for p in (first, second)] == [(3, 50, 20), (2, 40, 30)]
    assert [(p.reclaims, p.reclaim_ns, p.reclaim_max_ns) for p in (first, second)] == [(2, 9, 7), (1, 4, 7)]
    carried = Totals(waits=5, waited_ns=90, wait_max_ns=30, reclaims=3, reclaim_ns=13, reclaim_max_ns=7)
    total = DeviceBook(carried, ZERO, START).total(replace(ZERO, waited=spans(1, 2, 2), wait_ns=2))
    assert (total.waited.count, total.wait_ns, total.waited.total_ns, total.waited.max_ns) == (6, 92, 92, 30)
    assert (total.reclaimed.count, total.reclaimed.total_ns, total.reclaimed.max_ns) == (3, 13, 7)


def test_periods_of_other_machines_are_not_joined():
    one = sample("a", 500, {"leased_ns": 10})
    [first] = periods([one], after(SECOND))
    [second] = periods([replace(one, origin="lab2", stats=replace(one.stats, leased_ns=25))], after(2 * SECOND))
    assert (first.origin, second.origin, second.used_ns) == ("", "lab2", 15)
    assert joined(first, second) is None
    assert joined(replace(first, origin="lab2"), second).used_ns == 25


def test_share_got_is_of_the_work_done_in_the_window():
    samples = [sample("a", 250, {"busy_ns": 300}), sample("b", 750, {"busy_ns": 900}), sample("c", 0, {}, device=1)]
    shares_got(samples, SECOND)
    assert [one.book.share_got_milli for one in samples] == [250, 750, 0]
    shares_got(samples, SECOND)
    assert [one.book.share_got_milli for one in samples] == [0, 0, 0]


def test_what_a_grant_had_is_of_the_window_and_of_what_it_was_served_with():
    owner = replace(sample("a", 250, {}), served_milli=750)
    loan = sample("b", 0, {"leased_ns": SECOND // 2, "borrowed_ns": SECOND // 2, "wait_ns": SECOND // 4})
    shares_got([owner, loan], SECOND)
    assert owner.book.had == Had(lent_milli=375)
    assert loan.book.had == Had(used_milli=500, borrowed_milli=500, waited_milli=250)
    shares_got([owner, loan], SECOND)
    assert owner.book.had == loan.book.had == Had()


def test_periods_are_differences_and_meet_without_gap():
    one = sample("a", 500, {"leased_ns": 10, "busy_ns": 8, "memory_bytes": 4})
    [first] = periods([one], after(SECOND))
    assert (first.from_ns, first.to_ns, first.granted_ns) == (0, SECOND, SECOND // 2)
    assert (first.used_ns, first.busy_ns, first.memory_bytes) == (10, 8, 4)
    later = Sample("a", "t", "GPU-0", 0, 500, one.book, replace(one.stats, leased_ns=25))
    [second] = periods([later], after(3 * SECOND))
    assert (second.from_ns, second.used_ns, second.busy_ns) == (SECOND, 15, 0)


def test_what_is_used_beyond_what_was_asked_for_is_extra_up_to_what_its_tenants_guarantee_adds():
    for served, used, borrowed, extra in ((1000, 900, 0, 850), (500, 900, 400, 450), (50, 60, 0, 0), (80, 90, 0, 30)):
        one = replace(sample("a", 50, {"leased_ns": used, "borrowed_ns": borrowed}), served_milli=served)
        [row] = periods([one], Instant(START.wall_ns + 1000, START.mono_ns + 1000))
        assert (row.granted_ns, row.used_ns, row.borrowed_ns, row.extra_ns) == (50, used, borrowed, extra)


def test_lent_is_what_others_borrowed():
    """Of what it is served with, whatever part of that it has asked for."""
    for asked in (750, 100):
        owner = replace(sample("owner", asked, {"leased_ns": 0}), served_milli=750)
        borrower = sample("borrower", 250, {"leased_ns": SECOND, "borrowed_ns": 3 * SECOND // 4})
        rows = {row.grant_id: row for row in periods([owner, borrower], after(SECOND))}
        assert rows["owner"].lent_ns == 3 * SECOND // 4
        assert rows["borrower"].lent_ns == 0


def test_time_guaranteed_to_nobody_lends_too():
    owner = sample("owner", 250, {"leased_ns": 0})
    borrower = sample("borrower", 250, {"leased_ns": SECOND, "borrowed_ns": 3 * SECOND // 4})
    rows = {row.grant_id: row for row in periods([owner, borrower], after(SECOND))}
    assert rows["owner"].lent_ns == SECOND // 4


def test_devices_lend_apart():
    owner = sample("owner", 750, {"leased_ns": 0})
    elsewhere = sample("other", 250, {"leased_ns": SECOND, "borrowed_ns": SECOND}, device=1)
    assert {row.lent_ns for row in periods([owner, elsewhere], after(SECOND))} == {0}


def test_a_clock_that_is_set_changes_what_is_written_not_how_long_it_was():
    day = 86_400 * SECOND
    for step in (day, -day, -SECOND // 4):
        owner = sample("owner", 750, {"leased_ns": 0})
        borrower = sample("borrower", 250, {"leased_ns": SECOND, "borrowed_ns": 3 * SECOND // 4})
        rows = {row.grant_id: row for row in periods([owner, borrower], after(SECOND, step))}
        assert (rows["owner"].from_ns, rows["owner"].to_ns) == (step, step + SECOND)
        assert rows["owner"].granted_ns == rows["owner"].lent_ns == 3 * SECOND // 4
        # The next period starts where this one ended.
        [second] = periods([owner], after(3 * SECOND, step))
        assert (second.from_ns, second.granted_ns) == (step + SECOND, 3 * SECOND // 2)


def test_time_that_the_machine_was_suspended_is_nobodys():
    one = sample("a", 500, {})
    [row] = periods([one], Instant(9 * SECOND, START.mono_ns + SECOND))
    assert (row.from_ns, row.granted_ns) == (8 * SECOND, SECOND // 2)


def test_a_clock_that_runs_a_little_off_leaves_no_gap():
    one = sample("a", 500, {})
    [row] = periods([one], after(SECOND, 30_000))
    assert (row.from_ns, row.to_ns) == (0, SECOND + 30_000)
