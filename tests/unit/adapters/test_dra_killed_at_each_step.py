"""The DRA driver is killed at each step, and called twice, late and out of order; and the claim statuses that it
writes. Against a daemon and an API server in memory."""

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedulers.draworld import NAME, Api, Daemon, claim, named, there

from gpushare.adapters.kubernetes import slices, statuses
from gpushare.adapters.kubernetes.driver import Preparer
from gpushare.errors import FailedError, UnreachableError


class Killed(BaseException):
    """Simulates SIGKILL: from here on nothing of this driver runs, not even clean-up."""


class Life:
    """A wrapper of `inner` for one run of the driver, which its `calls`th call kills: `after` the call took effect, or
    before."""

    def __init__(self, inner, calls, after):
        self._inner, self._left, self._after = inner, calls, after

    def __getattr__(self, name):
        method = getattr(self._inner, name)

        def call(*args, **options):
            self._left -= 1
            if self._left < 0 or (self._left == 0 and not self._after):
                raise Killed
            found = method(*args, **options)
            if self._left == 0:
                raise Killed
            return found

        return call


class KeyedDaemon(Daemon):
    """Creates one grant for a key, like the real daemon."""

    def create(self, *, wait_seconds, **request):
        for grant in self.live.values():
            if grant["key"] == request["key"]:
                return grant
        self.asked.clear()
        return super().create(wait_seconds=wait_seconds, **request)


STEP = st.tuples(
    st.sampled_from(["prepare", "unprepare", "reconcile"]),
    st.sampled_from("ab"),
    st.none() | st.integers(1, 5),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(STEP, max_size=8), st.sets(st.sampled_from("ab")))
def test_whenever_it_is_killed_no_grant_is_lost_and_none_is_there_twice(steps, wanted):
    """`wanted`: claims that kubelet has pods for in the end. Whatever was asked before, and whichever answers were
    lost, exactly those have a grant once they are prepared and the rest is reconciled."""
    known = {name: claim(name, memory="1Gi", time="100") for name in "ab"}
    daemon, api = KeyedDaemon(), Api(*known.values())
    for what, name, calls, after, of_daemon in steps:
        of = [daemon, api]
        if calls is not None:
            of[0 if of_daemon else 1] = Life(of[0 if of_daemon else 1], calls, after)
        preparer = Preparer(*of, "n")
        try:
            if what == "reconcile":
                preparer.reconcile()
            else:
                getattr(preparer, what)([named(known[name])], there)
        except Killed:
            pass
        preparer.stop()
        assert max(Counter(grant["key"] for grant in daemon.live.values()).values(), default=0) <= 1

    last = Preparer(daemon, api, "n")
    for name, one in known.items():
        if name in wanted:
            [answer] = last.prepare([named(one)], there).values()
            assert isinstance(answer, list), answer
        else:
            del api.claims[name]  # kubelet may also have forgotten it
    last.reconcile()
    last.stop()
    assert sorted(grant["key"].split("/")[2] for grant in daemon.live.values()) == sorted(f"uid-{n}" for n in wanted)


# Status.


class Told(Api):
    """An API server that takes claim statuses. `refuses`: for the next calls an exception, "conflict", or None."""

    def __init__(self, *known):
        super().__init__(*known)
        self.refuses, self.writes = [], []

    def put_claim_status(self, body):
        if self.refuses and (error := self.refuses.pop(0)) is not None:
            if error == "conflict":
                return False
            raise error
        self.writes.append(body)
        self.claims[body["metadata"]["name"]] = body
        return True


def written(site, todo, count):
    """Runs the writer until nothing is due."""
    ended = threading.Event()
    writer = threading.Thread(target=todo.run, args=(ended,))
    writer.start()
    for _ in range(20_000):
        if not todo._due:
            break
        threading.Event().wait(0.001)
    ended.set()
    with todo._changed:
        todo._changed.notify()
    writer.join()
    assert len(site.writes) == count


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(statuses, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(statuses, "RETRY_SECONDS", 0.0)


def test_a_claims_status_states_what_it_got_and_is_written_once(quick):
    one, daemon = claim(), KeyedDaemon()
    others = {"driver": "nic.example.com", "pool": "n", "device": "nic0", "data": {}}
    one["status"]["devices"] = [others]
    api = Told(one)
    preparer = Preparer(daemon, api, "n")
    preparer.prepare([named(one)], there)
    written(api, preparer.statuses, 1)
    kept, ours = api.claims["a"]["status"]["devices"]
    assert kept == others
    assert (ours["driver"], ours["pool"], ours["device"]) == ("gpu.gpushare.dev", "n", NAME)
    [grant] = daemon.live.values()
    assert ours["data"]["grant"] == grant["id"]
    assert ours["data"]["memoryBytes"] == grant["memory"]
    assert ours["conditions"][0]["lastTransitionTime"] == "1970-01-02T00:00:00Z"
    # The same status is not written again, even by another driver; one with another size is.
    Preparer(daemon, api, "n").prepare([named(one)], there)
    preparer.devices = daemon.devices()
    preparer.reconcile()
    written(api, preparer.statuses, 1)
    grant["devices"][0]["memory_limit_bytes"] += 1 << 20
    preparer.reconcile()
    written(api, preparer.statuses, 2)
    assert api.claims["a"]["status"]["devices"][0] == others


def test_a_status_that_cannot_be_written_is_nobodys_trouble(quick):
    claims = [claim(name, memory="1Gi", time="100") for name in "abc"]
    daemon, api = KeyedDaemon(), Told(*claims)
    # Unreachable twice, then forbidden, then a conflict: the forbidden status is left out, the others are written.
    api.refuses = [UnreachableError("away"), UnreachableError("away"), FailedError("forbidden"), "conflict", None]
    preparer = Preparer(daemon, api, "n")
    answers = preparer.prepare([named(one) for one in claims], there)
    assert all(isinstance(answer, list) for answer in answers.values())
    written(api, preparer.statuses, 2)
    notified = {name for name, one in api.claims.items() if one["status"].get("devices")}
    assert len(notified) == 2
    # A claim that is no longer prepared is not written.
    preparer.unprepare([named(claims[0])], there)
    assert not preparer.statuses._due


def test_devices_of_a_daemon_that_is_away():
    shown = [{"name": "d", "taints": [{"key": "x", "effect": "NoSchedule"}]}, {"name": "e"}]
    away = slices.unreachable(shown)
    assert [[taint["key"] for taint in one["taints"]] for one in away] == [
        ["x", "gpu.gpushare.dev/unreachable"],
        ["gpu.gpushare.dev/unreachable"],
    ]
    assert slices.unreachable(away) == away
    assert shown[1] == {"name": "e"}
