"""The order in which a stopping daemon releases what its arbiter's thread reads."""

from types import SimpleNamespace

from gpushare.daemon.adoption import Adoption
from gpushare.policy.lifecycle import Phase


def test_pages_are_closed_after_the_arbiter_has_stopped():
    done = []

    def grant(name, phase):
        return SimpleNamespace(name=name, record=SimpleNamespace(phase=phase), workloads=[])

    grants = [grant("runs", Phase.ACTIVE), grant("bound", Phase.BOUND), grant("runs too", Phase.ACTIVE)]
    resources = SimpleNamespace(close=lambda live: done.append(("pages", live.name)))
    serving = SimpleNamespace(close=lambda: done.append(("arbiter",)))
    transitions = SimpleNamespace(
        send=lambda live, event: done.append(("ends", live.name)), wake_at=lambda live, when: None
    )
    Adoption(grants, resources, serving, transitions).let_go()
    assert done == [("ends", "bound"), ("arbiter",), ("pages", "runs"), ("pages", "runs too")]
