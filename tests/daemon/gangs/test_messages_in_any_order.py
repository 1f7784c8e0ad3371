"""Messages about gangs reach two nodes in any order, late or twice: the nodes reserve exactly what their answers
said."""

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from run.waiting import until

from gpushare.errors import GoneError, NotFoundError, RefusedError

GIB = 1 << 30
EACH = {"memory": 7 * GIB, "time": 400, "keep": True}
ON_A_DEVICE = 2  # of EACH
TICK_NS = 30_000_000
"""The daemons' length of a second of a part's time to live."""
runs = count()

GANGS = st.sampled_from(["x", "y", "z"])
NODES = st.sampled_from([0, 1])
SIZES = st.integers(1, 3)


@dataclass
class Part:
    """A part as the answers described it. `size`: 0 if it was never prepared."""

    phase: str
    size: int = 0
    grants: list[str] = field(default_factory=list)


class Schedulers(RuleBasedStateMachine):
    def __init__(self, daemons, kills):
        super().__init__()
        self.daemons, self.kills = daemons, kills
        self.run = next(runs)

    @initialize()
    def begin(self):
        self.parts = [{} for _ in self.daemons]
        self.slots = [ON_A_DEVICE * len(daemon.client.devices()) for daemon in self.daemons]

    def id(self, gang):
        return f"{self.run}-{gang}"

    def free(self, node):
        return self.slots[node] - sum(len(part.grants) for part in self.parts[node].values())

    @rule(gang=GANGS, node=NODES, size=SIZES, ticks=st.sampled_from([1, 3600, 3600, 3600]))
    def prepare(self, gang, node, size, ticks):
        known, client = self.parts[node].get(gang), self.daemons[node].client

        def ask():
            return client.prepare(self.id(gang), [EACH] * size, ttl_seconds=ticks)

        if known is None and size > self.free(node):
            with pytest.raises(RefusedError, match="does not fit"):
                ask()
        elif known is None:
            part = ask()
            assert len(part["grant_ids"]) == size
            if ticks == 1:
                until(lambda: self.phase(node, gang) == "expired", "nobody commits it")
                self.parts[node][gang] = Part("expired", size)
            else:
                assert part["phase"] == "prepared"
                self.parts[node][gang] = Part("prepared", size, part["grant_ids"])
        elif known.phase in ("aborted", "expired"):
            with pytest.raises(GoneError):
                ask()
        elif known.size != size or ticks == 1:
            with pytest.raises(RefusedError, match="another request"):
                ask()
        else:
            again = ask()
            assert (again["phase"], [grant["id"] for grant in again["grants"]]) == (known.phase, known.grants)

    @rule(gang=GANGS, node=NODES)
    def commit(self, gang, node):
        known, client = self.parts[node].get(gang), self.daemons[node].client
        if known is None or known.phase in ("aborted", "expired"):
            with pytest.raises(NotFoundError if known is None else GoneError):
                client.commit(self.id(gang))
            return
        found = client.commit(self.id(gang))
        known.phase = "committed"
        assert [grant["id"] for grant in found["grants"]] == known.grants

    @rule(gang=GANGS, node=NODES)
    def abort(self, gang, node):
        known, client = self.parts[node].get(gang), self.daemons[node].client
        if known is not None and known.phase == "committed":
            with pytest.raises(RefusedError, match="is committed"):
                client.abort(self.id(gang))
            return
        phase = known.phase if known is not None and known.phase == "expired" else "aborted"
        assert client.abort(self.id(gang))["phase"] == phase
        self.parts[node][gang] = Part(phase)

    @rule(gang=GANGS, node=NODES)
    def release(self, gang, node):
        """Releases one of the part's grants."""
        known = self.parts[node].get(gang)
        if known is None or not known.grants:
            return
        self.daemons[node].client.release(known.grants[-1])
        if known.phase == "prepared":
            self.parts[node][gang] = Part("aborted")
        else:
            known.grants.pop()

    @precondition(lambda self: self.kills)
    @rule(node=NODES)
    def kill(self, node):
        self.daemons[node].kill()
        self.daemons[node].start()

    def phase(self, node, gang):
        found = {part["gang"]: part["phase"] for part in self.daemons[node].client.gangs()}
        return found.get(self.id(gang))

    @invariant()
    def the_devices_hold_what_was_answered(self):
        for node, daemon in enumerate(self.daemons):
            parts = self.parts[node].values()
            promised = [device["guaranteed"] for device in daemon.client.devices()]
            count = sum(len(part.grants) for part in parts)
            assert sum(one["time"] for one in promised) == count * EACH["time"]
            assert sum(one["memory"] for one in promised) == count * EACH["memory"]
            phases = {grant["id"]: grant["phase"] for grant in daemon.client.grants()}
            usable = {"prepared": "prepared", "committed": "reserved"}
            assert phases == {grant: usable[part.phase] for part in parts for grant in part.grants}

    def teardown(self):
        for node, parts in enumerate(self.parts):
            for part in parts.values():
                for grant in part.grants:
                    self.daemons[node].client.release(grant)


@pytest.fixture
def nodes(make_daemon):
    made = [make_daemon("--simulate", simulated) for simulated in ("2x16GiB", "1x16GiB")]
    return [daemon.quicken(prepared=TICK_NS / 1e9).start() for daemon in made]


@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["messages", "and kills"])
def test_no_order_of_messages_leaks_or_doubles_a_grant(nodes, kills):
    run_state_machine_as_test(
        lambda: Schedulers(nodes, kills),
        settings=settings(
            max_examples=10,
            stateful_step_count=25,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=not kills,
        ),
    )
    for daemon in nodes:
        daemon.nothing_left()
