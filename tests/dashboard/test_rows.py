"""The rows that pages show, made from the node API's answers."""

import pytest

from gpushare.dashboard import rows
from gpushare.dashboard.sources import Source, parse
from gpushare.paths import DEFAULT_SOCKET

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
