"""The rows that pages show, made from the node API's answers."""

import pytest
from views import tops

from gpushare.dashboard import rows
from gpushare.dashboard.sources import Source, parse
from gpushare.paths import DEFAULT_SOCKET
from gpushare.policy.usage import bill, teams
from gpushare.text import sentences

MINUTE = 60 * 10**9


def slot(at, device="a", capacity=60, **used):
    return {
        "begins_ns": at * MINUTE,
        "device": device,
        "capacity_ns": capacity * 10**9,
        "used_ns": {name: int(seconds * 1e9) for name, seconds in used.items()},
    }


def test_columns_are_of_what_was_recorded_in_them():
    slots = [slot(0, a=60), slot(90, a=30), slot(91, a=15, b=15), slot(93, "b", b=1), slot(99, a=30, b=45)]
    found = rows.usage({"until_ns": 100 * MINUTE - 1, "slots": slots}, 5, 2 * MINUTE)
    assert found["end_ns"] == 100 * MINUTE
    # Two rows that end slightly apart can exceed their minute: together they count as all of it.
    assert found["devices"] == {
        "a": [{0: 375, 1: 125}, None, None, None, {0: 400, 1: 600}],
        "b": [None, {1: 17}, None, None, None],
    }
    assert found["tenants"] == [{"name": "a", "hours": 0.0208}, {"name": "b", "hours": 0.0169}]


def test_nothing_is_recorded_of_a_ledger_that_is_empty():
    assert rows.usage({"until_ns": 7, "slots": []}, 3, MINUTE)["devices"] == {}


def test_a_grant_says_what_runs_in_it_and_where():
    pod = {"namespace": "ml", "name": "train-0", "container": "main", "uid": ""}
    workload = {"program": "/usr/bin/python3 train.py", "container": "c" * 64, "pod": pod}
    none = {"key": None, "part_of": None, "eviction": None, "walls": [], "devices": []}
    row = rows.grant({**tops.grant("g-1", workload=workload), **none})
    assert (row["program"], row["container"], row["pod"]) == ("python3 train.py", "c" * 12, "ml/train-0")
    assert rows.grant({**tops.grant("g-2"), **none}).keys().isdisjoint(("program", "container", "pod"))


def test_an_attached_grant_says_from_where_and_how():
    none = {"key": None, "part_of": None, "eviction": None, "walls": [], "devices": []}
    far = [tops.attachment("lab2"), tops.attachment("<script>", 1100, checked="poor")]
    row = rows.grant({**tops.grant("g-1", attachments=far), **none})
    assert (row["hosts"], row["link_class"], len(row["attached"])) == ("2 hosts", "poor", 2)
    assert row["attached"][1].startswith("from <script> (192.0.2.7), over example, TLS: round trip 1.1 ms, poor when")
    assert rows.grant({**tops.grant("g-2"), **none}).keys().isdisjoint(("hosts", "link_class", "attached"))


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("a=/run/x.sock", Source("a", "/run/x.sock")),
        ("a=ssh:host", Source("a", DEFAULT_SOCKET, "host")),
        ("a=ssh:me@host:/run/x.sock", Source("a", "/run/x.sock", "me@host")),
        ("a=ssh:fe80::1%eth0:/x", Source("a", "/x", "fe80::1%eth0")),
        ("<script>=x=y", Source("<script>", "x=y")),
    ],
)
def test_where_a_node_is(text, source):
    found = parse(text)
    assert (found.name, str(found.socket), found.host) == (source.name, str(source.socket), source.host)


def waited(at, tenant, device, ms, other=None, rule="wake", kind="lease"):
    return {
        **{"at_ns": at * 10**9, "kind": kind, "tenant": tenant, "device": device, "wait_ns": int(ms * 1e6)},
        **{"other_tenant": other, "rule": rule},
    }


def test_waits_in_words():
    events = [
        waited(1, "a", 0, 2, "b"),
        waited(2, "a", 0, 3, "b"),
        waited(3, "a", 0, 1, "c"),
        waited(5, "a", 1, 7, kind="left"),
        waited(5, "b", 0, 0.0005),
        waited(9, "b", 0, 900, kind="revoke"),
    ]
    assert [row["text"] for row in sentences.waits(events)] == [
        "waited for device 1: 7.000 ms",
        "waited for device 0: 3 times in 4.0 s, 3.000 ms at most, 6.000 ms together; mostly b had it before, until: "
        "a grant with guaranteed time woke",
    ]
    assert sentences.waits([]) == []


def row(tenant, hours, **more):
    return {"tenant": tenant, "guaranteed_ns": hours * 3600 * 10**9, **more}


def test_teams_have_what_is_below_them():
    """By the parents that there are now; of a tenant that is gone, by its name."""
    rows_ = [row("ml", 1), row("ml/bob", 2), row("gone/x/y", 4), row("guest", 3), row("ml/bob", 5)]
    found = teams.tree(rows_, {"guest": "ml", "ml": None, "ml/bob": "ml"})
    assert [(one.name, one.level, one.own, bill.used(one.sums) // (3600 * 10**9)) for one in found] == [
        ("ml", 0, False, 11),
        ("ml", 1, True, 1),
        ("ml/bob", 1, False, 7),
        ("guest", 1, False, 3),
        ("gone", 0, False, 4),
        ("gone/x", 1, False, 4),
        ("gone/x/y", 2, False, 4),
    ]
    ring = teams.tree([row("a", 1), row("b", 2), row("c", 4)], {"a": "b", "b": "a", "c": "b"})  # of two nodes
    assert [(one.name, one.level, bill.used(one.sums) // (3600 * 10**9)) for one in ring] == [
        ("a", 0, 7),
        ("a", 1, 1),
        ("b", 1, 6),
        ("b", 2, 2),
        ("c", 2, 4),
    ]


def test_idle_time_is_of_those_who_were_guaranteed_it():
    tenants = [
        {"name": "ml", "parent": None, "guarantee": {"time": 1000}},
        {"name": "ml/bob", "parent": "ml", "guarantee": {"time": 500}},
        {"name": "x", "parent": None, "guarantee": {"time": 1000}},
    ]
    spent = {"wall_ns": 2000, "idle_ns": 701}
    rows_ = [{"tenant": "ml/bob", "guaranteed_ns": 600, "lent_ns": 100}, {"tenant": "x", "guaranteed_ns": 900}]
    assert teams.unused(tenants, 2000, rows_, spent) == {"ml": 526, "x": 175}
    assert teams.unused([], 2000, [], spent) == {"": 701}
    assert teams.unused(tenants, 2000, [], {"wall_ns": 0, "idle_ns": 0}) == {}
