"""Why a grant is not faster: from views of the node API to sentences."""

from typing import Any

import pytest

from gpushare.text import reasons

NOW = 1_000_000_000_000
GIB = 1 << 30


def part(index: int = 0, guaranteed: int = 300, limit: int = 1000, **now: Any) -> dict[str, Any]:
    times = dict.fromkeys(("used_milli", "busy_milli", "borrowed_milli", "lent_milli", "waited_milli"), 0)
    return {
        **{"id": f"GPU-{index}", "index": index, "health": "healthy", "time_milli": guaranteed},
        **{"time_limit_milli": limit, "served_milli": guaranteed, "served_limit_milli": limit},
        **{"memory_limit_bytes": 4 * GIB, "memory_refusals": 0, "memory_refused": None, "guaranteed_milli": guaranteed},
        **{"extra_milli": 0},
        **times,
        **now,
    }


def grant(*devices: dict[str, Any], name: str = "g-1", **fields: Any) -> dict[str, Any]:
    rest = {"tenant": "default", "phase": "active", "processes": [1], "residency": None, "eviction": None, "gang": None}
    return {"id": name, "devices": devices, **rest, **fields}


def node(index: int, time: int = 0, memory: int = 0, reason: str = "") -> dict[str, Any]:
    allocatable = {"time": time, "memory": memory}
    return {"id": f"GPU-{index}", "index": index, "allocatable": allocatable, "health_reason": reason}


def residency(where: str, **fields: Any) -> dict[str, Any]:
    return {"where": where, "hold": False, "wanted": False, "waits": "", "since_ns": 0, **fields}


def refused(calls: int, why: str = "limit") -> dict[str, Any]:
    last = {"at_ns": NOW - 5_000_000_000, "asked_bytes": 6 * GIB, "left_bytes": GIB, "limit_bytes": 4 * GIB, "why": why}
    return part(used_milli=400, memory_refusals=calls, memory_refused=last)


BUSY = grant(part(guaranteed=600, used_milli=550), name="g-2", tenant="team-a")
TENANT = {"guarantee": {"time": 1000}, "allocated": {"time": 300}}
FROZEN = {"grant": "g-1", "outcome": "", "act": "frozen", "pid": 7}
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], str]] = {
    "guaranteed less than it wants": (
        grant(part(used_milli=300, waited_milli=700)),
        [node(0, 100)],
        "waited 70% of the last second for device 0: it is guaranteed 30% and had it; g-2 of team-a got 55%"
        " (guaranteed 60%): `gpushare grant resize g-1 --time 40%`",
    ),
    "guaranteed nothing": (
        grant(part(guaranteed=0, used_milli=20, waited_milli=900)),
        [node(0), node(1, 1000, 8 * GIB)],
        "waited 90% of the last second for device 0: it is guaranteed nothing there and gets what others leave idle;"
        " g-2 of team-a got 55% (guaranteed 60%): device 1 has room, start it there with --gpu 1",
    ),
    "no room anywhere": (
        grant(part(used_milli=300, waited_milli=700)),
        [node(0), node(1, 1000, GIB)],
        "waited 70% of the last second for device 0: it is guaranteed 30% and had it; g-2 of team-a got 55%"
        " (guaranteed 60%): the rest of device 0 is guaranteed to others, `gpushare plan` says what fits",
    ),
    "its own limit": (
        grant(part(limit=500, used_milli=490, waited_milli=500)),
        [node(0)],
        "waited 50% of the last second for device 0: it may have at most 50% and got 49%:"
        " `gpushare grant resize g-1 --time-limit 100%`",
    ),
    "its tenant's limit": (
        grant(part(used_milli=490, waited_milli=500, served_limit_milli=500)),
        [node(0)],
        "waited 50% of the last second for device 0: it may have at most 50% and got 49%:"
        " that is the limit of default: `gpushare tenants list`",
    ),
    "all devices at once": (
        grant(
            part(used_milli=100, waited_milli=800), part(1, used_milli=100), gang={"id": "job", "leases": "together"}
        ),
        [node(0)],
        "waited 80% of the last second for device 0: it runs only while it has all its 2 devices at once; where its"
        " processes do not wait for each other, start it with --turns independent",
    ),
    "bursts": (
        grant(part(used_milli=100, waited_milli=60)),
        [node(0)],
        "waited 6% of the last second for device 0: it is guaranteed 30% and got 10%, for it asked for no more: each"
        " burst of its work waits for its turn first: `gpushare events --grant g-1` shows each wait",
    ),
    "owed": (
        grant(part(used_milli=100, waited_milli=850)),
        [node(0)],
        "waited 85% of the last second for device 0: it is guaranteed 30% and got 10%; g-2 of team-a got 55%"
        " (guaranteed 60%): it is owed the rest, and gets it within a second: `gpushare events --grant g-1` shows each"
        " wait",
    ),
    "the program itself": (
        grant(part(used_milli=890, busy_milli=120, waited_milli=10)),
        [node(0)],
        "gpushare does not hold it back: it kept device 0 busy for 12% of the last second and did not wait for it, so"
        " the device waits for the program: look at its data loading and other work on the CPU (py-spy top --pid PID)",
    ),
    "nothing to do": (
        grant(part()),
        [node(0)],
        "gpushare does not hold it back: its programs gave device 0 nothing to do in the last second (py-spy dump"
        " --pid PID shows where they are)",
    ),
    "the whole device": (
        grant(part(used_milli=990, busy_milli=990)),
        [node(0)],
        "it kept device 0 busy for 99% of the last second: there is no more of it",
    ),
    "no process": (
        grant(part(), processes=[]),
        [node(0)],
        "no process of it uses the GPU: none has called CUDA yet, or all have ended",
    ),
    "not begun": (grant(part(), phase="reserved"), [node(0)], "nothing of it runs yet: it is reserved"),
    "a broken device": (
        grant(part(health="unhealthy", waited_milli=1000)),
        [node(0, reason="Xid 79")],
        "device 0 does not work (Xid 79): start it again on another, `gpushare devices`",
    ),
    "held": (
        grant(part(), phase="suspended", residency=residency("suspended", hold=True)),
        [node(0)],
        "its memory is held in host memory until it is resumed: `gpushare grant resume g-1`",
    ),
    "on its way back": (
        grant(part(waited_milli=400), residency=residency("resuming", waits="g-2 of team-a has its room")),
        [node(0)],
        "its memory comes back from host memory: g-2 of team-a has its room; with --idle-memory keep it never leaves"
        " its device",
    ),
    "a loan": (
        grant(part(), eviction={"bytes": GIB, "for_tenant": "team-a"}),
        [node(0)],
        "1GiB that it has on loan are wanted back by team-a: end it or make it smaller",
    ),
    "frozen": (
        grant(part(), name="g-1", processes=[7]),
        [FROZEN],
        "its processes are frozen, because of what process 7 does past its share: `gpushare events --findings`",
    ),
    "refused once": (
        grant(refused(1)),
        [node(0)],
        "refused memory when it asked for 6GiB with 1GiB left of 4GiB, 5 s ago: `gpushare grant resize g-1 --memory"
        " 9GiB`, or let the program take less",
    ),
    "ended for it": (
        grant(refused(3), phase="released"),
        [node(0)],
        "refused memory 3 times, the last time when it asked for 6GiB with 1GiB left of 4GiB, 5 s ago: start it again"
        " with --memory 9GiB",
    ),
    "refused by the driver": (
        grant(refused(1, "device")),
        [node(0)],
        "refused memory when it asked for 6GiB with 1GiB left of 4GiB: the device itself was full, 5 s ago: somebody"
        " uses the device without a share: `gpushare events --findings`, `gpushare doctor`",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_reason(case: str) -> None:
    own, about, sentence = CASES[case]
    findings = [row for row in about if "act" in row]
    found = reasons.slow(own, [own, BUSY], [row for row in about if "act" not in row], TENANT, findings, NOW)
    assert found[0] == sentence


def test_a_tenant_cannot_give_what_it_does_not_have() -> None:
    own = grant(part(used_milli=300, waited_milli=700), tenant="team-b")
    poor = {"guarantee": {"time": 300}, "allocated": {"time": 300}}
    [found] = reasons.slow(own, [], [node(0, 200)], poor, [], NOW)
    assert found.endswith(": team-b has no more guaranteed time to give, `gpushare tenants set` changes that")
    served = grant(part(used_milli=400, waited_milli=600, served_milli=400, extra_milli=100))
    [found] = reasons.slow(served, [], [node(0, 100)], TENANT, [], NOW)
    assert "resize" not in found, "it has what is left of its tenant's guarantee already"


def test_a_wait_comes_before_what_was_refused_and_before_devices_that_do_well() -> None:
    waits = part(1, used_milli=300, waited_milli=700)
    found = reasons.slow(grant(refused(1), waits), [], [node(0), node(1)], None, [], NOW)
    assert [text.split()[0] for text in found] == ["waited", "refused"]


def test_a_program_that_waits_for_its_link_is_not_told_to_look_at_its_own_work() -> None:
    idle, link = grant(part(used_milli=100, busy_milli=100)), "its link costs it about 30 %"
    assert reasons.slow(idle, [], [node(0)], None, [], NOW, link) == [link]
    waits = grant(part(used_milli=300, waited_milli=700))
    found = reasons.slow(waits, [], [node(0)], TENANT, [], NOW, link)
    assert found[0].startswith("waited") and found[1:] == [link]
