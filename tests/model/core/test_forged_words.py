"""A tenant that forges its words, in virtual time: how honest tenants split the device alongside it.

The split is compared with those alongside an honest tenant that is idle, and one that always has work. A tenant that
claims work on the device spares the others part of their charge; that must not change which of them goes first."""

import pytest
from forgers import Claims, Flickers, Meters, Random
from virtual_device import Model
from virtual_node import MS

SECOND = 1000 * MS
POINTS = 0.02
LIAR = 2
CASES = {"444:333": (444, 333, 222), "700:100": (700, 100, 200), "333:333": (333, 333, 333)}


def device(guarantees, **first):
    m = Model()
    m.raw.exclusive = 0
    for number, guarantee in enumerate(guarantees):
        m.add(number, guarantee=guarantee, weight=guarantee, **(first if number == 0 else {}))
    for number in range(LIAR):
        m.want(number)
    return m


def lies(m, forger, duration):
    """Runs the liar, and returns the part of the duration for which each honest tenant executed."""
    liar = m.tenants[LIAR]
    before = [m.tenants[number].executed for number in range(LIAR)]
    for _ in range(duration // MS):
        forger.change(liar, m.now)
        m.step()
        m.run(MS)
    return [(m.tenants[number].executed - had) / duration for number, had in enumerate(before)]


def beside_honest(guarantees, work, **first):
    m = device(guarantees, **first)
    m.want(LIAR, work=work)
    m.run(SECOND)
    _, executed = m.shares(10 * SECOND)
    return [executed[number] for number in range(LIAR)]


def split(executed):
    return executed[0] / sum(executed)


ATTACKS = {
    "busy": lambda: Claims(),
    "16 processes": lambda: Claims(16),
    "all was its own": lambda: Meters(),
    "10 ms": lambda: Flickers(10),
    "100 ms, 16 processes": lambda: Flickers(100, 16),
} | {f"random {seed}": lambda seed=seed: Random(seed) for seed in range(4)}


@pytest.mark.promise("honest-shares-stay")
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("case", CASES)
def test_honest_tenants_split_the_device_as_beside_an_honest_one(case, attack):
    idle, busy = (beside_honest(CASES[case], work) for work in (0, None))
    m, forger = device(CASES[case]), ATTACKS[attack]()
    forger.begin(m.tenants[LIAR])
    lies(m, forger, SECOND)
    got = lies(m, forger, 8 * SECOND)
    least, most = sorted((split(idle), split(busy)))
    assert least - POINTS <= split(got) <= most + POINTS
    for one, least in zip(got, busy, strict=True):
        assert one >= least - POINTS


def test_what_cannot_be_paid_back_is_spared_to_nobody():
    """Beside two who claim to run, the first is charged nearly all of its time and the second half: it makes up for
    none of that. After 10 s of device time the claim counts for nothing, and what was owed for it is served."""
    guarantees = CASES["444:333"]
    m = device(guarantees, processes=15)
    lies(m, Claims(), 100 * SECOND)
    charged = m.stats(LIAR).leased_ns
    got = lies(m, Claims(), 10 * SECOND)
    assert m.stats(LIAR).leased_ns == charged <= 10.1 * SECOND
    assert split(got) == pytest.approx(split(beside_honest(guarantees, 0, processes=15)), abs=POINTS)


def test_a_lease_claimed_to_be_used_is_paid_though_that_is_then_denied():
    """At the next look the liar forger that it never ran. If that kept its bucket full, it would take the device from a
    working tenant each time it waits."""
    m = Model()
    m.raw.exclusive = 0
    m.add(0, guarantee=250, depth=MS // 20)  # its tails are short
    m.add(1, guarantee=250, work=None, stopped=1)
    m.want(0)
    liar = m.tenants[1]
    began = m.now

    def say(waiting, busy_until_ns):
        liar.waiting, liar.claims_busy_until_ns = waiting, busy_until_ns
        liar.claims_undrained = int(busy_until_ns > m.now)

    while m.now < began + 2 * SECOND:
        say(1, 1)
        m.step()
        while not liar.held:
            m.run(MS // 20)
        say(0, m.now + SECOND)
        m.step()
        m.run(MS // 10)
        say(0, 1)
        m.run(MS)
    assert m.tenants[0].executed >= (0.75 - 2 * POINTS) * (m.now - began)
