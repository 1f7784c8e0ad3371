"""A grant's use, loans and waits in a second, and the lines of `ps` that show them."""

from hypothesis import given
from hypothesis import strategies as st

from gpushare.cli.look import columns, grants
from gpushare.policy.quota.lending import Had, Span, had

SECOND = 1_000_000_000
MS = 1_000_000


def test_a_loan_while_the_owner_is_away_and_when_it_is_back():
    away = had([span("a", 250, 1000, 750), span("b", 750, 0)], SECOND)
    assert away["a", "d0"] == Had(used_milli=1000, borrowed_milli=750)
    assert away["b", "d0"] == Had(lent_milli=750)
    back = had([span("a", 250, 250, waited=750), span("b", 750, 750, waited=250)], SECOND)
    assert back["a", "d0"] == Had(used_milli=250, waited_milli=750)
    assert back["b", "d0"] == Had(used_milli=750, waited_milli=250)


def test_nobody_lends_what_nobody_takes_and_what_is_nobodys_lends_too():
    assert had([span("a", 500, 100)], SECOND)["a", "d0"] == Had(used_milli=100)
    # 500 are guaranteed to no grant, 500 to b: each part lent half of the 400 borrowed.
    found = had([span("a", 0, 400, 400), span("b", 500, 0), span("b", 1000, 0, device="d1")], SECOND)
    assert found["b", "d0"] == Had(lent_milli=200)
    assert found["b", "d1"] == Had()
    assert had([span("a", 500, 100)], 0) == {}


milli = st.integers(0, 1000)


@given(st.lists(st.tuples(st.integers(0, 250), milli, milli, milli), max_size=4))
def test_what_was_lent_was_borrowed_and_guaranteed(rows):
    spans = [
        span(str(number), guarantee, used // 4, min(borrowed, used) // 4, waited=waited)
        for number, (guarantee, used, borrowed, waited) in enumerate(rows)
    ]
    found = had(spans, SECOND)
    for one in spans:
        mine = found[one.grant, "d0"]
        others = sum(other.borrowed_ns for other in spans) - one.borrowed_ns
        assert mine.borrowed_milli <= mine.used_milli
        assert mine.lent_milli <= max(0, one.guarantee_milli - mine.used_milli)
        assert mine.lent_milli * MS <= others
    assert sum(mine.lent_milli for mine in found.values()) * MS <= sum(one.borrowed_ns for one in spans)


def span(grant: str, guarantee: int, used: int, borrowed: int = 0, waited: int = 0, device: str = "d0") -> Span:
    return Span(grant, device, guarantee, used * MS, borrowed * MS, waited * MS)


def device(index: int, asked: int, guaranteed: int, **now: int) -> dict[str, int]:
    times = dict.fromkeys(("used_milli", "borrowed_milli", "lent_milli", "waited_milli"), 0)
    return {
        "waiting": False,
        **{"index": index, "time_milli": asked, "guaranteed_milli": guaranteed, "extra_milli": 0},
        **{"served_limit_milli": 1000, "memory_bytes": 512 << 20, "memory_limit_bytes": 8 << 30, "leases": 4},
        "memory_borrowed_bytes": 0,
        "memory_hosted_bytes": 0,
        **{"id": f"GPU-{index}", "memory_refusals": 0, "memory_refused": None, "time_limit_milli": 1000},
        **times,
        **now,
    }


def grant(
    name: str, tenant: str, *devices: dict[str, int], notice: str = "", phase: str = "active"
) -> dict[str, object]:
    whole = {"id": name, "tenant": tenant, "phase": phase, "devices": devices, "processes": [1], "notice": notice}
    return {**whole, "gang": None}


def test_ps_states_what_is_true_of_a_share(capsys):
    owner = device(0, 750, 750, used_milli=747, waited_milli=265)
    loan = device(0, 1000, 0, waited_milli=1000)
    both = device(0, 250, 250, used_milli=253, waited_milli=760)
    lends = device(1, 1000, 1000, lent_milli=612)
    borrows = device(1, 0, 0, used_milli=612, borrowed_milli=612)
    waiting = device(1, 300, 300)
    grants.show(
        [
            grant("g-1", "team-b", owner, lends),
            grant("g-2", "team-a", loan, borrows),
            grant("g-3", "c", both, notice="device 1 does not work"),
            grant("g-4", "default", waiting, phase="reserved"),
            grant("g-5", "default", waiting, phase="released"),
        ],
        columns.parse(COLUMNS),
    )
    assert capsys.readouterr().out == PS


COLUMNS = "grant,tenant,phase,device,asked,guaranteed,got,borrowed,lent,waited,memory,limit,turns,pids"
PS = """\
GRANT  TENANT   PHASE     DEV  ASKED  GUARANTEED    GOT  BORROWED   LENT  WAITED  MEMORY  LIMIT  TURNS  PIDS
g-1    team-b   active      0    75%         75%  74.7%         -      -   26.5%  512MiB   8GiB      4     1
g-1    team-b   active      1   100%        100%     0%         -  61.2%       -  512MiB   8GiB      4     1
g-2    team-a   active      0   100%          0%     0%         -      -    100%  512MiB   8GiB      4     1
g-2    team-a   active      1     0%          0%  61.2%     61.2%      -       -  512MiB   8GiB      4     1
g-3    c        active      0    25%         25%  25.3%         -      -     76%  512MiB   8GiB      4     1
g-4    default  reserved    1    30%         30%     0%         -      -       -  512MiB   8GiB      4     1
g-5    default  released    1    30%           -      -         -      -       -  512MiB   8GiB      4     1
g-2: waited 100% of the last second for device 0: it is guaranteed nothing there and gets what others leave idle; \
g-1 of team-b got 74.7% (guaranteed 75%), g-3 of c got 25.3% (guaranteed 25%): `gpushare why g-2` says what to do
g-3: device 1 does not work
g-3: waited 76% of the last second for device 0: it is guaranteed 25% and had it; g-1 of team-b got 74.7% \
(guaranteed 75%): `gpushare why g-3` says what to do
"""
