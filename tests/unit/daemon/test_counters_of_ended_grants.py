"""Which counters of ended grants are still shown."""

from msgspec.structs import replace

from gpushare.binding.arbiter import GrantStats
from gpushare.daemon.accounts.accounts import KEPT, KEPT_SECONDS, Last, LastCounters
from gpushare.inject.pod import Pod

NOTHING = GrantStats(*(0,) * 10, waiting=False, held=False, processes=0, runnable=False)
USED = replace(NOTHING, leased_ns=5)


def last(at: float, grant: str = "g", stats: GrantStats = USED, tenant: str = "t") -> Last:
    return Last(at, grant, tenant, Pod(), "d", stats)


def test_a_row_is_kept_for_a_time():
    kept = LastCounters()
    kept.add(last(10.0, "a"))
    kept.add(last(20.0, "b"))
    assert [row.grant for row in kept.rows(10.0 + KEPT_SECONDS - 1)] == ["a", "b"]
    assert [row.grant for row in kept.rows(10.0 + KEPT_SECONDS)] == ["b"]
    assert list(kept.rows(20.0 + KEPT_SECONDS)) == []


def test_there_are_only_so_many_and_none_in_which_nothing_happened():
    kept = LastCounters()
    for number in range(KEPT + 5):
        kept.add(last(0.0, str(number)))
        kept.add(last(0.0, "idle", NOTHING))
    assert [row.grant for row in kept.rows(1.0)] == [str(number) for number in range(5, KEPT + 5)]


def test_a_tenant_with_many_grants_takes_no_rows_from_others():
    kept = LastCounters()
    for number in range(3):
        kept.add(last(0.0, f"quiet{number}", tenant="quiet"))
    for number in range(3 * KEPT):
        kept.add(last(1.0, str(number), tenant="busy"))
    rows = kept.rows(2.0)
    assert [row.grant for row in rows if row.tenant == "quiet"] == ["quiet0", "quiet1", "quiet2"]
    assert [row.grant for row in rows if row.tenant == "busy"] == [str(n) for n in range(2 * KEPT + 3, 3 * KEPT)]
