import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import RefusedError
from gpushare.policy.grants import lifecycle as lc
from gpushare.policy.grants.lifecycle import Kind, Phase, advance, begin

SECOND = 1_000_000_000
RESERVED = (0, "g-1", 120 * SECOND)


def live(*events):
    life, instructions = begin(*RESERVED)
    for event in events:
        life, instructions = advance(life, event)
    return life, instructions


BOUND = lc.Bound(SECOND, Kind.CONTAINER)
STARTED = lc.Started(2 * SECOND, 4711)


def test_a_container_from_reservation_to_its_end():
    life, steps = begin(*RESERVED)
    assert life.phase is Phase.RESERVED
    assert steps == (lc.Record(Phase.RESERVED), lc.Prepare(), lc.WakeAt(120 * SECOND))
    life, steps = advance(life, BOUND)
    assert steps == (lc.Record(Phase.BOUND), lc.Serve(), lc.WakeAt(121 * SECOND))
    life, steps = advance(life, STARTED)
    assert steps == (lc.Record(Phase.ACTIVE), lc.WakeAt(None))
    life, steps = advance(life, lc.Emptied(3 * SECOND))
    assert life.phase is Phase.RELEASED
    assert steps[:2] == (lc.StopServing(), lc.Remove())
    assert lc.EndProcesses() not in steps


def test_a_reservation_nobody_binds_expires_and_gives_everything_back():
    life, steps = live(lc.Clock(119 * SECOND))
    assert (life.phase, steps) == (Phase.RESERVED, ())
    life, steps = live(lc.Clock(120 * SECOND))
    assert life.phase is Phase.EXPIRED
    assert "not bound within 120 s" in life.reason
    assert lc.Remove() in steps
    assert lc.StopServing() not in steps


def test_an_engine_that_dies_between_bind_and_start_holds_nothing_for_ever():
    assert live(BOUND, lc.Clock(120 * SECOND))[0].phase is Phase.BOUND
    life, steps = live(BOUND, lc.Clock(121 * SECOND))
    assert life.phase is Phase.EXPIRED
    assert lc.StopServing() in steps


def test_an_active_grant_does_not_expire():
    assert live(BOUND, STARTED, lc.Clock(10**15))[0].phase is Phase.ACTIVE


def test_what_could_not_start_leaves_it_reserved():
    life, steps = live(BOUND, STARTED, lc.Undone(3 * SECOND))
    assert (life.phase, life.kind, life.pid, life.expires_ns) == (Phase.RESERVED, None, None, 123 * SECOND)
    assert steps == (
        lc.EndProcesses(),
        lc.StopServing(),
        lc.Remove(),
        lc.Record(Phase.RESERVED),
        lc.Prepare(),
        lc.WakeAt(123 * SECOND),
    )
    assert advance(life, BOUND)[0].phase is Phase.BOUND
    assert lc.EndProcesses() not in live(BOUND, lc.Undone(3 * SECOND))[1]
    life, _ = live()
    assert advance(life, lc.Undone(3 * SECOND)) == (life, ())


def test_release_ends_what_runs_before_the_pages_go():
    _, steps = live(BOUND, STARTED, lc.Release(3 * SECOND, "asked"))
    kinds = [type(step) for step in steps]
    assert kinds.index(lc.EndProcesses) < kinds.index(lc.StopServing) < kinds.index(lc.Remove)


def test_a_broken_grant_fails_with_its_reason():
    life, _ = live(lc.Break(1, "no room on /run"))
    assert (life.phase, life.reason) == (Phase.FAILED, "no room on /run")


@pytest.mark.parametrize(
    ("events", "refused"),
    [
        ((BOUND, STARTED), BOUND),
        ((BOUND,), lc.Bound(2, Kind.PROCESS)),
        ((), STARTED),
        ((BOUND, STARTED, lc.Release(3, "asked")), BOUND),
        ((BOUND, STARTED, lc.Release(3, "asked")), STARTED),
    ],
)
def test_what_a_phase_does_not_allow_is_refused(events, refused):
    life, _ = live(*events)
    with pytest.raises(RefusedError, match="grant g-1 is"):
        advance(life, refused)


def test_repeated_calls_change_nothing():
    life, _ = live(BOUND)
    assert advance(life, BOUND) == (life, ())
    life, _ = live(BOUND, STARTED)
    assert advance(life, lc.Started(9, 12)) == (life, ())


times = st.integers(0, 300 * SECOND)
events = st.one_of(
    st.builds(lc.Bound, times, st.sampled_from(Kind)),
    st.builds(lc.Started, times, st.integers(1, 9)),
    st.builds(lc.Emptied, times),
    st.builds(lc.Undone, times),
    st.builds(lc.Release, times, st.just("asked")),
    st.builds(lc.Break, times, st.just("broken")),
    st.builds(lc.Clock, times),
)


@given(st.lists(events, max_size=12), st.booleans(), st.sampled_from([None, 120 * SECOND]))
def test_whatever_happens_resources_are_given_back_exactly_once(history, keep, ttl):
    ttl = ttl if keep else 120 * SECOND
    life, steps = begin(0, "g-1", ttl, keep=keep)
    done = list(steps)
    for event in history:
        ended = life.phase.ended
        try:
            life, steps = advance(life, event)
        except RefusedError:
            continue
        done += steps
        assert not (ended and steps)

    def count(kind):
        return sum(isinstance(step, kind) for step in done)

    assert count(lc.Prepare) - count(lc.Remove) == (not life.phase.ended)
    assert count(lc.Serve) - count(lc.StopServing) == (life.phase in (Phase.BOUND, Phase.ACTIVE))
    recorded = [step.phase for step in done if isinstance(step, lc.Record)]
    assert recorded[-1] is life.phase
    assert life.phase.ended or (life.expires_ns is not None) == (
        ttl is not None and life.phase in (Phase.RESERVED, Phase.BOUND)
    )
    if keep and life.phase.ended:
        assert ttl is not None or life.reason in ("asked", "broken"), "only who asks ends it"


KEPT = (0, "g-1", None)


def kept(*events):
    life, steps = begin(*KEPT, keep=True)
    for event in events:
        life, steps = advance(life, event)
    return life, steps


def test_one_that_is_kept_takes_workloads_in_turn():
    life, steps = kept(BOUND, STARTED, lc.Emptied(3 * SECOND))
    assert (life.phase, life.pid, life.expires_ns) == (Phase.BOUND, None, None)
    assert steps == (lc.Record(Phase.BOUND), lc.WakeAt(None))
    assert advance(life, BOUND) == (life, ())
    life, _ = advance(life, lc.Started(4 * SECOND, 4712))
    assert (life.phase, life.pid) == (Phase.ACTIVE, 4712)
    assert advance(life, BOUND) == (life, ()), "another container at the same time"
    _, steps = advance(life, lc.Release(5 * SECOND, "asked"))
    assert steps[:3] == (lc.EndProcesses(), lc.StopServing(), lc.Remove())


def test_one_that_is_kept_has_one_kind_of_workload():
    life, _ = kept(BOUND, STARTED, lc.Emptied(3))
    with pytest.raises(RefusedError, match="for a container, not for a process"):
        advance(life, lc.Bound(4, Kind.PROCESS))


def test_its_time_without_a_workload_counts_from_the_last_one():
    life, _ = begin(0, "g-1", 120 * SECOND, keep=True)
    for event in (BOUND, STARTED, lc.Emptied(1000 * SECOND)):
        life, _ = advance(life, event)
    assert life.expires_ns == 1120 * SECOND
    assert advance(life, lc.Clock(1119 * SECOND))[0] == life
    assert advance(life, lc.Clock(1120 * SECOND))[0].phase is Phase.EXPIRED


def test_after_a_reboot():
    assert live(BOUND, STARTED, lc.Rebooted(9))[0].phase is Phase.FAILED
    life, steps = kept(BOUND, STARTED, lc.Rebooted(9))
    assert (life.phase, life.kind, life.pid) == (Phase.RESERVED, None, None)
    assert steps == (lc.Remove(), lc.Record(Phase.RESERVED), lc.Prepare(), lc.WakeAt(None))
