"""Which grants may be attached now, by phase and by what is known of their devices."""

from types import SimpleNamespace

import pytest

from gpushare.daemon.remote.attaching import is_ending, refusal
from gpushare.policy.grants.lifecycle import Kind, Phase

ROOT = 0


def grant(phase, *, keep=False, kind=None, run_uid=ROOT, attached=(), suspended=False, opened=False, server=None):
    record = SimpleNamespace(
        places=[SimpleNamespace(device="GPU-1", index=1)],
        phase=phase,
        life=SimpleNamespace(keep=keep, kind=kind),
        run_uid=run_uid,
        open=opened,
        is_suspended=suspended,
        server=server,
    )
    return SimpleNamespace(id="g-1", record=record, attachments=dict.fromkeys(attached))


def why(live, *, drained="", fault=""):
    state = SimpleNamespace(
        drains={"GPU-1": SimpleNamespace(fault=drained)} if drained else {},
        faults={"GPU-1": SimpleNamespace(reason=fault)} if fault else {},
    )
    return refusal(state, live, ROOT)


@pytest.mark.parametrize(
    ("live", "told"),
    [
        (grant(Phase.RESERVED), ""),
        (grant(Phase.RESERVED, keep=True), ""),
        (grant(Phase.PREPARED), "its gang is not committed"),
        (grant(Phase.BOUND, kind=Kind.CONTAINER), "bound to a container"),
        (grant(Phase.BOUND, kind=Kind.PROCESS), "bound to a process"),
        (grant(Phase.BOUND, kind=Kind.PROCESS, keep=True), ""),
        (grant(Phase.BOUND, kind=Kind.PROCESS, keep=True, run_uid=1000), "processes of uid 1000"),
        (grant(Phase.BOUND, kind=Kind.PROCESS, keep=True, opened=True), "bound to a process"),
        (grant(Phase.ACTIVE, kind=Kind.PROCESS), "in use by something else"),
        (grant(Phase.ACTIVE, kind=Kind.CONTAINER, keep=True), "in use by something else"),
        (grant(Phase.ACTIVE, kind=Kind.PROCESS, attached=["a"]), ""),
        (grant(Phase.ACTIVE, kind=Kind.PROCESS, attached=["a"], suspended=True), "gpushare grant resume g-1"),
    ],
)
def test_by_its_phase(live, told):
    found = why(live)
    assert told in found if told else found == ""


@pytest.mark.parametrize("live", [grant(Phase.RESERVED), grant(Phase.ACTIVE, attached=["a"])])
def test_by_its_device(live):
    assert "takes no new work, since it is drained: a fan" in why(live, drained="it is drained: a fan")
    assert "does not work (it fell off the bus)" in why(live, fault="it fell off the bus")


def test_a_kept_one_whose_last_server_is_ending():
    server = object()
    assert is_ending(grant(Phase.ACTIVE, keep=True, server=server))
    assert not is_ending(grant(Phase.ACTIVE, keep=True, server=server, attached=["a"]))
    assert not is_ending(grant(Phase.ACTIVE, server=server))
    assert not is_ending(grant(Phase.ACTIVE, keep=True))
    assert not is_ending(grant(Phase.BOUND, keep=True, server=server))
